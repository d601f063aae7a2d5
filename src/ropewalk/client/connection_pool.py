"""POST from blocking code, over connections that are kept open between calls.

A connection is used by one thread at a time, not by forked processes, and not after the server has closed it.
"""

import os
import select
import ssl
import time
import weakref
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from socket import socket

from yarl import URL

from ropewalk.client.errors import PublishUnanswered
from ropewalk.client.publish_request import NotSent
from ropewalk.client.tls import connection_error

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
