"""Publishing over HTTP. A publication without an answer is sent again under the same uid, so that it is registered once."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self, Unpack

from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout

from ropewalk.client.addresses import addresses
from ropewalk.client.errors import PublishUnanswered, PublishUnavailable
from ropewalk.client.publish_request import (
    PATH,
    Attempts,
    Draft,
    DraftOptions,
    NotSent,
    RetryLimits,
    RetryOptions,
    decode_receipts,
    headers,
)
from ropewalk.client.tls import connection_error, http_session, tls_context
from ropewalk.model.messages import Receipt


class PublishMethods(ABC):
    """`publish` in terms of `publish_batch`."""

    async def publish(self, stream: str, data: Any, **options: Unpack[DraftOptions]) -> Receipt:
        """Publish a JSON value with the key for publishing, and return its position. `options`: further fields of a Draft.

        Raises PublishError; after PublishUnavailable, sending again with the same uid is safe.
        """
        return (await self.publish_batch([Draft(stream, data, **options)]))[0]

    @abstractmethod
    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none. Returns a receipt for each."""


class Publisher(PublishMethods):
    """Use it as `async with Publisher(url, key) as publisher`.

    Args:
        ca_file: A file with the certificates to trust instead of the system's.
        http: Use this session, with its own certificates, and leave it open.
        timeout: Seconds of one attempt.
        total: Seconds of all attempts of a call.
        retries: `attempts` (10 by default), `backoff` and `chance`.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        http: ClientSession | None = None,
        timeout: float = 10.0,
        total: float = math.inf,
        **retries: Unpack[RetryOptions],
    ) -> None:
        self._url = addresses(url).base + PATH
        self._headers = headers(key)
        self._tls = tls_context(ca_file)
        self._given = http
        self._http = http
        self._limits = RetryLimits(timeout=timeout, total=total, **retries)

    async def __aenter__(self) -> Self:
        self._http = self._http or http_session(self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None and self._given is None:
            await self._http.close()
            self._http = None

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        attempts = Attempts(drafts, self._limits)
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
                return decode_receipts(response.status, await response.read())
        except ClientConnectorError as error:
            raise connection_error(self._url, error, NotSent) from error
        except (ClientError, OSError) as error:
            raise PublishUnanswered(f"{self._url} gave no answer: {str(error) or type(error).__name__}") from error
