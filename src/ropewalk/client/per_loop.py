"""One aiohttp session for each event loop, made at its first use and closed with its loop.

The session lives inside an asynchronous generator: whoever runs a loop properly (`asyncio.run`, uvicorn, pytest-asyncio) closes
the loop's generators before the loop itself, and so our connections too, without a word from the program.
"""

import asyncio
import ssl
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator

from aiohttp import ClientSession

from ropewalk.client.trust import session_trusting

_Holder = AsyncGenerator[ClientSession, None]


class SessionPerLoop:
    """Safe to use from the loops of several threads: each sees its own entry only."""

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
            # Nothing in there waits, so no other task of this loop comes between the question and the entry.
            self._held[loop] = await anext(holder), holder
        return self._held[loop][0]

    async def close(self) -> None:
        """Close the session of the running loop, for loops that end without closing their generators."""
        _, holder = self._held.get(asyncio.get_running_loop(), (None, None))
        if holder is not None:
            await holder.aclose()

    async def _hold(self, loop: AbstractEventLoop) -> _Holder:
        try:
            async with session_trusting(self._tls) as http:
                yield http
        finally:
            self._held.pop(loop, None)

    def _forget_closed_loops(self) -> None:
        for loop in list(self._held):
            if loop.is_closed():
                self._held.pop(loop, None)
