"""The store's end of the bus: answers the workers of the node, and brings messages and orders to them.

Invariant: what a worker listens to is sent to it in the order in which it was registered. A worker whose connection ends counts
as dead at once: its sessions are kept from then on, and can be resumed on any other.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import Raw

from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.backpressure import HeldAnswers, PendingReads
from ropewalk.adapters.backends.workers.listeners import Listeners
from ropewalk.adapters.backends.workers.store import NodePresence, NodeSessions, SharedStore
from ropewalk.adapters.backends.workers.wire import ANSWER, CALL, FAILURE, NOTE, BusConnection, frame
from ropewalk.model import closing as closings
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import Position, Registered, RemoteDisconnect
from ropewalk.model.session_log import DisconnectRequested, SessionClosed
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWanted
from ropewalk.ports import Journal, StreamStore

logger = logging.getLogger("ropewalk.workers")

OBEY_SECONDS = 5.0
"""For how long an order to end sessions waits until all workers have ended theirs."""

RELEASE_SECONDS = 1.0
"""For how long a client that comes back waits until the worker of its former connection has kept the session."""

ORDERS_SECONDS = 60.0
MAX_DISCONNECTS = 10_000
"""Orders for workers that lost their connection and come back."""

BACKLOG = 256


_ABOUT_SESSIONS = frozenset({"save", "peek", "revoke", "expired", "abandoned", "renew", "write"})
_ABOUT_MEMBERS = frozenset({"join", "leave", "detach", "adopt", "expire", "members"})
_NEVER_WAIT = frozenset(
    {
        "hello",
        "tip",
        "partition_key",
        "summaries",
        "listen",
        "listen_prefixes",
        "run",
        "claim",
        "exchange",
        *_ABOUT_SESSIONS,
        *_ABOUT_MEMBERS,
    }
)
_READS = frozenset({"replay", "since", "page"})
"""Calls that are answered in one step, the second kind unless they reach into an archive: they need no task."""


_HELD = frozenset({"append", "run"})
"""Calls whose answers wait while a worker is behind."""

Answer = Callable[..., Coroutine[Any, Any, object]]


class BusWorker:
    """A connection of one worker. Until it has said its name it is answered nothing else. `near`: it is a process of this
    node, and not of another one of a ring."""

    def __init__(self, connection: BusConnection) -> None:
        self.connection = connection
        self.name = ""
        self.near = True
        self.asked: dict[int, asyncio.Future[int]] = {}
        self.answers: dict[str, Answer] = {}
        self.reads = PendingReads(connection)


class _Command:
    """A remote disconnect that is being carried out, since `at`, by the workers that were asked."""

    def __init__(self, at: float, asked: set[str]) -> None:
        self.at = at
        self.asked = asked


class StoreServer:
    """Implements the `Carrier` of the store that it serves: make it, make the store with it, `attach` that, then `start`.
    Without a store, because another engine keeps everything, workers exchange reports over it and nothing else.

    `exchange` is called with the report of a worker and returns what that worker should know of the node; `left` when a worker
    is gone. Both may be set.
    """

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal
        self.exchange: Callable[[str, bytes], bytes] = lambda worker, report: b""
        self.left: Callable[[str], None] = lambda worker: None
        self._workers: dict[BusConnection, BusWorker] = {}
        self._by_name: dict[str, BusWorker] = {}
        self._listeners: Listeners[BusWorker] = Listeners()
        self._orders: deque[tuple[float, RemoteDisconnect]] = deque(maxlen=MAX_DISCONNECTS)
        self._commands: dict[str, _Command] = {}  # by identifier
        self._lost_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._server: asyncio.Server | None = None
        self._asked = 0
        self._held_answers = HeldAnswers(lambda: [worker.connection for worker in self._by_name.values()])
        self._store: SharedStore | None = None
        self._at_once = _NEVER_WAIT
        self._hear: dict[str, Callable[..., None]] = {
            "unlisten": self._listeners.remove,
            "unlisten_prefix": self._listeners.remove_prefix,
            "tell": self._tell,
            "run": self._carry_on,
            "rows": self._note,
        }

    def attach(self, store: SharedStore, streams: StreamStore) -> None:
        """`streams`: those of the store, or what reaches further back than they do."""
        self._store = store
        self._streams = streams
        if streams is store.memory.streams:
            self._at_once = _NEVER_WAIT | _READS | ({"append"} if streams.instant else frozenset())

    async def start(self, path: str) -> None:
        if self._store is not None:
            await self._store.start()
        await self._listen_for_workers(path)

    async def _listen_for_workers(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, path, backlog=BACKLOG)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for worker in list(self._workers.values()):
            worker.connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def workers(self) -> int:
        return len(self._by_name)

    # --- connections --------------------------------------------------------------------------------------------------

    def _accept(self) -> BusConnection:
        connection = BusConnection(self._receive, self._lost, lambda: self._caught_up(connection))
        worker = self._workers[connection] = BusWorker(connection)
        worker.answers["hello"] = partial(self._hello, worker)
        return connection

    def _caught_up(self, connection: BusConnection) -> None:
        self._held_answers.caught_up()
        if (worker := self._workers.get(connection)) is not None:
            worker.reads.go_on()

    def _lost(self, connection: BusConnection) -> None:
        worker = self._workers.pop(connection)
        worker.reads.stop()
        self._listeners.forget(worker)
        for waiting in list(worker.asked.values()):
            waiting.cancel()
        if worker.name and self._by_name.get(worker.name) is worker:
            del self._by_name[worker.name]
            self._lost_at[worker.name] = time.monotonic()
            if self._store is not None and self._store.interrupted is not None:
                self._store.interrupted.lost(worker.name)
            self._end_lease(worker.name)
            self.left(worker.name)

    def _receive(self, connection: BusConnection, kind: int, number: int, name: str, body: Raw) -> None:
        worker = self._workers[connection]
        if kind == CALL:
            self._call(worker, number, name, body)
        elif kind == NOTE:
            self._hear[name](worker, *wire.arguments(name, body))
        elif (waiting := worker.asked.pop(number, None)) is not None and not waiting.done():
            waiting.set_result(wire.result(name, body) if kind == ANSWER else 0)

    def _call(self, worker: BusWorker, number: int, method: str, body: Raw) -> None:
        arguments = wire.arguments(method, body)
        if method in _READS:
            worker.reads.add(lambda: self._begin(worker, number, method, worker.answers[method](*arguments)))
        else:
            self._begin(worker, number, method, worker.answers[method](*arguments))

    def _begin(
        self, worker: BusWorker, number: int, method: str, work: Coroutine[Any, Any, object]
    ) -> asyncio.Task[object] | None:
        """Returns the task of work that is not done at once."""
        if method in self._at_once:
            try:
                work.send(None)
            except StopIteration as done:
                self._conclude(worker, number, method, done.value)
            except Exception as error:
                worker.connection.send(frame(FAILURE, number, *wire.failure_of(error)))
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._answer, worker, number, method))
        return task

    def _answer(self, worker: BusWorker, number: int, method: str, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._conclude(worker, number, method, task.result())
        else:
            worker.connection.send(frame(FAILURE, number, *wire.failure_of(error)))

    def _conclude(self, worker: BusWorker, number: int, method: str, answer: object) -> None:
        if method in _HELD:
            self._held_answers.send(worker.connection, frame(ANSWER, number, method, answer))
        else:
            worker.connection.send(frame(ANSWER, number, method, answer))

    # --- to the workers -----------------------------------------------------------------------------------------------

    def carry(self, messages: Sequence[Registered]) -> None:
        first = messages[0].stream
        if len(messages) == 1 or all(message.stream == first for message in messages):
            if listeners := self._listeners.of(first):
                encoded = frame(NOTE, 0, "deliver", (messages,))
                for worker in listeners:
                    worker.connection.send(encoded)
            return
        wanted: dict[BusWorker, list[Registered]] = {}
        for message in messages:
            for worker in self._listeners.of(message.stream):
                wanted.setdefault(worker, []).append(message)
        for worker, some in wanted.items():
            worker.connection.send(frame(NOTE, 0, "deliver", (some,)))

    def carry_runs(self, runs: Sequence[wire.CarriedRun]) -> None:
        wanted: dict[BusWorker, list[wire.CarriedRun]] = {}
        for run in runs:
            for worker in self._listeners.of(run.stream):
                wanted.setdefault(worker, []).append(run)
        for worker, some in wanted.items():
            worker.connection.send(frame(NOTE, 0, "runs", (some,)))

    def order(self, node: str, order: SessionTaken) -> None:
        if (worker := self._by_name.get(node)) is not None:
            worker.connection.send(frame(NOTE, 0, "order", (order,)))

    async def command(self, order: RemoteDisconnect) -> int:
        """How many sessions all workers have ended. Raises `Unavailable` where that may not outlive a crash."""
        assert self._store is not None
        self._orders.append((time.monotonic(), order))
        carried_out = _Command(self._store.clock(), set(self._by_name))
        self._commands[order.identifier] = carried_out
        before = self._store.sessions.of_identity(order.identifier)
        ended = await self._ask_all(list(self._by_name.values()), "obey", order, OBEY_SECONDS)
        if self._commands.get(order.identifier) is carried_out:
            del self._commands[order.identifier]
        ended += self._end_rest(before, order.reconnect)
        if self._journal is not None:
            detail = wire.text(DisconnectRequested(order.identifier, order.reconnect))
            await self._journal.write([Row(RowKind.REVOKED, order.identifier, time.time(), detail=detail)])
        return ended

    def _revoke(self, worker: BusWorker, ids: str, reconnect: bool) -> wire.EndedSessions:
        """While an order is carried out, a worker ends what lives on it: it alone knows what is under way for a session, and
        which ones began after the order."""
        assert self._store is not None
        command = self._commands.get(ids)
        if command is None or worker.name not in command.asked:
            return self._store.sessions.revoke(ids, reconnect)
        return self._store.sessions.revoke(ids, reconnect, command.at, command.asked - {worker.name})

    def _end_rest(self, sids: list[str], reconnect: bool) -> int:
        """Of sessions that were to be ended: those that no worker has ended."""
        assert self._store is not None
        rest = self._store.sessions.revoke_each(sids, reconnect)
        for sid, snapshot in rest:
            self._store.sessions.end(sid, snapshot)
        if rest and self._journal is not None:
            detail = wire.text(SessionClosed(kept=False, reason=closings.REMOTE.reason, followed=True))
            self._journal.write_nowait([Row(RowKind.DISCONNECTED, sid, time.time(), sid=sid, detail=detail) for sid, _ in rest])
        return len(rest)

    async def _ask_all(
        self, workers: Sequence[BusWorker], method: str, order: RemoteDisconnect | SessionWanted, seconds: float
    ) -> int:
        """The sum of what they answer in time."""
        if not workers:
            return 0
        asked = [self._ask(worker, method, order) for worker in workers]
        done, late = await asyncio.wait(asked, timeout=seconds)
        for each in late:
            each.cancel()
        return sum(each.result() for each in done if not each.cancelled())

    def _ask(self, worker: BusWorker, method: str, order: RemoteDisconnect | SessionWanted) -> asyncio.Future[int]:
        self._asked += 1
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        number = self._asked
        worker.asked[number] = waiting
        waiting.add_done_callback(lambda done: worker.asked.pop(number, None))  # also of one that nobody waits for any more
        worker.connection.send(frame(CALL, self._asked, method, (order,)))
        return waiting

    # --- what workers say ---------------------------------------------------------------------------------------------

    def _tell(self, worker: BusWorker, messages: list[Registered]) -> None:
        self.carry(messages)

    def _carry_on(self, worker: BusWorker, runs: list[wire.CarriedRun]) -> None:
        self.carry_runs(runs)

    def _note(self, worker: BusWorker, rows: list[Row]) -> None:
        if self._store is not None and self._store.interrupted is not None:
            self._store.interrupted.note(worker.name, rows)

    def _end_lease(self, name: str) -> None:
        if self._store is not None:
            self._store.end_lease(name)

    # --- what workers ask ---------------------------------------------------------------------------------------------

    async def _hello(self, worker: BusWorker, name: str) -> bool:
        before = self._by_name.get(name)
        if before is not None:  # that its former connection is dead has not been noticed
            before.connection.close()
            self._end_lease(name)
        worker.name = name
        worker.answers = self._answers(worker)
        self._by_name[name] = worker
        now = time.monotonic()
        lost_at = self._lost_at.pop(name, now)
        self._lost_at = {each: when for each, when in self._lost_at.items() if when > now - ORDERS_SECONDS}
        while self._orders and self._orders[0][0] < now - ORDERS_SECONDS:
            self._orders.popleft()
        self._order_again(worker, lost_at)
        return True

    def _order_again(self, worker: BusWorker, since: float) -> None:
        for when, order in self._orders:
            if when >= since:
                self._ask(worker, "obey", order)

    def _answers(self, worker: BusWorker) -> dict[str, Answer]:
        exchange: dict[str, Answer] = {"exchange": partial(self._exchange, worker)}
        if self._store is None:
            return exchange
        store, streams = self._store, self._streams
        sessions, presence = NodeSessions(store, worker.name), NodePresence(store, worker.name)

        async def replay(stream: str, position: Position) -> wire.HistoryPieces:
            return wire.pieces(await streams.replay(stream, position))

        async def since(stream: str, timestamp: float) -> wire.HistoryPieces:
            return wire.pieces(await streams.since(stream, timestamp))

        async def take(sid: str, successor: str) -> SessionSnapshot | None:
            await self._release(sid)
            return await sessions.take(sid, successor)

        async def revoke(ids: str, reconnect: bool) -> wire.EndedSessions:
            return self._revoke(worker, ids, reconnect)

        async def run(runs: list[wire.CarriedRun]) -> None:
            self.carry_runs(runs)

        async def abandoned(limit: int, server_ends: bool) -> wire.EndedSessions:
            return store.take_abandoned(limit, server_ends)

        return {
            "append": streams.append,
            "replay": replay,
            "since": since,
            "tip": streams.tip,
            "partition_key": streams.partition_key,
            "summaries": streams.summaries,
            "page": streams.page,
            "save": sessions.save,
            "peek": sessions.peek,
            "take": take,
            "revoke": revoke,
            "expired": sessions.take_expired,
            "abandoned": abandoned,
            "renew": sessions.renew,
            "write": sessions.write,
            "join": presence.join,
            "leave": presence.leave,
            "detach": presence.detach,
            "adopt": presence.adopt,
            "expire": presence.expire,
            "members": presence.members,
            "listen": partial(self._listen, worker),
            "listen_prefixes": partial(self._listen_prefixes, worker),
            "run": run,
            "claim": partial(self._claim, worker),
            "command": self.command,
            **exchange,
        }

    async def _release(self, sid: str) -> None:
        """If the session lives on a worker, have that keep it. One that does not answer is not waited for."""
        assert self._store is not None
        node, current = self._store.sessions.lives_on(sid)
        if (holder := self._by_name.get(node)) is not None:
            await self._ask_all([holder], "release", SessionWanted(current), RELEASE_SECONDS)

    async def _claim(self, worker: BusWorker, sids: list[str]) -> None:
        if self._store is not None and self._store.interrupted is not None:
            self._store.interrupted.claim(worker.name, sids)

    async def _listen(self, worker: BusWorker, streams: list[str]) -> None:
        self._listeners.add(worker, streams)

    async def _listen_prefixes(self, worker: BusWorker, prefixes: list[bytes]) -> None:
        self._listeners.add_prefixes(worker, prefixes)

    async def _exchange(self, worker: BusWorker, report: bytes) -> bytes:
        return self.exchange(worker.name, report)
