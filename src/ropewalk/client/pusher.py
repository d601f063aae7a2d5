"""Pushing over TCP. What got no answer is sent again under the same uids, so that a retry never doubles it."""

import asyncio
import random
import ssl
import time
from collections.abc import Sequence
from typing import Self

from yarl import URL

from ropewalk.client.errors import (
    CertificateUntrusted,
    KeyRefused,
    PublicationRefused,
    PublishError,
    PublishUnanswered,
    PublishUnavailable,
)
from ropewalk.client.trust import trust
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.errors import MalformedFrame, UserMistake
from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Body, Error, Format, Hello, Pushed, Reason, Refused, Run, Welcome
from ropewalk.protocol.broky.ksuid import new_ksuid
from ropewalk.protocol.broky.runs import decode, encode_run, run_of
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode

SCHEMES = {"tcp": False, "tls": True, "http": False, "https": True}
"""Of a server's address, and whether TLS is spoken there: it is one port for all protocols."""

READ_BYTES = 65536


class Pusher:
    """Use it as `async with Pusher("tcp://host:port", key) as pusher`. It connects with the first push, and again when needed.

    `key` is the key for publishing. `timeout` bounds an attempt, in seconds.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        ca_file: str = "",
        attempts: int = 5,
        backoff: Backoff | None = None,
        chance: Chance = random.random,
        timeout: float = 10.0,
    ) -> None:
        self._host, self._port, secure = _place(url)
        self._url = url
        self._token = key.encode()
        self._tls = (trust(ca_file) or ssl.create_default_context()) if secure else None
        self._attempts = attempts
        self._backoff = backoff or Backoff()
        self._chance = chance
        self._timeout = timeout
        self._one_by_one = asyncio.Lock()
        self._line: _Line | None = None
        self._ref = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hang_up()

    async def push(
        self,
        key: bytes,
        payloads: Sequence[bytes],
        *,
        format: Format = Format.BYTES,
        key_partition: bytes = b"",
        uids: Sequence[bytes] = (),
    ) -> Position:
        """All of these messages of one key, or none. Returns the position of the first, after which the others follow.

        `uids` are KSUIDs, one for each; without them it makes some up. Raises PublishError; after PublishUnavailable, pushing
        again with the same uids is safe.
        """
        if not payloads:
            raise ValueError("a push has at least one message")
        made = b"".join(uids) or b"".join(new_ksuid(time.time()) for _ in payloads)
        async with self._one_by_one:
            self._ref = self._ref % (2**32 - 1) + 1
            run = run_of(key, payloads, self._ref, format, key_partition, made, ())
            for attempt in range(self._attempts - 1):
                try:
                    return await self._try(run)
                except PublishUnavailable:
                    await asyncio.sleep(self._backoff.delay(attempt, self._chance))
            return await self._try(run)

    async def _try(self, run: Run) -> Position:
        try:
            async with asyncio.timeout(self._timeout):
                if self._line is None:
                    self._line = await self._dial()
                return await self._line.push(run)
        except ssl.SSLCertVerificationError as error:
            raise CertificateUntrusted(self._url, error) from error
        except (OSError, MalformedFrame) as error:  # TimeoutError and EOF are OSErrors here
            self._hang_up()
            raise PublishUnanswered(f"{self._url} gave no answer: {str(error) or type(error).__name__}") from error
        except PublishError:
            if self._line is not None and self._line.ended:
                self._hang_up()
            raise

    async def _dial(self) -> "_Line":
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        line = _Line(reader, writer)
        try:
            await line.greet(self._token)
        except BaseException:
            line.close()
            raise
        return line

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _Line:
    """One connection. `ended`: the server has said its last word."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter()
        self._frames: list[bytes] = []
        self.ended = False

    async def greet(self, token: bytes) -> None:
        self._writer.write(encode(Hello(token=token)))
        if not isinstance(await self._receive(), Welcome):
            raise MalformedFrame("the server did not welcome us")

    async def push(self, run: Run) -> Position:
        self._writer.write(encode_run(run))
        while True:
            match await self._receive():
                case Pushed(refs, offsets, epochs) if refs == (run.ref,) and len(offsets) == 1:
                    return Position(epochs[1:].decode(), offsets[0])
                case Refused(run.ref, index, reason, text):
                    raise _refusal(reason, text, index)

    async def _receive(self) -> Body:
        while not self._frames:
            data = await self._reader.read(READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._frames += self._splitter.feed(data)
        body = decode(self._frames.pop(0))
        if isinstance(body, Error):
            self.ended = True
            raise _refusal(body.reason, body.text) if not body.reconnect else PublishUnavailable(body.text)
        return body

    def close(self) -> None:
        self._writer.close()


def _refusal(reason: Reason, text: str, index: int = 0) -> PublishError:
    match reason:
        case Reason.FORBIDDEN | Reason.UNAUTHORIZED:
            return KeyRefused(text)
        case Reason.UNAVAILABLE:
            return PublishUnavailable(text)
        case _:
            return PublicationRefused(text, index)


def _place(url: str) -> tuple[str, int, bool]:
    try:
        given = URL(url)
    except ValueError as error:
        raise UserMistake(f"{url!r} is not a URL: {error}") from error
    if given.scheme not in SCHEMES or not given.host or not given.port:
        raise UserMistake(f"{url!r} is not a server's address; write it like tcp://127.0.0.1:8080")
    return given.host, given.port, SCHEMES[given.scheme]
