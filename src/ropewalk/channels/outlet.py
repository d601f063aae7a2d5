"""Where an app publishes while it is served: the server's publisher, reached from any task and any thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication, Receipt

Publish = Callable[[Sequence[Publication]], Awaitable[list[Receipt]]]


class Outlet:
    """Made on the server's event loop, which is where everything is published."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def publish(self, publication: Publication) -> Receipt:
        if asyncio.get_running_loop() is self._loop:
            return await self._send(publication)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._send(publication), self._loop))

    def publish_sync(self, publication: Publication, timeout: float) -> Receipt:
        if threading.get_ident() == self._thread:
            raise RuntimeError("app.publish_sync would block the event loop: here say `await app.publish(...)`")
        sending = asyncio.run_coroutine_threadsafe(self._send(publication), self._loop)
        try:
            return sending.result(timeout)
        except TimeoutError:
            sending.cancel()
            raise Unavailable(f"not published within {timeout:g} s") from None

    async def _send(self, publication: Publication) -> Receipt:
        return (await self._publish([publication]))[0]
