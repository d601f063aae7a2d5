"""The backend of a worker of a node: it asks the stores of all nodes itself, that of its own node over the bus.

Invariant: to every store a worker is a process with sessions, members and a lease of its own, as a node of one process is. It
holds no shard and decides nothing about the ring; what it knows of it comes from the stores.
"""

import logging
from collections.abc import Awaitable, Callable

from ropewalk.adapters.backends.ring.access import RingAccess
from ropewalk.adapters.backends.ring.feed import RingReceiver
from ropewalk.adapters.backends.ring.links import NodeDialler, NodeLink
from ropewalk.adapters.backends.workers.link import AWAY, RETRY_SECONDS, dial_socket
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import digest
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import RingNews
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.ring")


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
