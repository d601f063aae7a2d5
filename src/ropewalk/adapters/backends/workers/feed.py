"""The feed of a worker.

Invariant: nothing is lost while the connection stands. After a lost connection the worker listens again to all its streams, and
readers look for missed messages.
"""

from collections.abc import Awaitable, Sequence

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.link import Caller, FeedReceiver, StoreLink
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.ports import Deliver, OnDisconnectRequest, OnMissed, ignore_missed

MAX_UNANSWERED = 64 * 1024
"""Bytes of runs that are sent before the worker waits for an answer."""

LISTENED_AT_ONCE = 10_000


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
