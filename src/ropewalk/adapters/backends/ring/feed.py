"""The feed of a ring: messages that any node registers.

Invariant: this process listens to every stream with subscribers here at the node that holds its shard. After a shard moved or a
node reconnected it listens again, and readers look for missed messages.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from ropewalk.adapters.backends.memory.calls import call
from ropewalk.adapters.backends.ring.links import ActiveDisconnects
from ropewalk.adapters.backends.ring.router import Router, SendCall, gathered
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.backend import LISTENED_AT_ONCE, MAX_UNANSWERED
from ropewalk.adapters.backends.workers.link import FeedReceiver
from ropewalk.adapters.backends.workers.server import DISCONNECT_SECONDS, KEPT_DISCONNECTS_SECONDS, MAX_DISCONNECTS
from ropewalk.model.errors import Moved, Unavailable
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.model.ring import RingNews
from ropewalk.model.sessions import EndRequest
from ropewalk.ports import Deliver, OnDisconnectRequest, OnMissed, ignore_missed

logger = logging.getLogger("ropewalk.ring")


class RingReceiver(FeedReceiver):
    """Receives what the stores of a ring send to a process.

    Args:
        learn: merges the ring state that the store process of this node sends to its workers.
    """

    def __init__(self, learn: Callable[[RingNews], None]) -> None:
        super().__init__()
        self.active_disconnects = ActiveDisconnects()
        self._learn = learn

    @call()
    def ring_changed(self, news: RingNews) -> None:
        self._learn(news)

    async def _carry_out(self, request: EndRequest) -> int:
        if not isinstance(request, RemoteDisconnect):
            return await super()._carry_out(request)
        with self.active_disconnects.running(request.identifier):
            return await super()._carry_out(request)


class RingFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`."""

    exact = False
    reports_losses = True

    def __init__(self, router: Router, receiver: FeedReceiver) -> None:
        self._router = router
        self._receiver = receiver
        self._streams: dict[int, set[str]] = {}  # with subscribers here, by shard
        self._prefixes: set[bytes] = set()
        self._unanswered_bytes: dict[str, int] = {}  # of runs, by node
        self._missed: OnMissed = ignore_missed
        self._orders: deque[tuple[float, RemoteDisconnect]] = deque(maxlen=MAX_DISCONNECTS)

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: OnMissed = ignore_missed) -> None:
        self._missed = missed
        self._receiver.start(deliver, obey)

    async def stop(self) -> None:
        self._receiver.stop()

    # --- interest -----------------------------------------------------------------------------------------------------

    async def listen(self, stream: str) -> None:
        self._streams.setdefault(self._router.shard(stream), set()).add(stream)
        await self._router.call(stream, "listen", [stream])

    def unlisten(self, stream: str) -> None:
        shard = self._router.shard(stream)
        if streams := self._streams.get(shard):
            streams.discard(stream)
            if not streams:
                del self._streams[shard]
        if (node := self._router.nodes.get(self._router.holder(stream))) is not None:
            node.note("unlisten", stream)

    async def listen_prefix(self, prefix: bytes) -> None:
        """Listen at every node: each may have streams with it. Unreachable nodes receive the call when they reconnect."""
        self._prefixes.add(prefix)
        await self._router.call_all("listen_prefixes", [prefix])

    def unlisten_prefix(self, prefix: bytes) -> None:
        self._prefixes.discard(prefix)
        for node in self._router.nodes.values():
            node.note("unlisten_prefix", prefix)

    async def listen_at(self, node: str, call: SendCall, shards: Sequence[int] | None = None) -> None:
        """Listen to all wanted streams that the node holds, or to those of some shards. Prefix subscribers listen at every
        node, so they miss nothing when a shard moves."""
        holder = self._router.state.holder
        wanted = [shard for shard in self._streams if holder(shard) == node and (shards is None or shard in shards)]
        streams = [stream for shard in wanted for stream in self._streams[shard]]
        for begin in range(0, len(streams), LISTENED_AT_ONCE):
            await call("listen", streams[begin : begin + LISTENED_AT_ONCE])
        self._missed(streams)

    async def listen_to_prefixes(self, call: SendCall) -> None:
        """Listen to all prefixes at a connecting node, including prefixes added meanwhile."""
        sent: set[bytes] = set()
        while unsent := self._prefixes - sent:
            await call("listen_prefixes", list(unsent))
            sent |= unsent
        self.missed_by_prefixes()

    def missed_by_prefixes(self) -> None:
        """Prefix subscribers cannot look for missed messages, so they receive a gap."""
        if self._prefixes:
            self._missed()

    def not_at(self, node: str, shards: Sequence[int]) -> None:
        """The node no longer holds these shards."""
        if (calls := self._router.nodes.get(node)) is not None:
            for shard in shards:
                for stream in self._streams.get(shard, ()):
                    calls.note("unlisten", stream)

    def publish(self, messages: Sequence[Registered]) -> None:
        by_node: dict[str, list[Registered]] = {}
        for message in messages:
            by_node.setdefault(self._router.holder(message.stream), []).append(message)
        for name, some in by_node.items():
            if (node := self._router.nodes.get(name)) is not None and node.note("publish", some):
                self._router.went_to(name, len(some))

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """Unacknowledged up to a limit, then one acknowledged call, as in a worker."""
        by_node: dict[str, list[TransientRun]] = {}
        for run in runs:
            by_node.setdefault(self._router.holder(run.stream), []).append(run)
        waited = [
            self._call_with_runs(name, some) for name, some in by_node.items() if confirm or not self._note_runs(name, some)
        ]
        return _all(waited) if waited else None

    def _note_runs(self, name: str, runs: Sequence[TransientRun]) -> bool:
        size = self._unanswered_bytes.get(name, 0) + sum([len(run.frame) for run in runs])
        node = self._router.nodes.get(name)
        noted = size < MAX_UNANSWERED and node is not None and node.note("publish_runs", [wire.carried(run) for run in runs])
        self._unanswered_bytes[name] = size if noted else 0
        if noted:
            self._router.went_to(name, sum([run.count for run in runs]))
        return noted

    async def _call_with_runs(self, name: str, runs: Sequence[TransientRun]) -> None:
        carried = [wire.carried(run) for run in runs]
        node = self._router.nodes.get(name)
        if node is not None and node.connected:
            try:
                await node.call("publish_runs", carried)
                self._router.went_to(name, sum([run.count for run in runs]))
                return
            except Moved:  # nothing has happened; they may have gone to several nodes
                pass
        for run in carried:
            await self._router.call(run.stream, "publish_runs", [run])
            self._router.went_to(self._router.holder(run.stream), run.count)

    # --- disconnect requests ------------------------------------------------------------------------------------------

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Every node ends its own sessions; then the rest in the stores is ended. An unreachable node receives the request when
        it reconnects."""
        now = time.monotonic()
        self._orders.append((now, request))
        before = await self._router.ask_all("identity", request.identifier)
        ended: int = sum((await self._router.ask_all("disconnect", request, timeout=DISCONNECT_SECONDS)).values())
        reached = self._router.reached()
        left_at = {node: sids for node, sids in before.items() if node in reached and sids}
        rest = {node: reached[node].call("end_rest", sids, request.reconnect) for node, sids in left_at.items()}
        left: int = sum((await gathered(rest)).values())
        return ended + left

    async def resend_disconnects(self, call: SendCall, since: float) -> None:
        """Send the requests that a node missed while it was unreachable."""
        now = time.monotonic()
        while self._orders and self._orders[0][0] < now - KEPT_DISCONNECTS_SECONDS:
            self._orders.popleft()
        for when, order in list(self._orders):
            if when >= since:
                try:
                    await call("disconnect", order)
                except Unavailable as error:
                    logger.warning("a node did not receive a remote disconnect", extra={"reason": str(error)})

    def health(self) -> str:
        return ""


async def _all(waited: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*waited)
