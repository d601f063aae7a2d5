"""What a process of a ring may ask of the store of a node.

Invariant: a call for a shard that this node does not serve, or that is moving, is refused with `Moved` and has no effect. A
node receives the messages that are registered here on the streams it listens to, even if another node holds the shard later.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.adapters.backends.memory.calls import CallKind, Scope, call
from ropewalk.adapters.backends.ring.hand_over import ShardReceiver, ShardSender
from ropewalk.adapters.backends.workers.calls import Call, names_of
from ropewalk.adapters.backends.workers.server import DISCONNECT_SECONDS, BusProcess, StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.adapters.backends.workers.store_calls import StoreCalls
from ropewalk.core.ring import locate_stream
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import digest
from ropewalk.model.errors import Moved, NameTaken
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.ring import Possession, RingNews
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite


def process_name(node: str, run: str) -> str:
    """A name for one run of the node."""
    return f"{node}~{run}"


def node_name(process: str) -> str:
    return process.rpartition("~")[0]


class ServedShards:
    """The shards that a node serves.

    Args:
        moving: shards that are being handed over.
        waits_for: why this node does not begin shards; "" if it does.
    """

    def __init__(
        self,
        state: RingState,
        store: SharedStore,
        moving: set[int],
        sender: ShardSender,
        receiver: ShardReceiver,
        waits_for: Callable[[], str],
    ) -> None:
        self.state = state
        self.store = store
        self.receiver = receiver
        self._moving = moving
        self._sender = sender
        self._waits_for = waits_for

    def require(self, name: str) -> None:
        """Raises `Moved` unless this node serves the shard of a stream or a session."""
        shard = locate_stream(name, self.state.table.shards)
        if shard in self._moving or not self.state.serves(shard):
            waits_for = self._waits_for() if self.state.holder(shard) == self.state.me else ""
            raise Moved(waits_for or "another node of the ring holds this")

    def require_still(self, sid: str) -> None:
        """Raises `Moved` while the shard of the session is moving. The session need not be here: a node that does not find a
        session asks all nodes."""
        sessions = self.store.sessions
        home = sessions.home(sessions.current(sid))
        if home is not None and locate_stream(home, self.state.table.shards) in self._moving:
            raise Moved("the shard is moving to another node of the ring")

    def require_whole(self, names: Sequence[str]) -> None:
        """Raises `Moved` while a shard moves that has a session of one of these sids or identities."""
        if self._sender.has(names) or self.receiver.has(names):
            raise Moved("a shard that has something of this is moving between nodes of the ring")


MergeNews = Callable[[str, RingNews], RingNews]
"""Merges the ring state of another node, and returns the ring state of this one."""


class RingCalls(StoreCalls):
    def __init__(
        self, server: StoreServer, shards: ServedShards, merge_news: MergeNews, process: BusProcess, name: str
    ) -> None:
        """Raises `NameTaken`. A name is free again at once after its process died, and some seconds after its machine did."""
        node = node_name(name)
        if any(other != name and node_name(other) == node for other in server.names):
            raise NameTaken(f"another process is the node {node} of this ring, and lives: each needs a --ring_node of its own")
        super().__init__(server, process, name, shards.store)
        self._processes = server
        self._shards = shards
        self._merge_news = merge_news

    def require(self, asked: Call, arguments: Sequence[Any]) -> None:
        if asked.scope is Scope.SHARD:
            for name in names_of(arguments[0]):
                self._shards.require(name)
        elif asked.scope is Scope.ALL:
            self._shards.require_whole([argument for argument in arguments if isinstance(argument, str)])

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        await self._server.release(sid)
        self._shards.require_still(sid)
        return self._sessions.take(self._node, sid, successor)

    async def peek(self, sid: str) -> SessionSnapshot | None:
        self._shards.require_still(sid)
        return await super().peek(sid)

    @call()
    async def write_passing(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        """Sessions that were taken here and belong to another node now."""
        for each in sessions:
            self._shards.require_still(each.sid)
        return await self.write(sessions)

    @call()
    async def forget(self, sids: list[str]) -> None:
        for sid in sids:
            self._sessions.forget(sid)

    # --- remote disconnects -------------------------------------------------------------------------------------------

    @call(scope=Scope.ALL)
    async def identity(self, ids: str) -> list[str]:
        """The sids of its sessions."""
        return self._sessions.of_identity(ids)

    @call(CallKind.TASK)
    async def disconnect(self, order: RemoteDisconnect) -> int:
        """Every process of this node ends its own sessions."""
        return await self._processes.end_own(order, DISCONNECT_SECONDS / 2)

    @call(scope=Scope.ALL)
    async def revoke_own(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Only sessions that live on no other node: each node receives the request, and it alone knows which of its sessions
        are in transit."""
        return self._sessions.revoke(ids, reconnect, without=self._processes.names - {self._node})

    @call()
    async def end_rest(self, sids: list[str], reconnect: bool) -> int:
        return self._processes.end_rest(sids, reconnect)

    # --- the ring -----------------------------------------------------------------------------------------------------

    @call()
    async def news(self, sender: str, news: RingNews) -> RingNews:
        return self._merge_news(sender, news)

    @call()
    async def news_but(self, known: str) -> RingNews | None:
        """The ring state, unless it has this digest."""
        news = self._shards.state.news
        return None if digest(news) == known else news

    @call()
    async def receive(self, shard: int, transfer: str, number: int, piece: bytes) -> None:
        self._shards.receiver.receive(shard, transfer, number, piece)

    @call(CallKind.TASK)
    async def received(self, shard: int, transfer: str, count: int, possession: Possession) -> None:
        await self._shards.receiver.received(shard, transfer, count, possession)
