"""Brings what is registered at any node of a ring to this one.

Invariant: for every stream that is wanted here, the node that holds its shard is told so, at the latest when the shard moves or
the node is reached again. After either, readers look for what they have missed.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ropewalk.adapters.backends.ring.links import OwnStore
from ropewalk.adapters.backends.ring.router import Router, gathered
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.backend import LISTENED_AT_ONCE, MAX_UNANSWERED
from ropewalk.adapters.backends.workers.link import StoreLink
from ropewalk.adapters.backends.workers.server import MAX_DISCONNECTS, OBEY_SECONDS, ORDERS_SECONDS
from ropewalk.model.errors import Moved, Unavailable
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.model.sessions import EndRequest, SessionTaken
from ropewalk.ports import Deliver, OnDisconnectRequest, OnMissed, ignore_missed

logger = logging.getLogger("ropewalk.ring")

Call = Callable[..., Awaitable[Any]]


class RingFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`. `own` is the store of this node."""

    exact = False
    reports_losses = True

    def __init__(self, router: Router, own: OwnStore) -> None:
        self._router = router
        self._own = own
        self._streams: dict[int, set[str]] = {}  # that are wanted here, by shard
        self._prefixes: set[bytes] = set()
        self._unanswered_bytes: dict[str, int] = {}  # of runs, by node
        self._deliver: Deliver | None = None
        self._obey: OnDisconnectRequest | None = None
        self._missed: OnMissed = ignore_missed
        self._orders: deque[tuple[float, RemoteDisconnect]] = deque(maxlen=MAX_DISCONNECTS)
        self._obeying: set[asyncio.Future[int]] = set()

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: OnMissed = ignore_missed) -> None:
        self._deliver, self._obey, self._missed = deliver, obey, missed
        self._own.serve_here(deliver, obey)

    async def stop(self) -> None:
        self._deliver = self._obey = None
        self._own.serve_here(None, None)

    def join(self, link: StoreLink) -> None:
        """What comes over this link is for this feed."""
        link.notes.update(deliver=self._take, runs=self._take_runs, order=self._take_order)
        link.calls.update(obey=self._carry_out, release=self._carry_out)

    def _take(self, messages: Sequence[Registered]) -> None:
        if self._deliver is not None:
            self._deliver(messages)

    def _take_runs(self, runs: Sequence[wire.CarriedRun]) -> None:
        if self._deliver is not None:
            self._deliver([wire.run_of(run) for run in runs])

    def _take_order(self, order: SessionTaken) -> None:
        task = asyncio.ensure_future(self._carry_out(order))
        self._obeying.add(task)
        task.add_done_callback(self._obeying.discard)

    async def _carry_out(self, order: EndRequest) -> int:
        if self._obey is None:
            return 0
        if not isinstance(order, RemoteDisconnect):
            return await self._obey(order)
        with self._own.active_disconnects.running(order.identifier):
            return await self._obey(order)

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
        """At every node: each has streams that begin with anything. Those that are not reached are told when they are."""
        self._prefixes.add(prefix)
        await self._router.call_all("listen_prefixes", [prefix])

    def unlisten_prefix(self, prefix: bytes) -> None:
        self._prefixes.discard(prefix)
        for node in self._router.nodes.values():
            node.note("unlisten_prefix", prefix)

    async def listen_at(self, node: str, call: Call, shards: Sequence[int] | None = None) -> None:
        """Everything that is wanted of what the node holds, or of some of its shards. Those who follow streams by prefix hear
        every node, wherever a shard is: they miss nothing when one moves."""
        holder = self._router.state.holder
        wanted = [shard for shard in self._streams if holder(shard) == node and (shards is None or shard in shards)]
        streams = [stream for shard in wanted for stream in self._streams[shard]]
        for begin in range(0, len(streams), LISTENED_AT_ONCE):
            await call("listen", streams[begin : begin + LISTENED_AT_ONCE])
        self._missed(streams)

    async def listen_to_prefixes(self, call: Call) -> None:
        """At a node that is about to be reached. When this returns, it knows of all: also of those that came meanwhile, which
        were told to the nodes that are reached already."""
        told: set[bytes] = set()
        while untold := self._prefixes - told:
            await call("listen_prefixes", list(untold))
            told |= untold
        self.missed_by_prefixes()

    def missed_by_prefixes(self) -> None:
        """Whoever follows streams by prefix cannot look for what did not come."""
        if self._prefixes:
            self._missed()

    def not_at(self, node: str, shards: Sequence[int]) -> None:
        """It does not hold these any more."""
        if (calls := self._router.nodes.get(node)) is not None:
            for shard in shards:
                for stream in self._streams.get(shard, ()):
                    calls.note("unlisten", stream)

    def publish(self, messages: Sequence[Registered]) -> None:
        by_node: dict[str, list[Registered]] = {}
        for message in messages:
            by_node.setdefault(self._router.holder(message.stream), []).append(message)
        for name, some in by_node.items():
            if (node := self._router.nodes.get(name)) is not None and node.note("tell", some):
                self._router.went_to(name, len(some))

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """After some notes a call, as a worker does."""
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
        noted = size < MAX_UNANSWERED and node is not None and node.note("run", [wire.carried(run) for run in runs])
        self._unanswered_bytes[name] = size if noted else 0
        if noted:
            self._router.went_to(name, sum([run.count for run in runs]))
        return noted

    async def _call_with_runs(self, name: str, runs: Sequence[TransientRun]) -> None:
        carried = [wire.carried(run) for run in runs]
        node = self._router.nodes.get(name)
        if node is not None and node.connected:
            try:
                await node.call("run", carried)
                self._router.went_to(name, sum([run.count for run in runs]))
                return
            except Moved:  # nothing has happened; they may have gone to several nodes
                pass
        for run in carried:
            await self._router.call(run.stream, "run", [run])
            self._router.went_to(self._router.holder(run.stream), run.count)

    # --- orders -------------------------------------------------------------------------------------------------------

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Every node ends its own; then what is left of them in the stores is ended. One that is not reached hears of it when
        it is back."""
        now = time.monotonic()
        self._orders.append((now, request))
        before = await self._router.ask_all("identity", request.identifier)
        ended: int = sum((await self._router.ask_all("disconnect", request, timeout=OBEY_SECONDS)).values())
        reached = self._router.reached()
        left_at = {node: sids for node, sids in before.items() if node in reached and sids}
        rest = {node: reached[node].call("end_rest", sids, request.reconnect) for node, sids in left_at.items()}
        left: int = sum((await gathered(rest)).values())
        return ended + left

    async def resend_disconnects(self, call: Call, since: float) -> None:
        """To a node that was away."""
        now = time.monotonic()
        while self._orders and self._orders[0][0] < now - ORDERS_SECONDS:
            self._orders.popleft()
        for when, order in list(self._orders):
            if when >= since:
                try:
                    await call("disconnect", order)
                except Unavailable as error:
                    logger.warning("an order to end sessions was not heard", extra={"reason": str(error)})

    def health(self) -> str:
        return ""


async def _all(waited: Sequence[Awaitable[None]]) -> None:
    await asyncio.gather(*waited)
