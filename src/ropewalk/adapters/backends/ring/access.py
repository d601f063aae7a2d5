"""Gives a process of a node access to the stores of all nodes of its ring, a worker also to that of its own node.

Invariant: calls for a shard, and subscriptions to its streams, go to its holder according to the ring state here. A node that
reconnects receives the calls that it missed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ropewalk.adapters.backends.ring.feed import RingFeed, RingReceiver
from ropewalk.adapters.backends.ring.links import NodeCalls, NodeDialler, NodeLink, OwnStore
from ropewalk.adapters.backends.ring.router import HolderCaller, Router, UnsentCall, UnsentCalls
from ropewalk.adapters.backends.ring.sessions import RingSessions
from ropewalk.adapters.backends.ring.streams import RingPresence, RingStreams
from ropewalk.adapters.backends.workers.backend import MAX_ROWS
from ropewalk.adapters.backends.workers.link import AWAY, RETRY_SECONDS, dial_socket, remote
from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import digest
from ropewalk.model.errors import Conflict, Unavailable
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.ring import RingNews
from ropewalk.ports import Clock, Journal


class RingJournal:
    """Implements `ports.Journal`: rows of a session are written on the node that keeps the session.

    Invariant: rows of one session go to one node, in order, as long as its shard stays there. Writers do not wait. The rows
    that wait for an unreachable node are bounded, and further rows are counted.

    Args:
        own: the journal of this node.
    """

    instant = True

    def __init__(self, router: Router, own: Journal) -> None:
        self._router = router
        self._own = own
        self._waiting: dict[str, list[Row]] = {}  # by node
        self._sids: set[str] = set()  # live sessions of this process, according to the rows
        self._dropped = 0

    async def write(self, rows: Sequence[Row]) -> None:
        """What every node writes for itself."""
        await self._own.write(rows)

    def write_nowait(self, rows: Sequence[Row]) -> None:
        by_node: dict[str, list[Row]] = {}
        for row in rows:
            if row.kind is RowKind.CONNECTED or row.kind is RowKind.RESTORED:
                self._sids.add(row.sid)
            elif row.kind is RowKind.DISCONNECTED:
                self._sids.discard(row.sid)
            by_node.setdefault(self._router.holder(row.sid or row.stream), []).append(row)
        for name, some in by_node.items():
            node = self._router.nodes.get(name)
            if node is None or not node.note("rows", some):
                self._keep(name, some)

    def _keep(self, name: str, rows: list[Row]) -> None:
        waiting = self._waiting.setdefault(name, [])
        room = MAX_ROWS - len(waiting)
        waiting += rows[:room]
        self._dropped += max(0, len(rows) - room)

    async def resend(self, name: str, call: Callable[..., Awaitable[object]], note: Callable[..., None]) -> None:
        """To a node that may know nothing of this one: which sessions of its shards live here, and what it could not be
        told."""
        await call("claim", [sid for sid in self._sids if self._router.holder(sid) == name])
        if waiting := self._waiting.pop(name, None):
            note("rows", waiting)

    def forget(self, name: str) -> None:
        """The node is gone for good."""
        self._dropped += len(self._waiting.pop(name, ()))

    def health(self) -> str:
        return self._own.health()

    def gauges(self) -> dict[str, float]:
        return {**self._own.gauges(), "journal_unsent_rows": self._dropped}


logger = logging.getLogger("ropewalk.ring")

COMPARE_SECONDS = 1.0
MIN_COMPARE_SECONDS = 0.05
"""How often this process compares its ring state with other nodes, and how often at most while a node reports a moved shard."""


class RingAccess:
    """The stores of `ports.Backend`. `own` is the store of this node."""

    record_queue = None

    def __init__(self, state: RingState, own: OwnStore, receiver: RingReceiver, dialler: NodeDialler, clock: Clock) -> None:
        self.state = state
        self._dialler = dialler
        self._links: dict[str, NodeLink] = {}
        self._nodes: dict[str, NodeCalls] = {state.me: own}
        self._unsent_calls = UnsentCalls()
        self._tasks: set[asyncio.Task[None]] = set()
        self._journal: RingJournal | None = None
        self._running = False
        self._generations = state.table.generations
        self._holders: list[str] = []
        self._moved: set[int] = set()  # shards that have moved; this process does not listen to their new holders yet
        self._feed_receiver = receiver
        self.router = Router(state, self._nodes)
        caller = HolderCaller(self.router, self._unsent_calls)
        self.streams = remote(RingStreams, caller)
        self.presence = remote(RingPresence, caller)
        self.sessions = self.leases = RingSessions(caller, clock, own, receiver.active_disconnects)
        self.feed = RingFeed(self.router, receiver)

    async def _end_links_and_tasks(self) -> None:
        self._running = False
        await asyncio.gather(*(link.stop() for link in self._links.values()))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def impairments(self) -> list[str]:
        """Unreachable nodes, for the health page."""
        return [link.away for link in self._unreached()]

    def _unreached(self) -> list[NodeLink]:
        """Links to unreachable nodes, sorted by name."""
        return [link for name, link in sorted(self._links.items()) if name != self.state.me and not link.connected]

    def gauges(self) -> dict[str, float]:
        """Of this process. The node reports the value of the process that reaches the fewest nodes."""
        return {"ring_nodes_unreached": len(self._unreached())}

    def counts(self) -> dict[str, int]:
        """Counters of this process since its start."""
        return {"ring_publications_forwarded": self.router.forwarded}

    def journal_over(self, own: Journal) -> RingJournal:
        """The journal for the session log of this process."""
        self._journal = RingJournal(self.router, own)
        return self._journal

    # --- the ring state -----------------------------------------------------------------------------------------------

    async def _fetch_news(self, link: NodeLink) -> None:
        """Ask a newly connected node for its ring state."""
        raise NotImplementedError

    def _merge_news(self, link: NodeLink, news: RingNews) -> None:
        """Merge the ring state of another node."""
        raise NotImplementedError

    def _send_news(self) -> None:
        """Send the ring state to the other nodes, if this process does so."""

    async def _greet(self, link: NodeLink) -> None:
        """Called on a new connection before other calls may use it."""
        await self._fetch_news(link)
        if self._journal is not None:
            await self._journal.resend(link.node, link.again, link.note_again)
        await self.feed.listen_at(link.node, link.again)
        for call in await self._unsent_calls.flush(link.node, link.again):
            self._spawn(self._reroute(call))
        if link.away_since is not None:
            await self.feed.resend_disconnects(link.again, link.away_since)
        await self.feed.listen_to_prefixes(link.again)  # the last step, so that no prefix is added before the link is used

    async def _reroute(self, call: UnsentCall) -> None:
        """Send an unsent call to the new holder of its shard. Not needed if the shard was lost."""
        with suppress(Unavailable):
            await self.router.call(call.name, call.method, *call.arguments)

    async def _compare_periodically(self) -> None:
        """Nodes send their ring state to members when it changes. This reaches the others too: a node that is not in the table,
        or one whose link was busy.
        """
        stale = self.router.stale
        while True:
            await asyncio.sleep(MIN_COMPARE_SECONDS)
            try:
                async with asyncio.timeout(COMPARE_SECONDS):
                    await stale.wait()
            except TimeoutError:
                pass
            stale.clear()
            known = digest(self.state.news)
            links = [link for link in self._links.values() if link.connected]
            outcomes = await asyncio.gather(*(self._compare(link, known) for link in links), return_exceptions=True)
            for error in filter(None, outcomes):
                logger.error("the ring state was not compared with another node", exc_info=error)
            self._send_news()
            self._listen_to_moved()

    async def _compare(self, link: NodeLink, known: str) -> None:
        try:
            async with asyncio.timeout(COMPARE_SECONDS):  # a slow node does not delay the others
                news = await link.call("news_but", known)
            if news is not None:
                self._merge_news(link, news)
        except (Unavailable, TimeoutError) as error:
            logger.debug("a node of the ring does not answer with its state", extra={"node": link.node, "reason": str(error)})

    # --- changes of the ring state ------------------------------------------------------------------------------------

    def _reach_members(self) -> bool:
        """Connect to new members, and close the links to removed ones. True if a removed node was unreachable at the end."""
        members = {member.name for member in self.state.table.members} - {self.state.me}
        for name in sorted(members):
            if name not in self._links:
                link = NodeLink(
                    name, partial(self._dial, name), self._dialler.name, self._feed_receiver, self._greet, self._link_changed
                )
                self._links[name] = self._nodes[name] = link
                link.begin()
        unheard = False
        for name in self._links.keys() - members - {self.state.me}:
            unheard |= not self._links[name].connected
            del self._nodes[name]
            self.state.peer_disconnected(name)
            self._unsent_calls.forget(name)
            if self._journal is not None:
                self._journal.forget(name)
            self._spawn(self._links.pop(name).stop())
        return unheard

    async def _dial(self, name: str, connection: BusConnection) -> None:
        member = self.state.table.member(name)
        if member is None:
            raise Unavailable(f"the node {name} is not in the table of the ring")
        try:
            await self._dialler.dial(connection, name, member.address)
        except (OSError, Unavailable):
            seed = self._dialler.seeds.get(name, member.address)
            if seed == member.address:
                raise
            await self._dialler.dial(connection, name, seed)  # all nodes may have moved at once, and none could announce it

    def _reset_lost_shards(self, unheard: bool) -> None:
        """Restart the sessions of lost shards, and report a possible gap to prefix subscribers, who have no positions. They may
        also have missed messages of a removed node that was unreachable.
        """
        shards_lost = self.state.table.generations != self._generations
        if shards_lost:
            self._generations = self.state.table.generations
            self.sessions.restart()
        if shards_lost or unheard:
            self.feed.missed_by_prefixes()

    def _link_changed(self, link: NodeLink) -> None:
        """Drops only the state of this link's node: nodes that are still being greeted have just sent theirs and do not send it
        again."""
        if not link.connected and self._links.get(link.node) is link:
            self.state.peer_disconnected(link.node)
        self.router.changed()
        self._send_news()
        self._listen_to_moved()

    def _follow_moves(self) -> None:
        """Listen to shards at their new holders."""
        before, self._holders = self._holders, [self.state.holder(shard) for shard in range(self.state.table.shards)]
        moved: dict[str, list[int]] = {}
        for shard, (old, new) in enumerate(zip(before, self._holders, strict=False)):
            if old != new:
                moved.setdefault(old, []).append(shard)
        for old, shards in moved.items():
            self.feed.not_at(old, shards)
            self._moved.update(shards)
        self._listen_to_moved()

    def _listen_to_moved(self) -> None:
        """Listen to moved shards whose new holders are reachable."""
        by_holder: dict[str, list[int]] = {}
        for shard in self._moved:
            by_holder.setdefault(self._holders[shard], []).append(shard)
        for name, shards in by_holder.items():
            node = self._nodes.get(name)
            if node is not None and node.connected:
                self._moved.difference_update(shards)
                self._spawn(self._listen_at(name, node, shards))

    async def _listen_at(self, name: str, node: NodeCalls, shards: list[int]) -> None:
        try:
            await self.feed.listen_at(name, node.call, shards)
        except Unavailable as error:
            self._moved.update(shards)
            logger.debug("a node of the ring is not listened to", extra={"node": name, "reason": str(error)})

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a part of the ring's work failed", exc_info=error)


def worker_name(node: str, number: int, run: str) -> str:
    """The process name of a worker. `run` distinguishes workers with the same number. No node has such a name."""
    return f"{node}/{run}~{number}"


class OwnStoreLink(NodeLink):
    """To the store process of this node, over its socket."""

    retry_seconds = RETRY_SECONDS

    def __init__(
        self,
        node: str,
        path: str,
        name: str,
        receiver: RingReceiver,
        greet: Callable[[NodeLink], Awaitable[None]],
        changed: Callable[[NodeLink], None],
    ) -> None:
        super().__init__(node, dial_socket(path), name, receiver, greet, changed)
        self.peer, self.away = "the store", AWAY


class RingWorkerBackend(RingAccess):
    """Implements `ports.Backend`. `path`: of the bus to the store process."""

    def __init__(self, state: RingState, path: str, dialler: NodeDialler, clock: Clock) -> None:
        receiver = RingReceiver(lambda news: self._learn(state.me, news))
        self.link = link = OwnStoreLink(state.me, path, dialler.name, receiver, self._greet, self._link_changed)
        super().__init__(state, link, receiver, dialler, clock)
        self._links[state.me] = link

    async def start(self) -> None:
        await self.link.start()
        self._running = True
        self._follow()
        self._spawn(self._compare_periodically())

    async def stop(self) -> None:
        await self._end_links_and_tasks()

    async def _fetch_news(self, link: NodeLink) -> None:
        news = await link.again("news_but", digest(self.state.news))
        if news is not None:
            self._merge_news(link, news)

    def _merge_news(self, link: NodeLink, news: RingNews) -> None:
        self._learn(link.node, news)

    def _learn(self, node: str, news: RingNews) -> None:
        try:
            if node == self.state.me and news.table.shards != self.state.table.shards:
                self.state.adopt(news)  # a journal keeps the number that it was made with
            self.state.merge_news(node, news)
        except Conflict as conflict:
            logger.error("a node is of another ring", extra={"node": node, "reason": str(conflict)})
        self._follow()

    def _follow(self) -> None:
        if self._running:
            self._reset_lost_shards(self._reach_members())
            self._follow_moves()
            self.router.changed()

    def health(self) -> str:
        return "" if self.link.connected else AWAY

    async def sweep(self) -> None:
        """The store processes do it."""

    def reload_rules(self) -> None:
        """The store process reads them too."""
