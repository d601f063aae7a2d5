"""Pings and connection timeouts: unanswered pings, and connections whose pending bytes are not taken.

Time is counted in ticks of one task that all sessions share. It runs only while a session is watched. So neither a clock change
nor a stalled event loop ends a connection: frames that the client sent meanwhile are read before the next tick.
"""

import asyncio
import logging
from math import ceil

from ropewalk.core.stats import Stats
from ropewalk.engine.session import Session
from ropewalk.engine.session_node import Beat
from ropewalk.engine.tasks import Tasks
from ropewalk.model import closing as closings
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ClientOptions
from ropewalk.ports import Clock
from ropewalk.protocol.codec import SessionCodec

TICK = 0.25  # seconds; a timeout acts up to one tick late, never early


class Timeouts:
    """Watches sessions from a ping to its answer, and while their link is paused. Idle sessions cost nothing."""

    def __init__(self, limits: Limits, stats: Stats, tasks: Tasks) -> None:
        self._pong_ticks = _ticks(limits.pong_timeout)
        self._write_ticks = _ticks(limits.write_timeout)
        self._stats = stats
        self._tasks = tasks
        self._now = 0
        self._pinged: dict[Session, int] = {}  # tick of the oldest unanswered ping, in the order of these ticks
        self._paused: dict[Session, tuple[int, int]] = {}  # tick of the last progress, and bytes that were unsent then
        self._running = False

    def pinged(self, session: "Session") -> None:
        """Start the pong timeout, counted from the oldest unanswered ping."""
        if self._pong_ticks:
            self._pinged.setdefault(session, self._now)
            self._run()

    def note_activity(self, session: "Session") -> None:
        self._pinged.pop(session, None)

    def paused(self, session: "Session") -> None:
        """The connection takes no more for now. It took bytes before, so the write timeout starts here."""
        if self._write_ticks:
            self._paused[session] = self._now, -1
            self._run()

    def forget(self, session: "Session") -> None:
        self._pinged.pop(session, None)
        self._paused.pop(session, None)

    def tick(self) -> None:
        self._now += 1
        for session in self._silent():
            self._end(session, closings.NO_PONG, Refusal.PONG_TIMEOUT)
        for session in self._stuck():
            self._end(session, closings.TOO_SLOW, Refusal.WRITE_TIMEOUT)

    def _silent(self) -> "list[Session]":
        due: list[Session] = []
        for session, since in self._pinged.items():
            if self._now - since < self._pong_ticks:
                break
            due.append(session)
        for session in due:
            del self._pinged[session]
            if session.unread:
                self._pinged[session] = self._now
        return [session for session in due if session not in self._pinged]

    def _stuck(self) -> "list[Session]":
        due: list[Session] = []
        for session, (since, before) in list(self._paused.items()):
            unsent = session.link.unsent()
            if not session.link.stuck:
                del self._paused[session]
            elif unsent != before:
                self._paused[session] = self._now, unsent
            elif self._now - since >= self._write_ticks:
                due.append(session)
        return due

    def _end(self, session: "Session", closing: closings.Closing, refusal: Refusal) -> None:
        self.forget(session)
        self._stats.refusals[refusal] += 1
        logger.debug("timed out", extra={"session": session.tag, "reason": refusal.value})
        session.end(closing)

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self._tasks.spawn(self._turn())

    async def _turn(self) -> None:
        while self._pinged or self._paused:
            await asyncio.sleep(TICK)
            try:
                self.tick()
            except Exception:  # one connection that cannot be ended must not stop the timeouts of the others
                logger.exception("a timeout failed")
        self._running = False


def _ticks(seconds: float) -> int:
    """Ticks that take at least `seconds`, even if they begin between two ticks. 0 disables the timeout."""
    return ceil(seconds / TICK) + 1 if seconds > 0 else 0


SLOTS = 16


class Wheel:
    """The sessions of one beat, spread over its slots."""

    def __init__(self) -> None:
        self.slots: list[dict[Session, None]] = [{} for _ in range(SLOTS)]
        self.task: asyncio.Task[None] | None = None

    def empty(self) -> bool:
        return not any(self.slots)


class Heartbeat:
    """Sends pings. Sessions with the same interval share one timer and are spread over the slots of a wheel."""

    def __init__(self, limits: Limits, clock: Clock, tasks: Tasks, timeouts: Timeouts) -> None:
        self._limits = limits
        self._clock = clock
        self._tasks = tasks
        self._timeouts = timeouts
        self._wheels: dict[Beat, Wheel] = {}

    def beat(self, options: ClientOptions) -> Beat:
        """The ping options of the client, with the server's defaults."""
        interval = self._limits.ping_interval if options.ping_interval is None else options.ping_interval
        return interval, options.ping_units or self._limits.ping_units

    def add(self, session: "Session") -> None:
        if session.beat[0] <= 0:
            return
        wheel = self._wheels.setdefault(session.beat, Wheel())
        wheel.slots[_slot(session)][session] = None
        if wheel.task is None:
            wheel.task = self._tasks.spawn(self._turn(session.beat, wheel))

    def remove(self, session: "Session") -> None:
        if wheel := self._wheels.get(session.beat):
            wheel.slots[_slot(session)].pop(session, None)

    async def _turn(self, beat: Beat, wheel: Wheel) -> None:
        while not wheel.empty():
            for slot in wheel.slots:
                await asyncio.sleep(beat[0] / SLOTS)
                self._ping(slot, int(self._clock() * beat[1]))
        del self._wheels[beat]

    def _ping(self, slot: "dict[Session, None]", timestamp: int) -> None:
        frames: dict[SessionCodec, bytes] = {}
        for session in list(slot):
            codec = session.link.codec
            if codec not in frames:
                frames[codec] = codec.ping(timestamp)
            session.link.send(frames[codec])
            # Base clients answer native pings only. A ping in an outbox is not sent yet: there the write timeout applies.
            if (session.extended or codec.native_pings) and not session.link.slow:
                self._timeouts.pinged(session)


def _slot(session: "Session") -> int:
    return hash(session.sid) % SLOTS


logger = logging.getLogger("ropewalk.session")
