"""Farewells: the application hears once of each session that it knew and that is gone for good. Then the session is over, and
the journal is told so: what it has not been told is said after the next start.

They wait in a bounded queue and go out at a bounded rate, so that a crowd that leaves at once does not drown the application.
One that cannot be reached is tried again: what waits behind would meet the same fate. One that was asked and did not answer is
asked again only a few times, for it may have heard.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress

from ropewalk.core.stats import Stats
from ropewalk.engine.annals import Annals
from ropewalk.model.application import Caller, Farewell
from ropewalk.model.errors import RopewalkError, Unanswered, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Application

logger = logging.getLogger("ropewalk.application")

SPEAKERS = 8  # calls at once
FIRST_WAIT = 0.5  # seconds, doubled up to the longest while the application cannot be reached
LONGEST_WAIT = 30.0
MOST_ASKED = 3  # times, without an answer
MOST_AT_ONCE = 10_000  # sessions that a node without an application lets go of in one round


class Farewells:
    """The farewells of a node without an application: nobody has to hear of a session."""

    def __init__(self, annals: Annals) -> None:
        self._annals = annals

    def start(self) -> None: ...

    def say(self, sid: str, snapshot: SessionSnapshot) -> None:
        """The session is gone for good. Never blocks."""
        self._annals.ended(sid)

    def room(self) -> int:
        """How many more may wait."""
        return MOST_AT_ONCE

    async def finish(self) -> None:
        """The node ends: say what waits, as fast as the application can hear it; the caller bounds the time."""


class QueuedFarewells(Farewells):
    def __init__(self, application: Application, limits: Limits, stats: Stats, annals: Annals) -> None:
        super().__init__(annals)
        self._application = application
        self._backlog = limits.disconnect_backlog
        self._pause = SPEAKERS / limits.disconnect_rate if limits.disconnect_rate else 0.0
        self._stats = stats
        self._waiting: deque[Farewell] = deque()
        self._some = asyncio.Event()
        self._ending = asyncio.Event()
        self._speakers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._speakers = [asyncio.get_running_loop().create_task(self._speak()) for _ in range(SPEAKERS)]

    def say(self, sid: str, snapshot: SessionSnapshot) -> None:
        if snapshot.app is None or not snapshot.app.known:
            self._annals.ended(sid)
            return
        if self.room() <= 0:
            if not self._stats.app_disconnects_dropped:
                logger.error("the application does not hear of sessions that end: too many wait", extra={"most": self._backlog})
            self._drop(sid)
            return
        self._waiting.append(farewell_of(sid, snapshot))
        self._some.set()

    def room(self) -> int:
        return self._backlog - len(self._waiting)

    async def finish(self) -> None:
        self._ending.set()
        self._some.set()
        try:
            if self._speakers:
                await asyncio.wait(self._speakers)
        finally:
            for speaker in self._speakers:
                speaker.cancel()
            await asyncio.gather(*self._speakers, return_exceptions=True)

    async def _speak(self) -> None:
        while not (self._ending.is_set() and not self._waiting):
            if self._waiting:
                await self._deliver(self._waiting.popleft())
                await self._rest(self._pause)
            else:
                self._some.clear()
                await self._some.wait()

    async def _deliver(self, farewell: Farewell) -> None:
        wait, asked = FIRST_WAIT, 0
        while True:
            try:
                await self._application.disconnect(farewell)
                return self._annals.ended(farewell.caller.sid)
            except Unavailable as error:
                asked += isinstance(error, Unanswered)
                if self._ending.is_set():
                    return self._give_up()
                if self.room() <= 0 or asked >= MOST_ASKED:  # newer ones wait too; this one had its chance
                    return self._drop(farewell.caller.sid)
            except RopewalkError as error:
                logger.warning("the application failed at a disconnect", extra={"reason": str(error)})
                return self._annals.ended(farewell.caller.sid)
            await self._rest(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _drop(self, sid: str) -> None:
        self._stats.app_disconnects_dropped += 1
        self._annals.ended(sid)

    def _give_up(self) -> None:
        """The node ends, and what waits would meet the same fate."""
        left = 1 + len(self._waiting)
        self._waiting.clear()
        if self._annals.lasting:
            logger.warning("the application hears of sessions that ended after the next start", extra={"sessions": left})
            return
        self._stats.app_disconnects_dropped += left
        logger.error("the application did not hear of sessions that ended with the server", extra={"sessions": left})

    async def _rest(self, seconds: float) -> None:
        """Cut short by the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()


def farewell_of(sid: str, snapshot: SessionSnapshot) -> Farewell:
    assert snapshot.app is not None
    granted = {name: each.state for name, each in snapshot.subscriptions.items() if each.state is not None}
    return Farewell(Caller(sid, snapshot.app.url, snapshot.app.headers, snapshot.ids, snapshot.app.state), granted)
