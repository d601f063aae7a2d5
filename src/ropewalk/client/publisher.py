"""Publishing over HTTP. What got no answer is sent again under the same uid, so that a retry never doubles it."""

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any, Self

from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout

from ropewalk.client import publish_request
from ropewalk.client.addresses import addresses
from ropewalk.client.attempts import ATTEMPTS, Attempts, NotSent, RetryLimits
from ropewalk.client.errors import PublishUnanswered, PublishUnavailable
from ropewalk.client.publish_request import PATH, Draft
from ropewalk.client.trust import session_trusting, trust
from ropewalk.client.unreached import unreached
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.messages import Receipt


class Publisher:
    """Use it as `async with Publisher(url, key) as publisher`. With an `http` session of your own, that is left open.

    `ca_file` names the certificates to trust instead of the system's; a session of your own decides that itself.
    `timeout` bounds an attempt, `total` all attempts of a call together; both in seconds.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        http: ClientSession | None = None,
        attempts: int = ATTEMPTS,
        backoff: Backoff | None = None,
        chance: Chance = random.random,
        timeout: float = 10.0,
        total: float = math.inf,
    ) -> None:
        self._url = addresses(url).base + PATH
        self._headers = publish_request.headers(key)
        self._tls = trust(ca_file)
        self._given = http
        self._http = http
        self._limits = RetryLimits(attempts, backoff or Backoff(), timeout, total)
        self._chance = chance

    async def __aenter__(self) -> Self:
        self._http = self._http or session_trusting(self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None and self._given is None:
            await self._http.close()
            self._http = None

    async def publish(
        self,
        stream: str,
        data: Any,
        *,
        uid: str = "",
        transient: bool = False,
        exclude_socket: str = "",
        broadcast_type: str = "",
        partition_key: str = "",
    ) -> Receipt:
        """Returns its position. Raises PublishError; after PublishUnavailable, sending again with the same uid is safe."""
        draft = Draft(stream, data, uid, transient, exclude_socket, broadcast_type, partition_key)
        return (await self.publish_batch([draft]))[0]

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none. A receipt for each."""
        attempts = Attempts(drafts, self._limits, self._chance)
        while True:
            try:
                return await self._send(attempts.body, attempts.timeout())
            except PublishUnavailable as failure:
                pause = attempts.pause(failure)
            await asyncio.sleep(pause)

    async def _send(self, body: bytes, timeout: float) -> list[Receipt]:
        if self._http is None:
            raise RuntimeError("use the publisher inside `async with`")
        bounded = ClientTimeout(total=timeout)
        try:
            async with self._http.post(self._url, data=body, headers=self._headers, timeout=bounded) as response:
                return publish_request.receipts(response.status, await response.read())
        except ClientConnectorError as error:
            raise unreached(self._url, error, NotSent) from error
        except (ClientError, OSError) as error:
            raise PublishUnanswered(f"{self._url} gave no answer: {str(error) or type(error).__name__}") from error
