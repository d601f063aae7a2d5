"""A node of a ring: its own store, the links to all others, and what it does when the ring changes.

Invariant: this node serves a shard from when it begins it or has received all of it, until it decides to hand it over. It sends
its ring state to all others whenever that changes.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from ropewalk.adapters.backends.memory.shards import taken_out
from ropewalk.adapters.backends.ring.access import RingAccess
from ropewalk.adapters.backends.ring.calls import RingCalls, ServedShards
from ropewalk.adapters.backends.ring.feed import RingReceiver
from ropewalk.adapters.backends.ring.hand_over import ShardReceiver, ShardSender
from ropewalk.adapters.backends.ring.links import NodeDialler, NodeLink
from ropewalk.adapters.backends.workers.server import LocalWorker, StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.adapters.backends.workers.wire import BusConnection, Note
from ropewalk.core.ring_state import RingState
from ropewalk.model.errors import Conflict, Unavailable, UserMistake
from ropewalk.model.journal import Recovered, Restored
from ropewalk.model.ring import AddNode, RingChange, RingMember, RingNews, RingReport

logger = logging.getLogger("ropewalk.ring")

BETWEEN_ATTEMPTS = 0.2
"""Seconds after which a shard is tried to be handed over again."""

TO_AGREE = 3.0
"""Seconds in which the other nodes must confirm a change that was made here."""


class RingBackend(RingAccess):
    """Implements `ports.Backend` and `ports.Ring`.

    Args:
        member: this node.
        keep: called with the ring state whenever it changes, before other nodes receive it.
    """

    def __init__(
        self,
        state: RingState,
        member: RingMember,
        store: SharedStore,
        server: StoreServer,
        dialler: NodeDialler,
        keep: Callable[[RingNews], None] = lambda news: None,
    ) -> None:
        receiver = RingReceiver(lambda news: None)
        own = LocalWorker(dialler.name, receiver)
        super().__init__(state, own, receiver, dialler, store.clock)
        journal = store.journal
        self._lasting = journal is not None
        self._store = store
        self._server = server
        self._keep = keep
        self._member = member
        self._kept: RingNews | None = None
        self._cleared = False
        self._agreed_at = 0.0  # when this node last changed a table that a majority agreed on
        self._handing: asyncio.Task[None] | None = None
        self._moving: set[int] = set()
        self._sender = ShardSender(state, store, self._moving, self._follow)
        self._receiver = ShardReceiver(state, store, journal)
        served = ServedShards(state, store, self._moving, self._sender, self._receiver, self.health)
        server.attach(store, partial(RingCalls, server, served, self._merge))
        server.join(own)

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def recover(self, recovered: Recovered, sessions_ttl: float, presence_ttl: float) -> Restored:
        """Raises UserMistake for a journal with another number of shards than the ring has."""
        if not self._lasting:
            return Restored(0, 0, 0, [])
        if recovered.shards != self.state.table.shards:
            raise UserMistake(
                f"the journal has {recovered.shards} shards and the ring {self.state.table.shards}: all nodes of a ring have"
                " the same number, and a journal keeps the one that it was made with"
            )
        return self._store.recover(recovered, sessions_ttl, presence_ttl)

    async def start(self) -> None:
        """Returns before other nodes are reachable: they may wait for this one."""
        self._running = True
        self._follow()
        self._spawn(self._compare_periodically())

    async def stop(self) -> None:
        await self._end_links_and_tasks()
        await self._server.stop()
        await self._store.stop()

    def accept(self) -> BusConnection:
        """A connection of another node."""
        return self._server.accept(near=False)

    def health(self) -> str:
        taken = next((link.taken for link in self._links.values() if link.taken), "")
        if taken:
            return taken
        if self.state.has_quorum or self._is_about_to_agree():
            return ""
        away = ", ".join(sorted(name for name, link in self._links.items() if not link.connected)) or "none"
        lacking = "no more than half of the nodes of the ring are reached and go by the same table"
        return f"{lacking}; not reached: {away}{self._why_unreached()}"

    def _is_about_to_agree(self) -> bool:
        """A majority is reachable and agreed until a moment ago; its answers to a change are still missing."""
        others = len(self.state.table.members) - self.state.is_member
        reached = sum(link.connected for link in self._links.values())
        return 0.0 <= self._store.clock() - self._agreed_at < TO_AGREE and 2 * (reached + 1) > others + 1

    def _why_unreached(self) -> str:
        """Each reason once, with its nodes."""
        nodes: dict[str, list[str]] = {}
        for link in self._unreached():
            if link.reason:
                nodes.setdefault(link.reason, []).append(link.node)
        return "".join(f"; {', '.join(names)}: {reason}" for reason, names in nodes.items())

    def impairments(self) -> list[str]:
        away = super().impairments()
        return away if self.state.is_member else ["this node is not in the table of its ring", *away]

    async def sweep(self) -> None:
        await self._store.sweep()

    def reload_rules(self) -> None:
        self._store.reload_rules()

    def gauges(self) -> dict[str, float]:
        state = self.state
        return {
            **self._store.gauges(),
            **super().gauges(),
            "ring_term": state.table.term,
            "ring_nodes": len(state.table.members),
            "ring_shards_held": sum(map(state.serves, range(state.table.shards))),
        }

    def counts(self) -> dict[str, int]:
        return {**super().counts(), "ring_shards_handed_over": self._sender.handed_over}

    # --- operators ----------------------------------------------------------------------------------------------------

    def report(self, stream: str = "") -> RingReport:
        known = self.state.report({name: link.connected for name, link in self._links.items()}, stream)
        return replace(known, waits_for=self.health())

    async def add(self, member: RingMember) -> None:
        """Raises Conflict."""
        known = self.state.table.member(member.name)
        if known is not None and known.address != member.address and self._is_alive(member.name):
            raise Conflict(
                f"{member.name} is alive at {known.address}: a node that starts at another address announces it itself"
            )
        if not self._is_alive(member.name):
            await self._require_proof(member)
        self._make(AddNode(secrets.token_hex(8), member, stays=True))

    async def _require_proof(self, member: RingMember) -> None:
        """Only a node that has proved the key of the ring gets into the table. Raises Conflict."""
        bus = BusConnection(lambda *frame: None, lambda connection: None)
        try:
            await self._dialler.dial(bus, member.name, member.address)
        except (OSError, Unavailable) as error:
            raise Conflict(
                f"{member.name} is not reached at {member.address} as a node of this ring, so it is not added: {error}; start"
                " it first"
            ) from None
        bus.close()

    def remove(self, name: str, lost: bool) -> None:
        self._make(self.state.build_removal(secrets.token_hex(8), name, self._is_alive(name), lost))

    def _make(self, change: RingChange) -> None:
        agreed = self.state.has_quorum
        self.state.apply(change)
        if agreed:
            self._agreed_at = self._store.clock()
        self._follow()

    def _is_alive(self, name: str) -> bool:
        link = self._links.get(name)
        return name == self.state.me or (link is not None and link.connected)

    # --- ring state ---------------------------------------------------------------------------------------------------

    def _merge(self, sender: str, news: RingNews) -> RingNews:
        try:
            heard = self.state.merge_news(sender, news)
        except Conflict as conflict:
            raise Unavailable(str(conflict)) from None
        if heard:
            logger.debug("news of the ring", extra={"node": sender, "term": self.state.table.term})
        self._follow()
        return self.state.news

    async def _fetch_news(self, link: NodeLink) -> None:
        link.told = self.state.news
        self._merge(link.node, await link.again("news", self.state.me, link.told))

    def _merge_news(self, link: NodeLink, news: RingNews) -> None:
        self._merge(link.node, news)
        if news != self.state.news:
            link.told = None

    def _follow(self) -> None:
        """Act on the current ring state."""
        if not self._running:
            return
        state = self.state
        if state.should_join(self._member):
            state.apply(AddNode(secrets.token_hex(8), self._member))
        unheard = self._reach_members()
        self._update_shards()
        self._reset_lost_shards(unheard)
        if state.news != self._kept:
            self._keep(state.news)
            self._kept = state.news
            self._server.notify_workers(Note("ring_changed", state.news))
        self._follow_moves()
        self.router.changed()
        self._send_news()
        if self._handing is None and state.shards_to_hand_over():
            self._handing = self._spawn(self._hand_over())

    def _update_shards(self) -> None:
        state = self.state
        for shard in state.shards_to_drop():
            state.mark_dropped(shard)
            self._drop(shard)
        self._receiver.serve(self._moving)
        lost = 0
        for shard in state.shards_to_begin():
            if not state.counts_as_recovered(shard):
                taken_out(self._store, shard)
                lost += state.table.generations[shard] > 0
            state.mark_begun(shard, recovered=self._lasting)
        if lost:
            logger.info("shards that were lost with their node begin empty here", extra={"shards": lost})
        if self._lasting and state.has_quorum and not self._cleared:
            self._cleared = True
            for shard in range(state.table.shards):  # a journal still has shards that were handed over since
                if not state.serves(shard):
                    taken_out(self._store, shard)

    def _drop(self, shard: int) -> None:
        """The shard is not served until its copy here is dropped."""
        self._moving.add(shard)
        self._spawn(self._sender.drop(shard))

    async def _hand_over(self) -> None:
        """Hand over one shard after another, until this node holds only the shards that it owns."""
        try:
            while waiting := self.state.shards_to_hand_over():
                links = {shard: self._links[name] for shard, name in waiting.items() if name in self._links}
                ready = (shard for shard, link in links.items() if link.connected and shard not in self._moving)
                shard = next(ready, None)
                if shard is None or not await self._handed_over(shard, links[shard]):
                    await asyncio.sleep(BETWEEN_ATTEMPTS)
        finally:
            self._handing = None

    async def _handed_over(self, shard: int, link: NodeLink) -> bool:
        try:
            await self._sender.hand_over(shard, link.node, link)
        except Unavailable as error:
            logger.warning("a shard is not handed over yet", extra={"shard": shard, "reason": str(error)})
            return False
        return True

    def _send_news(self) -> None:
        news = self.state.news
        for link in self._links.values():
            if link.connected and link.told != news:
                link.told = news
                self._spawn(self._send_state(link))

    async def _send_state(self, link: NodeLink) -> None:
        try:
            self._merge(link.node, await link.call("news", self.state.me, self.state.news))
        except Unavailable as error:
            link.told = None
            logger.debug("a node of the ring does not take the ring state", extra={"node": link.node, "reason": str(error)})
