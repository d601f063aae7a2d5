"""The disconnect queue: reports each session that has ended to the application once, if the application knew it.

After the call the journal records that the session has ended. Calls that were not made before the process stops are made
after the next start. The queue and its rate are bounded, so that a mass disconnect does not overload the application. A call
that did not reach the application is retried. A call that timed out is repeated only a few times, because it may have been
processed.
"""

import asyncio
import itertools
import logging
from collections import deque
from contextlib import suppress

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.stats import Stats
from ropewalk.engine.session_log import SessionLog
from ropewalk.model.application import CallContext, DisconnectCall
from ropewalk.model.errors import RopewalkError, Unanswered, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Application

logger = logging.getLogger("ropewalk.application")

WORKERS = 8  # calls at once
BETWEEN_ATTEMPTS = Backoff(0.5, 30.0)  # while the application cannot be reached
MAX_UNANSWERED_ATTEMPTS = 3
MAX_ENDED_PER_ROUND = 10_000  # sessions that a node without an application ends in one round


class DisconnectQueue:
    """The queue of a node without an application: sessions end without a call."""

    def __init__(self, session_log: SessionLog) -> None:
        self._session_log = session_log

    def start(self) -> None: ...

    def put(self, sid: str, snapshot: SessionSnapshot) -> None:
        """The session has ended for good. Never blocks."""
        self._session_log.ended(sid)

    def free_slots(self) -> int:
        """How many more calls may be queued."""
        return MAX_ENDED_PER_ROUND

    async def finish(self) -> None:
        """At shutdown: make the queued calls as fast as the application takes them. The caller bounds the time."""


class ApplicationDisconnectQueue(DisconnectQueue):
    def __init__(self, application: Application, limits: Limits, stats: Stats, session_log: SessionLog, chance: Chance) -> None:
        super().__init__(session_log)
        self._application = application
        self._backlog = limits.disconnect_backlog
        self._pause = WORKERS / limits.disconnect_rate if limits.disconnect_rate else 0.0
        self._stats = stats
        self._chance = chance
        self._waiting: deque[DisconnectCall] = deque()
        self._some = asyncio.Event()
        self._ending = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._workers = [asyncio.get_running_loop().create_task(self._work()) for _ in range(WORKERS)]

    def put(self, sid: str, snapshot: SessionSnapshot) -> None:
        if snapshot.app is None or not snapshot.app.known:
            self._session_log.ended(sid)
            return
        if self.free_slots() <= 0:
            if not self._stats.app_disconnects_dropped:
                logger.error(
                    "disconnect queue is full: ended sessions are not reported to the application",
                    extra={"most": self._backlog},
                )
            self._drop(sid)
            return
        self._waiting.append(build_disconnect_call(sid, snapshot))
        self._some.set()

    def free_slots(self) -> int:
        return self._backlog - len(self._waiting)

    async def finish(self) -> None:
        self._ending.set()
        self._some.set()
        try:
            if self._workers:
                await asyncio.wait(self._workers)
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        while not (self._ending.is_set() and not self._waiting):
            if self._waiting:
                await self._deliver(self._waiting.popleft())
                await self._rest(self._pause)
            else:
                self._some.clear()
                await self._some.wait()

    async def _deliver(self, disconnect_call: DisconnectCall) -> None:
        unanswered = 0
        for attempt in itertools.count():
            try:
                await self._application.disconnect(disconnect_call)
                return self._session_log.ended(disconnect_call.context.sid)
            except Unavailable as error:
                unanswered += isinstance(error, Unanswered)
                if self._ending.is_set():
                    return self._give_up()
                if self.free_slots() <= 0 or unanswered >= MAX_UNANSWERED_ATTEMPTS:
                    return self._drop(disconnect_call.context.sid)
            except RopewalkError as error:
                logger.warning("the application failed at a disconnect", extra={"reason": str(error)})
                return self._session_log.ended(disconnect_call.context.sid)
            await self._rest(BETWEEN_ATTEMPTS.delay(attempt, self._chance))

    def _drop(self, sid: str) -> None:
        self._stats.app_disconnects_dropped += 1
        self._session_log.ended(sid)

    def _give_up(self) -> None:
        """The node stops, and the queued calls would fail too."""
        left = 1 + len(self._waiting)
        self._waiting.clear()
        if self._session_log.lasting:
            logger.warning("disconnects are left for the next start", extra={"sessions": left})
            return
        self._stats.app_disconnects_dropped += left
        logger.error("disconnects were not reported to the application", extra={"sessions": left})

    async def _rest(self, seconds: float) -> None:
        """Ends early when the node stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()


def build_disconnect_call(sid: str, snapshot: SessionSnapshot) -> DisconnectCall:
    assert snapshot.app is not None
    granted = {name: each.state for name, each in snapshot.subscriptions.items() if each.state is not None}
    return DisconnectCall(CallContext(sid, snapshot.app.url, snapshot.app.headers, snapshot.ids, snapshot.app.state), granted)
