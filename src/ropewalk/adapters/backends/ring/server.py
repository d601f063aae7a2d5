"""The store of a node, for all nodes of its ring including this one.

Invariant: a call for a shard that this node does not serve, or that is moving, is refused with `Moved` and has no effect. A
node receives the messages that are registered here on the streams it listens to, even if another node holds the shard later.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ropewalk.adapters.backends.ring.hand_over import ShardReceiver, ShardSender
from ropewalk.adapters.backends.ring.links import ActiveDisconnects
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.listeners import Listeners
from ropewalk.adapters.backends.workers.server import OBEY_SECONDS, RELEASE_SECONDS, Answer, BusWorker, StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.adapters.backends.workers.wire import NOTE, BusConnection, frame
from ropewalk.core.ring import locate_stream
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import digest
from ropewalk.model.errors import Moved, NameTaken
from ropewalk.model.messages import Publication, Registered, RemoteDisconnect
from ropewalk.model.ring import RingNews
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWanted, SessionWrite
from ropewalk.ports import Deliver, Journal, OnDisconnectRequest, StreamStore

logger = logging.getLogger("ropewalk.ring")

_OF_ONE_NAME = ("replay", "since", "tip", "partition_key", "page", "join", "leave", "members", "save")
_OF_ALL = ("detach", "adopt", "revoke", "revoke_own", "identity")
"""Calls to all nodes. They must find a shard wherever it is."""


def process_name(node: str, run: str) -> str:
    """A name for one run of the node."""
    return f"{node}~{run}"


def node_of(process: str) -> str:
    return process.rpartition("~")[0]


class NodeServer(StoreServer):
    """The backend sets `hear`, `waits_for`, `sender` and `receiver`.

    Args:
        run: identifies this run of the node.

    Attributes:
        name: of the node, with its run.
        moving: shards that are being handed over.
        active_disconnects: disconnect requests that this process handles.
        hear: merges the ring state of another node, and returns the ring state of this one.
        waits_for: why this node does not begin shards; "" if it does.
    """

    def __init__(self, state: RingState, run: str, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self.name = name = process_name(state.me, run)
        self.moving: set[int] = set()
        self.active_disconnects = ActiveDisconnects()
        self.hear: Callable[[str, RingNews], RingNews] = lambda sender, news: state.news
        self.waits_for: Callable[[], str] = lambda: ""
        self._state = state
        self._deliver: Deliver | None = None
        self._obey: OnDisconnectRequest | None = None
        self._wanted_here: Listeners[str] = Listeners()
        self._obeying: set[asyncio.Future[int]] = set()
        self.sender: ShardSender
        self.receiver: ShardReceiver
        self._here = BusWorker(BusConnection(lambda *frame: None, lambda connection: None))
        self._here.name = name

    def attach(self, store: SharedStore, streams: StreamStore) -> None:
        super().attach(store, streams)
        self._here.answers = self._answers(self._here)

    async def begin(self) -> None:
        assert self._store is not None
        await self._store.start()

    async def start(self, path: str) -> None:
        """For a node with workers, after `begin`: accept workers."""
        await self._listen_for_workers(path)

    def accept(self) -> BusConnection:
        """A connection of another node."""
        connection = self._accept()
        self._workers[connection].near = False
        return connection

    async def _hello(self, worker: BusWorker, name: str) -> bool:
        """Raises `NameTaken`. A name is free again at once after its process died, and some seconds after its machine did."""
        node = node_of(name)
        if any(other != name and node_of(other) == node for other in (*self._by_name, self.name)):
            raise NameTaken(f"another process is the node {node} of this ring, and lives: each needs a --ring_node of its own")
        return await super()._hello(worker, name)

    # --- this node ----------------------------------------------------------------------------------------------------

    connected = server_ends = True
    away_since: float | None = None

    async def call(self, method: str, *arguments: object) -> Any:
        return await self._here.answers[method](*arguments)

    def note(self, method: str, *arguments: Any) -> bool:
        if method == "unlisten":
            self._wanted_here.remove(self.name, *arguments)
        elif method == "unlisten_prefix":
            self._wanted_here.remove_prefix(self.name, *arguments)
        else:
            self._hear[method](self._here, *arguments)
        return True

    def serve_here(self, deliver: Deliver | None, obey: OnDisconnectRequest | None) -> None:
        self._deliver, self._obey = deliver, obey

    def carry(self, messages: Sequence[Registered]) -> None:
        super().carry(messages)
        wanted = self._wanted_here.of
        if self._deliver is not None and (mine := [message for message in messages if wanted(message.stream)]):
            self._deliver(mine)

    def carry_runs(self, runs: Sequence[wire.CarriedRun]) -> None:
        super().carry_runs(runs)
        wanted = self._wanted_here.of
        if self._deliver is not None and (mine := [wire.run_of(run) for run in runs if wanted(run.stream)]):
            self._deliver(mine)

    def order(self, node: str, order: SessionTaken) -> None:
        if node != self.name:
            super().order(node, order)
        elif self._obey is not None:
            task = asyncio.ensure_future(self._obey(order))
            self._obeying.add(task)
            task.add_done_callback(self._obeying.discard)

    async def _listen(self, worker: BusWorker, streams: list[str]) -> None:
        if worker is self._here:
            self._wanted_here.add(self.name, streams)
        else:
            await super()._listen(worker, streams)

    async def _listen_prefixes(self, worker: BusWorker, prefixes: list[bytes]) -> None:
        if worker is self._here:
            self._wanted_here.add_prefixes(self.name, prefixes)
        else:
            await super()._listen_prefixes(worker, prefixes)

    async def _release(self, sid: str) -> None:
        assert self._store is not None
        node, current = self._store.sessions.lives_on(sid)
        if node != self.name:
            await super()._release(sid)
        elif self._obey is not None:
            await asyncio.wait([asyncio.ensure_future(self._obey(SessionWanted(current)))], timeout=RELEASE_SECONDS)

    # --- what is served -----------------------------------------------------------------------------------------------

    def require(self, name: str) -> None:
        """Raises `Moved` unless this node serves the shard of a stream or a session."""
        shard = locate_stream(name, self._state.table.shards)
        if shard in self.moving or not self._state.serves(shard):
            waits_for = self.waits_for() if self._state.holder(shard) == self._state.me else ""
            raise Moved(waits_for or "another node of the ring holds this")

    def _answers(self, worker: BusWorker) -> dict[str, Answer]:
        answers = super()._answers(worker)
        if self._store is None:
            return answers
        of_all: dict[str, Answer] = {**answers, "revoke_own": partial(self._revoke_own, worker), "identity": self._identity}
        return {
            **answers,
            **{method: partial(self._of_one, answers[method]) for method in _OF_ONE_NAME},
            **{method: partial(self._of_all, of_all[method]) for method in _OF_ALL},
            "append": partial(self._of_streams, answers["append"]),
            "run": partial(self._of_streams, answers["run"]),
            "take": partial(self._take, worker),
            "peek": partial(self._peek, answers["peek"]),
            "write": partial(self._write, answers["write"]),
            "write_passing": partial(self._write_passing, answers["write"]),
            "forget": self._forget,
            "end_rest": self._end_those,
            "disconnect": self._disconnect,
            "news": self._news,
            "news_but": self._news_but,
            "receive": self.receiver.receive,
            "received": self.receiver.received,
        }

    async def _of_one(self, answer: Answer, name: str, *arguments: object) -> object:
        self.require(name)
        return await answer(name, *arguments)

    async def _of_all(self, answer: Answer, *arguments: Any) -> object:
        """The first arguments are sids or an identity."""
        names = [argument for argument in arguments if isinstance(argument, str)]
        if self.sender.has(names) or self.receiver.has(names):
            raise Moved("a shard that has something of this is moving between nodes of the ring")
        return await answer(*arguments)

    async def _of_streams(self, answer: Answer, items: Sequence[Publication | wire.CarriedRun]) -> object:
        for item in items:
            self.require(item.stream)
        return await answer(items)

    async def _take(self, worker: BusWorker, sid: str, successor: str) -> SessionSnapshot | None:
        assert self._store is not None
        await self._release(sid)
        self._not_moving(sid)
        return self._store.sessions.take(worker.name, sid, successor)

    async def _peek(self, answer: Answer, sid: str) -> object:
        self._not_moving(sid)
        return await answer(sid)

    async def _write(self, answer: Answer, sessions: Sequence[SessionWrite]) -> object:
        for each in sessions:
            self.require(each.sid)
        return await answer(sessions)

    async def _write_passing(self, answer: Answer, sessions: Sequence[SessionWrite]) -> object:
        """Sessions that were taken here and belong to another node now."""
        for each in sessions:
            self._not_moving(each.sid)
        return await answer(sessions)

    async def _forget(self, sids: list[str]) -> None:
        assert self._store is not None
        for sid in sids:
            self._store.sessions.forget(sid)

    async def _identity(self, ids: str) -> list[str]:
        assert self._store is not None
        return self._store.sessions.of_identity(ids)

    async def _end_those(self, sids: list[str], reconnect: bool) -> int:
        return self._end_rest(sids, reconnect)

    async def _news(self, sender: str, news: RingNews) -> RingNews:
        return self.hear(sender, news)

    async def _news_but(self, known: str) -> RingNews | None:
        """The ring state, unless it has this digest."""
        news = self._state.news
        return None if digest(news) == known else news

    def _not_moving(self, sid: str) -> None:
        """The session need not be here: a node that does not find a session asks all nodes."""
        assert self._store is not None
        home = self._store.sessions.home(self._store.sessions.current(sid))
        if home is not None and locate_stream(home, self._state.table.shards) in self.moving:
            raise Moved("the shard is moving to another node of the ring")

    async def _disconnect(self, order: RemoteDisconnect) -> int:
        """Every process of this node ends its own sessions."""
        self._orders.append((time.monotonic(), order))
        ended = await self._ask_all(self._own_workers(), "obey", order, OBEY_SECONDS / 2)
        if self._obey is None:
            return ended
        with self.active_disconnects.running(order.identifier):
            return ended + await self._obey(order)

    def _own_workers(self) -> list[BusWorker]:
        return [worker for worker in self._by_name.values() if worker.near]

    def _order_again(self, worker: BusWorker, since: float) -> None:
        """Processes of other nodes receive it from their own store."""
        if worker.near:
            super()._order_again(worker, since)

    def tell_workers(self, news: RingNews) -> None:
        """Send the ring state to the workers."""
        if workers := self._own_workers():
            told = frame(NOTE, 0, "told", (news,))
            for worker in workers:
                worker.connection.send(told)

    async def _revoke_own(self, worker: BusWorker, ids: str, reconnect: bool) -> wire.EndedSessions:
        """Only sessions that live on no other node: each node receives the request, and it alone knows which of its sessions
        are in transit."""
        assert self._store is not None
        return self._store.sessions.revoke(ids, reconnect, without={*self._by_name, self.name} - {worker.name})
