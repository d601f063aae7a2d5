"""Publishing over HTTP. What got no answer is sent again under the same uid, so that a retry never doubles it."""

import asyncio
import random
import uuid
from collections.abc import Sequence
from typing import Any, Self

from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout
from msgspec.structs import replace

from ropewalk.client import publishing
from ropewalk.client.addresses import addresses
from ropewalk.client.backoff import Backoff, Chance
from ropewalk.client.errors import PublishUnavailable
from ropewalk.client.publishing import Draft
from ropewalk.model.messages import Receipt

PATH = "/api/publish"


class Publisher:
    """Use it as `async with Publisher(url, key) as publisher`. With an `http` session of your own, that is left open."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        http: ClientSession | None = None,
        attempts: int = 5,
        backoff: Backoff | None = None,
        chance: Chance = random.random,
        timeout: float = 10.0,
    ) -> None:
        self._url = addresses(url).base + PATH
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._given = http
        self._http = http
        self._attempts = attempts
        self._backoff = backoff or Backoff()
        self._chance = chance
        self._timeout = ClientTimeout(total=timeout)

    async def __aenter__(self) -> Self:
        self._http = self._http or ClientSession()
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
    ) -> Receipt:
        """Returns its position. Raises PublishError; after PublishUnavailable, sending again with the same uid is safe."""
        return (await self.publish_batch([Draft(stream, data, uid, transient, exclude_socket, broadcast_type)]))[0]

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none. A receipt for each."""
        named = [draft if draft.uid or draft.transient else replace(draft, uid=uuid.uuid4().hex) for draft in drafts]
        body = publishing.body(named)
        # What has no uid could be delivered twice, so it is sent again only if it never left.
        safe = not any(draft.transient for draft in named)
        attempt = 0
        while True:
            try:
                return await self._send(body)
            except _NotSent as error:
                trouble: PublishUnavailable = error
            except PublishUnavailable as error:
                if not safe:
                    raise
                trouble = error
            attempt += 1
            if attempt >= self._attempts:
                raise trouble
            await asyncio.sleep(self._backoff.delay(attempt - 1, self._chance))

    async def _send(self, body: bytes) -> list[Receipt]:
        if self._http is None:
            raise RuntimeError("use the publisher inside `async with`")
        try:
            async with self._http.post(self._url, data=body, headers=self._headers, timeout=self._timeout) as response:
                return publishing.receipts(response.status, await response.read())
        except ClientConnectorError as error:
            raise _NotSent(f"{self._url} cannot be reached: {error}") from error
        except (ClientError, OSError) as error:
            raise PublishUnavailable(f"{self._url} gave no answer: {str(error) or type(error).__name__}") from error


class _NotSent(PublishUnavailable):
    """No connection, so nothing can have been registered."""
