"""The store's end of the bus: answers the processes that share the store, and brings messages and orders to them.

Invariant: messages of a stream are sent to its listeners in the order of their registration. A worker whose connection ends
counts as dead at once: its sessions are kept from then on, and can be resumed on any other worker.
"""

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from ropewalk.adapters.backends.memory.calls import CallKind
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.backpressure import HeldAnswers, PendingReads
from ropewalk.adapters.backends.workers.calls import Call, declared
from ropewalk.adapters.backends.workers.link import FeedReceiver
from ropewalk.adapters.backends.workers.listeners import Listeners
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.adapters.backends.workers.store_calls import Greeting, NoReports, ReportCalls, Reports, StoreCalls
from ropewalk.adapters.backends.workers.wire import ANSWER, CALL, FAILURE, NOTE, BusConnection, Note, frame
from ropewalk.model import closing as closings
from ropewalk.model.errors import RopewalkError
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import Registered, RemoteDisconnect
from ropewalk.model.session_log import DisconnectRequested, SessionClosed
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWanted
from ropewalk.ports import Journal, StreamStore

logger = logging.getLogger("ropewalk.workers")

DISCONNECT_SECONDS = 5.0
"""How long a remote disconnect waits for the workers to end their sessions."""

RELEASE_SECONDS = 1.0
"""How long a returning client waits until the worker of its former connection has kept the session."""

KEPT_DISCONNECTS_SECONDS = 60.0
MAX_DISCONNECTS = 10_000
"""Remote disconnects that are kept for workers that reconnect."""

BACKLOG = 256


class BusWorker:
    """A process at the other end of a connection. `near`: it belongs to this node, and not to another one of a ring."""

    def __init__(self, server: "StoreServer", connection: BusConnection, near: bool) -> None:
        self.connection = connection
        self.near = near
        self.asked: dict[int, asyncio.Future[int]] = {}
        self.reads = PendingReads(connection)
        self.let_in("", Greeting(server, self))

    def let_in(self, name: str, calls: Greeting | ReportCalls) -> None:
        """`calls`: what it may call from now on."""
        self.name = name
        self.calls = calls
        self.declared = declared(type(calls))

    def send(self, note: Note) -> None:
        self.connection.send(note.encoded)

    def ask(self, number: int, method: str, request: RemoteDisconnect | SessionWanted) -> asyncio.Future[int]:
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked[number] = waiting
        waiting.add_done_callback(lambda done: self.asked.pop(number, None))  # also if its caller has given up
        self.connection.send(frame(CALL, number, method, (request,)))
        return waiting


class LocalWorker:
    """The process of the store itself, which has clients too. Implements `Caller`. Nothing is encoded."""

    near = True
    connected = server_ends = True
    away_since: float | None = None

    def __init__(self, name: str, receiver: FeedReceiver) -> None:
        self.name = name
        self._receiver = receiver
        self._obeying: set[asyncio.Task[int]] = set()
        self._calls: ReportCalls

    def let_in(self, calls: ReportCalls) -> None:
        self._calls = calls
        self._declared = declared(type(calls))

    async def call(self, method: str, *arguments: object) -> Any:
        self._calls.require(self._declared[method], arguments)
        return await getattr(self._calls, method)(*arguments)

    def note(self, method: str, *arguments: object) -> bool:
        _complete(getattr(self._calls, method)(*arguments))
        return True

    def send(self, note: Note) -> None:
        getattr(self._receiver, note.method)(*note.arguments)

    def ask(self, number: int, method: str, request: RemoteDisconnect | SessionWanted) -> asyncio.Future[int]:
        """It continues even if the caller gives up."""
        task = asyncio.get_running_loop().create_task(self._obey(method, request))
        self._obeying.add(task)
        task.add_done_callback(self._obeying.discard)
        return asyncio.shield(task)

    async def _obey(self, method: str, request: RemoteDisconnect | SessionWanted) -> int:
        try:
            ended: int = await getattr(self._receiver, method)(request)
        except RopewalkError as error:
            logger.warning("a disconnect was not carried out", extra={"reason": str(error)})
            return 0
        return ended


BusProcess = BusWorker | LocalWorker


def _complete(work: object) -> None:
    """Run the work of a note, which never suspends."""
    if inspect.iscoroutine(work):
        try:
            work.send(None)
        except StopIteration:
            return
        raise AssertionError("a note waits for something")


class _RunningDisconnect:
    """A running remote disconnect: since when, and at which workers."""

    def __init__(self, at: float, asked: set[str]) -> None:
        self.at = at
        self.asked = asked


