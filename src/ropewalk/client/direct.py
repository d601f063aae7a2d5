"""Publishing in one call from ordinary application code: nothing to open, nothing to close.

    ropewalk.publish("chat/1", {"text": "hi"})             # from blocking code
    await ropewalk.apublish("chat/1", {"text": "hi"})      # from asynchronous code

The environment, or `configure`, sets the server and the key. A call has a time limit; within it, publications without an answer
are sent again under the same uid.
"""

import asyncio
import os
import random
import ssl
import time
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from aiohttp import ClientSession

from ropewalk.client.addresses import addresses
from ropewalk.client.connection_pool import ConnectionPool
from ropewalk.client.errors import KeyRefused, PublishUnavailable
from ropewalk.client.publish_request import ATTEMPTS, PATH, Attempts, Draft, RetryLimits, decode_receipts, headers
from ropewalk.client.publisher import Publisher
from ropewalk.client.tls import http_session, tls_context
from ropewalk.core.signatures import API_PHRASE, derive
from ropewalk.model.messages import Receipt

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT = 10.0

_NO_KEY = "no key is set: set ROPEWALK_SECRET or ROPEWALK_API_SECRET, or call ropewalk.configure(key=...)"

_Holder = AsyncGenerator[ClientSession, None]


class SessionPerLoop:
    """One aiohttp session per event loop, for the loops of several threads. It is closed with its loop, because it lives in an
    asynchronous generator: `asyncio.run`, uvicorn and pytest-asyncio close the generators of a loop before the loop."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._held: dict[AbstractEventLoop, tuple[ClientSession, _Holder]] = {}

    def __len__(self) -> int:
        return len(self._held)

    async def current(self) -> ClientSession:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._held:
            self._forget_closed_loops()
            holder = self._hold(loop)
            # `_hold` does not wait before its yield, so no other task of this loop runs in between.
            self._held[loop] = await anext(holder), holder
        return self._held[loop][0]

    async def close(self) -> None:
        """Close the session of the running loop, for loops that end without closing their generators."""
        _, holder = self._held.get(asyncio.get_running_loop(), (None, None))
        if holder is not None:
            await holder.aclose()

    async def _hold(self, loop: AbstractEventLoop) -> _Holder:
        try:
            async with http_session(self._tls) as http:
                yield http
        finally:
            self._held.pop(loop, None)

    def _forget_closed_loops(self) -> None:
        for loop in list(self._held):
            if loop.is_closed():
                self._held.pop(loop, None)


class Direct:
    """One server to publish to, for the threads and the event loops of this process."""

    def __init__(self, url: str, key: str, timeout: float, ca_file: str) -> None:
        self._url = url
        self._key = key
        self._timeout = timeout
        tls = tls_context(ca_file)
        self._connections = ConnectionPool(addresses(url).base + PATH, headers(key), tls)
        self._sessions = SessionPerLoop(tls)

    def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        _refuse_to_block_a_loop()
        attempts = Attempts(drafts, RetryLimits(ATTEMPTS, timeout=self._timeout, total=self._timeout), random.random)
        while True:
            try:
                return decode_receipts(*self._connections.post(attempts.body, attempts.timeout()))
            except PublishUnavailable as failure:
                pause = attempts.pause(failure)
            except KeyRefused as refused:
                raise self._explain(refused) from None
            time.sleep(pause)

    async def apublish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        http = await self._sessions.current()
        publisher = Publisher(self._url, self._key, http=http, attempts=ATTEMPTS, timeout=self._timeout, total=self._timeout)
        try:
            return await publisher.publish_batch(drafts)
        except KeyRefused as refused:
            raise self._explain(refused) from None

    async def aclose(self) -> None:
        await self._sessions.close()

    def _explain(self, refused: KeyRefused) -> KeyRefused:
        return refused if self._key else KeyRefused(f"{refused}; {_NO_KEY}")


_configured: Direct | None = None


def configure(
    *, url: str | None = None, key: str | None = None, timeout: float = DEFAULT_TIMEOUT, ca_file: str | None = None
) -> None:
    """Set where this process publishes to. Omitted arguments are read from the environment now.

    Args:
        url: The server's address (ROPEWALK_URL).
        key: The bearer key of its API (ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET).
        timeout: Seconds of a call with all its attempts.
        ca_file: A file with the certificates to trust instead of the system's (ROPEWALK_CA_FILE).

    Raises UserMistake for an invalid URL or file.
    """
    global _configured
    environ = os.environ
    _configured = Direct(
        url if url is not None else environ.get("ROPEWALK_URL") or DEFAULT_URL,
        key if key is not None else key_in(environ),
        timeout,
        ca_file if ca_file is not None else environ.get("ROPEWALK_CA_FILE", ""),
    )


def publish(
    stream: str,
    data: Any,
    *,
    uid: str = "",
    transient: bool = False,
    exclude_socket: str = "",
    type: str = "",
    partition_key: str = "",
) -> Receipt:
    """Publish from blocking code and return the position.

    Args:
        data: Any JSON value.
        uid: With your own, the same call is safe to repeat.
        transient: Deliver the message without a position, and do not store it.
        exclude_socket: The sid of a session that does not get the message.
        type: The `type` of the message that clients receive.
        partition_key: Set by the first publication of a stream.

    Raises PublishError, and RuntimeError in a thread with a running event loop.
    """
    return publish_batch([Draft(stream, data, uid, transient, exclude_socket, type, partition_key)])[0]


def publish_batch(drafts: Sequence[Draft]) -> list[Receipt]:
    """Publish all of them in this order, or none, from blocking code. Returns a receipt for each."""
    return _current().publish_batch(drafts)


async def apublish(
    stream: str,
    data: Any,
    *,
    uid: str = "",
    transient: bool = False,
    exclude_socket: str = "",
    type: str = "",
    partition_key: str = "",
) -> Receipt:
    """`publish` for asynchronous code."""
    return (await apublish_batch([Draft(stream, data, uid, transient, exclude_socket, type, partition_key)]))[0]


async def apublish_batch(drafts: Sequence[Draft]) -> list[Receipt]:
    """`publish_batch` for asynchronous code."""
    return await _current().apublish_batch(drafts)


async def aclose() -> None:
    """Close the connections of `apublish` in the running event loop.

    `asyncio.run` and web servers do this at the end of a loop. Call it last in a loop that you run yourself.
    """
    if _configured is not None:
        await _configured.aclose()


def key_in(environ: Mapping[str, str]) -> str:
    """The API key of a server with this environment."""
    if key := environ.get("ROPEWALK_API_SECRET") or environ.get("ANYCABLE_API_SECRET"):
        return key
    secret = environ.get("ROPEWALK_SECRET") or environ.get("ANYCABLE_SECRET")
    return derive(secret, API_PHRASE) if secret else ""


def _current() -> Direct:
    if _configured is None:
        configure()
    assert _configured is not None
    return _configured


def _refuse_to_block_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("publish would block the event loop of this thread: write `await ropewalk.apublish(...)`")
