"""What a process may ask of the store of its node: every call of the bus, declared where it is carried out."""

from collections.abc import Sequence
from typing import Any, Protocol

from ropewalk.adapters.backends.memory.calls import CallKind, Scope, call
from ropewalk.adapters.backends.memory.store import NodePresence
from ropewalk.adapters.backends.workers.calls import Call
from ropewalk.adapters.backends.workers.listeners import Listeners
from ropewalk.adapters.backends.workers.store import LeasedSessions, SharedStore
from ropewalk.adapters.backends.workers.wire import CarriedRun
from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import Row
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import StreamStore


class Reports(Protocol):
    """Reports that the processes of a node exchange."""

    def answer(self, worker: str, report: bytes) -> bytes:
        """The report of a worker; returns what it should know of the node."""

    def left(self, worker: str) -> None:
        """The worker is gone."""


class NoReports:
    def answer(self, worker: str, report: bytes) -> bytes:
        return b""

    def left(self, worker: str) -> None:
        pass


class CallServer(Protocol):
    """What the calls need of the server that takes them.

    Attributes:
        streams: those of the store, or what reaches further back than they do.
        listeners: the processes that listen to a stream.
    """

    reports: Reports
    streams: StreamStore
    listeners: Listeners[Any]

    def let_in(self, worker: Any, name: str) -> None:
        """The process has said its name. Raises `NameTaken`."""

    def carry(self, messages: Sequence[Registered]) -> None:
        """To the processes that listen."""

    def carry_runs(self, runs: Sequence[CarriedRun]) -> None: ...

    async def release(self, sid: str) -> None:
        """If the session lives on a process, have that keep it."""

    def revoke(self, name: str, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Sessions that the process of this name is to end."""

    async def disconnect_all(self, request: RemoteDisconnect) -> int:
        """Have all processes end their sessions. Returns how many there were."""


class Greeting:
    """What a process may call before the store knows its name."""

    def __init__(self, server: CallServer, worker: object) -> None:
        self._server = server
        self._worker = worker

    def require(self, asked: Call, arguments: Sequence[Any]) -> None:
        """Raises `Moved` if this store does not serve it."""

    @call()
    async def hello(self, name: str) -> bool:
        self._server.let_in(self._worker, name)
        return True


class ReportCalls:
    """What it may call if another engine keeps everything."""

    def __init__(self, server: CallServer, process: object, name: str) -> None:
        self._server = server
        self._process = process
        self._node = name

    def require(self, asked: Call, arguments: Sequence[Any]) -> None:
        """Raises `Moved` if this store does not serve it."""

    @call()
    async def exchange(self, report: bytes) -> bytes:
        """The report of a process; returns what it should know of the node."""
        return self._server.reports.answer(self._node, report)


class StoreCalls(ReportCalls, LeasedSessions, NodePresence):
    """
    Args:
        name: of the process.
    """

    def __init__(self, server: CallServer, process: object, name: str, store: SharedStore) -> None:
        ReportCalls.__init__(self, server, process, name)
        LeasedSessions.__init__(self, store, name)

    # --- streams ------------------------------------------------------------------------------------------------------

    @call(CallKind.APPEND, Scope.SHARD, held=True)
    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        return await self._server.streams.append(publications)

    @call(CallKind.READ, Scope.SHARD)
    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        return await self._server.streams.replay(stream, position)

    @call(CallKind.READ, Scope.SHARD)
    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        return await self._server.streams.since(stream, timestamp)

    @call(CallKind.READ, Scope.SHARD)
    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        return await self._server.streams.page(stream, after, limit)

    @call(scope=Scope.SHARD)
    async def tip(self, stream: str) -> Position:
        return await self._server.streams.tip(stream)

    @call(scope=Scope.SHARD)
    async def partition_key(self, stream: str) -> str:
        return await self._server.streams.partition_key(stream)

    @call()
    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        return await self._server.streams.summaries(after, limit)

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        await self._server.release(sid)
        return await super().take(sid, successor)

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return self._server.revoke(self._node, ids, reconnect)

    @call()
    async def claim(self, sids: list[str]) -> None:
        """The process has come back with these sessions."""
        if self._shared.interrupted is not None:
            self._shared.interrupted.claim(self._node, sids)

    @call()
    def rows(self, rows: list[Row]) -> None:
        """Of sessions, for the journal."""
        if self._shared.interrupted is not None:
            self._shared.interrupted.note(self._node, rows)

    # --- the feed -----------------------------------------------------------------------------------------------------

    @call()
    async def listen(self, streams: list[str]) -> None:
        self._server.listeners.add(self._process, streams)

    @call()
    def unlisten(self, stream: str) -> None:
        self._server.listeners.remove(self._process, stream)

    @call()
    async def listen_prefixes(self, prefixes: list[bytes]) -> None:
        self._server.listeners.add_prefixes(self._process, prefixes)

    @call()
    def unlisten_prefix(self, prefix: bytes) -> None:
        self._server.listeners.remove_prefix(self._process, prefix)

    @call()
    def publish(self, messages: list[Registered]) -> None:
        """Transient messages."""
        self._server.carry(messages)

    @call(scope=Scope.SHARD, held=True)
    async def publish_runs(self, runs: list[CarriedRun]) -> None:
        self._server.carry_runs(runs)

    @call(CallKind.TASK)
    async def disconnect_all(self, request: RemoteDisconnect) -> int:
        return await self._server.disconnect_all(request)