class StoreServer:
    """Implements the `Carrier` of the store that it serves: make it, make the store with it, `attach` that, then `start`.
    Without a store, because another engine keeps everything, workers exchange reports over it and nothing else.

    Attributes:
        streams: those of the store, or what reaches further back than they do.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self.reports: Reports = NoReports()
        self.listeners: Listeners[BusProcess] = Listeners()
        self.streams: StreamStore
        self._workers: dict[BusConnection, BusWorker] = {}
        self._by_name: dict[str, BusProcess] = {}
        self._disconnects: deque[tuple[float, RemoteDisconnect]] = deque(maxlen=MAX_DISCONNECTS)
        self._running: dict[str, _RunningDisconnect] = {}  # by identifier
        self._lost_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._server: asyncio.Server | None = None
        self._asked = 0
        self._held_answers = HeldAnswers(lambda: [worker.connection for worker in self._workers.values() if worker.name])
        self._store: SharedStore | None = None
        self._at_once = {CallKind.NOW}
        self._calls_of: Callable[[BusProcess, str], ReportCalls] = partial(ReportCalls, self)

    def attach(self, store: SharedStore, calls_of: Callable[[BusProcess, str], ReportCalls] | None = None) -> None:
        """`calls_of` returns what a process of this name may call; raises `NameTaken`."""
        self._store = store
        self._calls_of = calls_of or partial(StoreCalls, self, store=store)
        self.read_through(store.streams)

    def read_through(self, streams: StreamStore) -> None:
        """Streams that reach further back than those of the store."""
        self.streams = streams
        hot = self._store is not None and streams is self._store.streams
        read, append = {CallKind.READ} if hot else set(), {CallKind.APPEND} if hot and streams.instant else set()
        self._at_once = {CallKind.NOW} | read | append

    async def start(self, path: str, reports: Reports | None = None) -> None:
        """Accept workers."""
        if reports is not None:
            self.reports = reports
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self.accept, path, backlog=BACKLOG)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for worker in list(self._workers.values()):
            worker.connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def names(self) -> set[str]:
        """Of all processes."""
        return set(self._by_name)

    def own_workers(self) -> list[BusProcess]:
        return [worker for worker in self._by_name.values() if worker.near]

    # --- connections --------------------------------------------------------------------------------------------------

    def accept(self, near: bool = True) -> BusConnection:
        connection = BusConnection(self._receive, self._lost, lambda: self._caught_up(connection))
        self._workers[connection] = BusWorker(self, connection, near)
        return connection

    def join(self, process: LocalWorker) -> None:
        process.let_in(self._calls_of(process, process.name))
        self._by_name[process.name] = process

    def let_in(self, worker: BusWorker, name: str) -> None:
        calls = self._calls_of(worker, name)
        before = self._by_name.get(name)
        if isinstance(before, BusWorker):  # that its former connection is dead has not been noticed
            before.connection.close()
            self._end_lease(name)
        worker.let_in(name, calls)
        self._by_name[name] = worker
        now = time.monotonic()
        lost_at = self._lost_at.pop(name, now)
        self._lost_at = {each: when for each, when in self._lost_at.items() if when > now - KEPT_DISCONNECTS_SECONDS}
        while self._disconnects and self._disconnects[0][0] < now - KEPT_DISCONNECTS_SECONDS:
            self._disconnects.popleft()
        if worker.near:  # processes of other nodes receive them from their own store
            for when, request in self._disconnects:
                if when >= lost_at:
                    self._ask(worker, "disconnect", request)

    def _caught_up(self, connection: BusConnection) -> None:
        self._held_answers.caught_up()
        if (worker := self._workers.get(connection)) is not None:
            worker.reads.go_on()

    def _lost(self, connection: BusConnection) -> None:
        worker = self._workers.pop(connection)
        worker.reads.stop()
        self.listeners.forget(worker)
        for waiting in list(worker.asked.values()):
            waiting.cancel()
        if worker.name and self._by_name.get(worker.name) is worker:
            del self._by_name[worker.name]
            self._lost_at[worker.name] = time.monotonic()
            if self._store is not None and self._store.interrupted is not None:
                self._store.interrupted.lost(worker.name)
            self._end_lease(worker.name)
            self.reports.left(worker.name)

    def _end_lease(self, name: str) -> None:
        if self._store is not None:
            self._store.end_lease(name)

    # --- what workers ask ---------------------------------------------------------------------------------------------

    def _receive(self, connection: BusConnection, kind: int, number: int, name: str, body: Raw) -> None:
        worker = self._workers[connection]
        if kind == CALL:
            asked = worker.declared[name]
            arguments = asked.arguments(body)
            if asked.kind is CallKind.READ:
                worker.reads.add(lambda: self._begin(worker, number, asked, arguments))
            else:
                self._begin(worker, number, asked, arguments)
        elif kind == NOTE:
            _complete(getattr(worker.calls, name)(*worker.declared[name].arguments(body)))
        elif (waiting := worker.asked.pop(number, None)) is not None and not waiting.done():
            waiting.set_result(msgspec.msgpack.decode(body, type=int) if kind == ANSWER else 0)

    def _begin(self, worker: BusWorker, number: int, asked: Call, arguments: Sequence[Any]) -> asyncio.Task[object] | None:
        """Returns the task of work that is not done at once."""
        try:
            worker.calls.require(asked, arguments)
            work: Coroutine[Any, Any, object] = getattr(worker.calls, asked.name)(*arguments)
            if asked.kind in self._at_once:
                work.send(None)
        except StopIteration as done:
            self._conclude(worker, number, asked, done.value)
            return None
        except Exception as error:
            worker.connection.send(frame(FAILURE, number, *wire.failure_of(error)))
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._answer, worker, number, asked))
        return task

    def _answer(self, worker: BusWorker, number: int, asked: Call, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._conclude(worker, number, asked, task.result())
        else:
            worker.connection.send(frame(FAILURE, number, *wire.failure_of(error)))

    def _conclude(self, worker: BusWorker, number: int, asked: Call, result: object) -> None:
        answer = frame(ANSWER, number, "", result if asked.sent is None else asked.sent(result))
        if asked.held:
            self._held_answers.send(worker.connection, answer)
        else:
            worker.connection.send(answer)

    # --- to the processes ---------------------------------------------------------------------------------------------

    def carry(self, messages: Sequence[Registered]) -> None:
        first = messages[0].stream
        if len(messages) == 1 or all(message.stream == first for message in messages):
            if listeners := self.listeners.of(first):
                note = Note("deliver", messages)
                for process in listeners:
                    process.send(note)
            return
        wanted: dict[BusProcess, list[Registered]] = {}
        for message in messages:
            for process in self.listeners.of(message.stream):
                wanted.setdefault(process, []).append(message)
        for process, some in wanted.items():
            process.send(Note("deliver", some))

    def carry_runs(self, runs: Sequence[wire.CarriedRun]) -> None:
        wanted: dict[BusProcess, list[wire.CarriedRun]] = {}
        for run in runs:
            for process in self.listeners.of(run.stream):
                wanted.setdefault(process, []).append(run)
        for process, some in wanted.items():
            process.send(Note("deliver_runs", some))

    def notify_workers(self, note: Note) -> None:
        """All processes of this node, except for this one."""
        for worker in self._workers.values():
            if worker.near and worker.name:
                worker.send(note)

    def order(self, node: str, notice: SessionTaken) -> None:
        if (process := self._by_name.get(node)) is not None:
            process.send(Note("session_taken", notice))

    async def release(self, sid: str) -> None:
        """If the session lives on a process, have that keep it. One that does not answer is not waited for."""
        assert self._store is not None
        node, current = self._store.sessions.lives_on(sid)
        if (holder := self._by_name.get(node)) is not None:
            await self._ask_all([holder], "release", SessionWanted(current), RELEASE_SECONDS)

    # --- remote disconnects -------------------------------------------------------------------------------------------

    async def disconnect_all(self, request: RemoteDisconnect) -> int:
        """How many sessions all workers have ended. Raises `Unavailable` where that may not outlive a crash."""
        assert self._store is not None
        running = _RunningDisconnect(self._store.clock(), set(self._by_name))
        self._running[request.identifier] = running
        before = self._store.sessions.of_identity(request.identifier)
        ended = await self.end_own(request, DISCONNECT_SECONDS)
        if self._running.get(request.identifier) is running:
            del self._running[request.identifier]
        ended += self.end_rest(before, request.reconnect)
        if self._journal is not None:
            detail = _text(DisconnectRequested(request.identifier, request.reconnect))
            await self._journal.write([Row(RowKind.REVOKED, request.identifier, time.time(), detail=detail)])
        return ended

    async def end_own(self, request: RemoteDisconnect, seconds: float) -> int:
        """Every process of this node ends its own sessions."""
        self._disconnects.append((time.monotonic(), request))
        return await self._ask_all(self.own_workers(), "disconnect", request, seconds)

    def revoke(self, name: str, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """While a remote disconnect runs, each worker ends its own live sessions: it alone knows what is in transit for a
        session, and which ones began after the request."""
        assert self._store is not None
        command = self._running.get(ids)
        if command is None or name not in command.asked:
            return self._store.sessions.revoke(ids, reconnect)
        return self._store.sessions.revoke(ids, reconnect, command.at, command.asked - {name})

    def end_rest(self, sids: list[str], reconnect: bool) -> int:
        """Of sessions that were to be ended: those that no process has ended."""
        assert self._store is not None
        rest = self._store.sessions.revoke_each(sids, reconnect)
        for sid, snapshot in rest:
            self._store.sessions.end(sid, snapshot)
        if rest and self._journal is not None:
            detail = _text(SessionClosed(kept=False, reason=closings.REMOTE.reason, followed=True))
            self._journal.write_nowait([Row(RowKind.DISCONNECTED, sid, time.time(), sid=sid, detail=detail) for sid, _ in rest])
        return len(rest)

    async def _ask_all(
        self, processes: Sequence[BusProcess], method: str, request: RemoteDisconnect | SessionWanted, seconds: float
    ) -> int:
        """The sum of what they answer in time."""
        if not processes:
            return 0
        asked = [self._ask(process, method, request) for process in processes]
        done, late = await asyncio.wait(asked, timeout=seconds)
        for each in late:
            each.cancel()
        return sum(each.result() for each in done if not each.cancelled())

    def _ask(self, process: BusProcess, method: str, request: RemoteDisconnect | SessionWanted) -> asyncio.Future[int]:
        self._asked += 1
        return process.ask(self._asked, method, request)


def _text(detail: DisconnectRequested | SessionClosed) -> str:
    return msgspec.json.encode(detail).decode()
