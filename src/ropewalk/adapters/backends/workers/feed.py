"""The feed of a worker.

Invariant: nothing is lost while the connection stands. After a lost connection the worker listens again to all its streams, and
readers look for missed messages.
"""

import asyncio
from collections.abc import Awaitable, Sequence

from ropewalk.adapters.backends.memory.calls import CallKind, call
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.calls import Caller
from ropewalk.adapters.backends.workers.link import StoreLink
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.model.sessions import EndRequest, SessionTaken, SessionWanted
from ropewalk.ports import Deliver, OnDisconnectRequest, OnMissed, ignore_missed

MAX_UNANSWERED = 64 * 1024
"""Bytes of runs that are sent before the worker waits for an answer."""

LISTENED_AT_ONCE = 10_000


class FeedReceiver:
    """Receives what a store sends to a process. The connection may be open before the feed is started and after it is stopped.
    There are no sessions then."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None
        self._end: OnDisconnectRequest | None = None
        self._ending: set[asyncio.Future[int]] = set()

    def start(self, deliver: Deliver, end: OnDisconnectRequest) -> None:
        self._deliver, self._end = deliver, end

    def stop(self) -> None:
        self._deliver = self._end = None

    @call()
    def deliver(self, messages: list[Registered]) -> None:
        if self._deliver is not None:
            self._deliver(messages)

    @call()
    def deliver_runs(self, runs: list[wire.CarriedRun]) -> None:
        if self._deliver is not None:
            self._deliver([wire.run_of(run) for run in runs])

    @call()
    def session_taken(self, notice: SessionTaken) -> None:
        task = asyncio.ensure_future(self._carry_out(notice))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @call(CallKind.TASK)
    async def disconnect(self, request: RemoteDisconnect) -> int:
        return await self._carry_out(request)

    @call(CallKind.TASK)
    async def release(self, wanted: SessionWanted) -> int:
        return await self._carry_out(wanted)

    async def _carry_out(self, request: EndRequest) -> int:
        return 0 if self._end is None else await self._end(request)


class WorkerFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`."""

    exact = False
    reports_losses = True

    def __init__(self, caller: Caller, receiver: FeedReceiver) -> None:
        self._caller = caller
        self._receiver = receiver
        self._listening: set[str] = set()
        self._prefixes: set[bytes] = set()
        self._missed: OnMissed = ignore_missed
        self._unanswered_bytes = 0

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: OnMissed = ignore_missed) -> None:
        self._missed = missed
        self._receiver.start(deliver, obey)

    async def stop(self) -> None:
        self._receiver.stop()

    async def listen(self, stream: str) -> None:
        self._listening.add(stream)
        await self._caller.call("listen", [stream])

    def unlisten(self, stream: str) -> None:
        self._listening.discard(stream)
        self._caller.note("unlisten", stream)

    async def listen_prefix(self, prefix: bytes) -> None:
        self._prefixes.add(prefix)
        await self._caller.call("listen_prefixes", [prefix])

    def unlisten_prefix(self, prefix: bytes) -> None:
        self._prefixes.discard(prefix)
        self._caller.note("unlisten_prefix", prefix)

    def publish(self, messages: Sequence[Registered]) -> None:
        self._caller.note("publish", messages)

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """Unacknowledged up to a limit, then one acknowledged call, which is answered when the workers are not behind. So a
        fast publisher waits for them, and a slow one does not."""
        carried = [wire.carried(run) for run in runs]
        self._unanswered_bytes += sum([len(run.frame) for run in runs])
        if not confirm and self._unanswered_bytes < MAX_UNANSWERED and self._caller.note("publish_runs", carried):
            return None
        self._unanswered_bytes = 0
        return self._caller.call("publish_runs", carried)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        ended: int = await self._caller.call("disconnect_all", request)
        return ended

    def health(self) -> str:
        return ""

    async def listen_again(self, link: StoreLink) -> None:
        """On a new connection."""
        streams = list(self._listening)
        for begin in range(0, len(streams), LISTENED_AT_ONCE):
            await link.again("listen", streams[begin : begin + LISTENED_AT_ONCE])
        if self._prefixes:
            await link.again("listen_prefixes", list(self._prefixes))
        self._missed()
