"""Publishing in one call from ordinary application code: nothing to open, nothing to close.

    ropewalk.publish("chat/1", {"text": "hi"})             # from blocking code
    await ropewalk.apublish("chat/1", {"text": "hi"})      # from asynchronous code

The environment, or `configure`, sets the server and the key. A call has a time limit; within it, publications without an answer
are sent again under the same uid.
"""

import asyncio
import os
import select
import ssl
import time
import weakref
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import socket
from typing import Any, Unpack

from aiohttp import ClientSession
from yarl import URL

from ropewalk.client.addresses import addresses
from ropewalk.client.errors import KeyRefused, PublishUnanswered, PublishUnavailable
from ropewalk.client.publish_request import PATH, Attempts, DirectOptions, Draft, NotSent, RetryLimits, decode_receipts, headers
from ropewalk.client.publisher import Publisher
from ropewalk.client.tls import connection_error, http_session, tls_context
from ropewalk.core.signatures import API_PHRASE, derive
from ropewalk.model.messages import Receipt

MAX_IDLE = 16
"""Maximum number of idle connections."""

IDLE_SECONDS = 30.0
"""Servers and proxies close idle connections after about a minute: close them earlier."""

MAX_ANSWER_BYTES = 8 << 20

_Idle = deque[tuple[float, HTTPConnection]]


class ConnectionPool:
    """The connections of this process to one URL. Threads share them, because many threads live for one request only."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> None:
        self._url = URL(url)
        self._headers = dict(headers)
        self._tls = (tls or ssl.create_default_context()) if self._url.scheme == "https" else None
        self._idle: _Idle = deque()
        self._process = os.getpid()
        # Also at exit, which avoids warnings about open sockets.
        weakref.finalize(self, _close_all, self._idle)

    def post(self, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Returns status and body. `timeout` limits each network operation, in seconds. Raises PublishError."""
        connection = self._take(timeout) or self._open(timeout)
        try:
            answer = self._exchange(connection, body)
        except (OSError, HTTPException) as error:
            connection.close()
            raise PublishUnanswered(f"{self._url} gave no answer: {str(error) or type(error).__name__}") from error
        except BaseException:
            connection.close()  # interrupted within an exchange
            raise
        self._keep(connection)
        return answer

    def _exchange(self, connection: HTTPConnection, body: bytes) -> tuple[int, bytes]:
        connection.request("POST", self._url.raw_path, body, self._headers)
        response = connection.getresponse()
        answer = response.read(MAX_ANSWER_BYTES)
        if not response.isclosed():
            raise HTTPException(f"the answer was cut off, or is longer than {MAX_ANSWER_BYTES} bytes")
        return response.status, answer

    def _open(self, timeout: float) -> HTTPConnection:
        host, port = self._url.raw_host or "", self._url.port
        plain = self._tls is None
        connection = (
            HTTPConnection(host, port, timeout) if plain else HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise connection_error(str(self._url), error, NotSent) from error
        return connection

    def _take(self, timeout: float) -> HTTPConnection | None:
        self._drop_inherited()
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:  # another thread took it
                return None
            if time.monotonic() - since < IDLE_SECONDS and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout)
                return connection
            connection.close()
        return None

    def _keep(self, connection: HTTPConnection) -> None:
        if connection.sock is not None and len(self._idle) < MAX_IDLE:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def _drop_inherited(self) -> None:
        """After a fork, close our handles only: the parent still uses the connections."""
        if self._process != os.getpid():
            _close_all(self._idle)
            self._process = os.getpid()


def _is_readable(sock: socket) -> bool:
    """Whether the server sent data or closed: without a request both end the connection."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(idle: _Idle) -> None:
    while idle:
        try:
            idle.pop()[1].close()
        except IndexError:
            return


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
        attempts = Attempts(drafts, RetryLimits(timeout=self._timeout, total=self._timeout))
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
        publisher = Publisher(self._url, self._key, http=http, timeout=self._timeout, total=self._timeout)
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


def publish(stream: str, data: Any, *, type: str = "", **options: Unpack[DirectOptions]) -> Receipt:
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
    return publish_batch([Draft(stream, data, broadcast_type=type, **options)])[0]


def publish_batch(drafts: Sequence[Draft]) -> list[Receipt]:
    """Publish all of them in this order, or none, from blocking code. Returns a receipt for each."""
    return _current().publish_batch(drafts)


async def apublish(stream: str, data: Any, *, type: str = "", **options: Unpack[DirectOptions]) -> Receipt:
    """`publish` for asynchronous code."""
    return (await apublish_batch([Draft(stream, data, broadcast_type=type, **options)]))[0]


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
