"""Plain publish requests, answered without aiohttp: in the step in which they arrive, where the store answers at once too.

Only what succeeds is answered here. Whatever else comes of a request is left to `PublishEndpoint`, which gets its bytes as they
came: so refusals, their headers and how they are counted exist once.
"""

import time
from collections.abc import Coroutine, Mapping
from email.utils import formatdate
from typing import Any, TypeVar

from aiohttp.http import SERVER_SOFTWARE

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.publish import shown
from ropewalk.core.stats import Stats
from ropewalk.model.errors import RopewalkError
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Publisher
from ropewalk.protocol.plain_request import PlainHead
from ropewalk.protocol.publications import LARGE_BYTES, PublicationLimits, decode

T = TypeVar("T")


class PlainPublish:
    """What is done with the plain requests of one path. `publisher` never suspends when it publishes."""

    def __init__(self, publisher: Publisher, guard: KeyGuard, limits: PublicationLimits, stats: Stats) -> None:
        self._publisher = publisher
        self._guard = guard
        self._limits = limits
        self._stats = stats
        self._most = min(limits.max_publish_size, LARGE_BYTES)  # what is larger is decoded in pieces

    def takes(self, head: PlainHead) -> bool:
        """Whether a request with this head may be answered here once its body has come."""
        headers = head.headers
        if head.method != b"POST" or head.length > self._most or b"content-length" not in headers:
            return False
        return b"content-encoding" not in headers and self._guard.knows(headers.get(b"authorization", b"").decode())

    def answer(self, head: PlainHead, body: bytes) -> bytes | None:
        """The whole response; None if it is not for here to give, and then nothing has happened."""
        try:
            publications = decode(body, self._limits, head.headers.get(b"idempotency-key", b"").decode())
            if isinstance(publications, RemoteDisconnect):
                return None
            return created(shown(completed(self._publisher.publish(publications))))
        except RopewalkError:
            return None

    def cut(self) -> None:
        """The connection was lost in the middle of a body."""
        self._stats.publications_refused += 1
        self._guard.refused(Refusal.BAD_BODY)


PlainPaths = Mapping[bytes, PlainPublish]


def completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("it was to be done at once")


_CREATED = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %%d\r\nDate: %s\r\nServer: %s\r\n\r\n%%b"


class _Created:
    """The head of a 201, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._template = b""

    def __call__(self, body: bytes) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._template = (_CREATED % (formatdate(second, usegmt=True), SERVER_SOFTWARE)).encode()
        return self._template % (len(body), body)


created = _Created()
