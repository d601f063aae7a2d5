"""Sends pings. Sessions with the same interval share one timer and are spread over the slots of a wheel.

What happens when a client does not answer is decided in `timeouts`.
"""

import asyncio

from ropewalk.engine.session import Session
from ropewalk.engine.session_node import Beat
from ropewalk.engine.tasks import Tasks
from ropewalk.engine.timeouts import Timeouts
from ropewalk.model.limits import Limits
from ropewalk.model.sessions import ClientOptions
from ropewalk.ports import Clock
from ropewalk.protocol.codec import SessionCodec

SLOTS = 16


class Wheel:
    """The sessions of one beat, spread over its slots."""

    def __init__(self) -> None:
        self.slots: list[dict[Session, None]] = [{} for _ in range(SLOTS)]
        self.task: asyncio.Task[None] | None = None

    def empty(self) -> bool:
        return not any(self.slots)


class Heartbeat:
    def __init__(self, limits: Limits, clock: Clock, tasks: Tasks, timeouts: Timeouts) -> None:
        self._limits = limits
        self._clock = clock
        self._tasks = tasks
        self._timeouts = timeouts
        self._wheels: dict[Beat, Wheel] = {}

    def beat(self, options: ClientOptions) -> Beat:
        """What the client asked for; what it left open is the server's own."""
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
            # Base clients answer native pings only. Behind an outbox a ping cannot be seen yet: there the write timeout counts.
            if (session.extended or codec.native_pings) and not session.link.slow:
                self._timeouts.pinged(session)


def _slot(session: "Session") -> int:
    return hash(session.sid) % SLOTS
