"""A worker's end of the bus.

Invariant: a call ends as answered, as `Unavailable` when nothing was sent, or as `Unanswered` when it was sent and the
connection ended, or time was over, before an answer came.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Protocol, TypeVar

from msgspec import Raw

from ropewalk.adapters.backends.memory.calls import CallKind, call
from ropewalk.adapters.backends.workers import wire
from ropewalk.adapters.backends.workers.calls import Call, declared
from ropewalk.adapters.backends.workers.store_calls import Greeting, StoreCalls
from ropewalk.adapters.backends.workers.wire import ANSWER, CALL, NOTE, BusConnection, frame
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.messages import Registered, RemoteDisconnect
from ropewalk.model.sessions import EndRequest, SessionTaken, SessionWanted
from ropewalk.ports import Deliver, OnDisconnectRequest

logger = logging.getLogger("ropewalk.workers")

AWAY = "the store process of this node does not answer"
RETRY_SECONDS = 0.05
RECONNECT_SECONDS = 3.0
"""Seconds for which a call waits for a store that is restarting."""

ANSWER_SECONDS = 10.0
LOOK_SECONDS = 1.0
MAX_REQUESTS = 100_000
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""Calls without an answer, and bytes that the store has not read. Beyond these limits calls fail with `Unavailable`."""


Dial = Callable[[BusConnection], Awaitable[object]]
"""Connects this end to the store. Raises OSError and `Unavailable`."""


def dial_socket(path: str) -> Dial:
    return lambda connection: asyncio.get_running_loop().create_unix_connection(lambda: connection, path)


class _Asked:
    """A call that waits for its answer."""

    __slots__ = ("answer", "call", "deadline")

    def __init__(self, call: Call, answer: asyncio.Future[Any], deadline: float) -> None:
        self.call = call
        self.answer = answer
        self.deadline = deadline


class StoreLink:
    """Implements `Caller`.

    Args:
        name: of this process, and of no other before or after it.
        receiver: has the methods that the store calls.
        greet: called on each connection, with whether it is the first one, before others may use it.
        patience: seconds for which a call waits for the connection.

    Attributes:
        server_ends: this process ends because all do.
    """

    away = AWAY
    peer = "the store"
    retry_seconds = RETRY_SECONDS
    store_calls: type = StoreCalls

    def __init__(
        self,
        dial: Dial,
        name: str,
        receiver: object,
        greet: Callable[[bool], Awaitable[None]],
        patience: float = RECONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.dial = dial
        self._name = name
        self._greet = greet
        self._calls = declared(Greeting) | declared(self.store_calls)
        self._receiver = receiver
        self._received = declared(type(receiver))
        self._patience = patience
        self._answer_seconds = answer_seconds
        self.server_ends = False
        self._connection: BusConnection | None = None
        self._ready = asyncio.Event()
        self._lost = asyncio.Event()
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._running: asyncio.Task[None] | None = None
        self._obeying: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        return self._ready.is_set()

    async def start(self) -> None:
        """Returns also where the store does not answer yet. May be called again."""
        if self._running is not None:
            return
        self._running = asyncio.get_running_loop().create_task(self._run())
        try:
            async with asyncio.timeout(self._patience):
                await self._ready.wait()
        except TimeoutError:
            logger.error("serving without %s until it answers", self.peer)

    async def stop(self) -> None:
        tasks = [*self._obeying, *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        first = True
        while True:
            try:
                await self._connect()
                await self._greet(first)
                self._ready.set()
                self._reached(first)
                first = False
                await self._stay()
                logger.warning("the connection to %s is lost; trying to get it back", self.peer)
            except (OSError, Unavailable) as error:
                self._unreached(str(error))
            self._ready.clear()
            if self._connection is not None:
                self._connection.close()
            await asyncio.sleep(self.retry_seconds)

    async def _connect(self) -> None:
        self._lost.clear()
        connection = BusConnection(self._receive, self._gone)
        await self.dial(connection)
        self._connection = connection
        await self._send("hello", (self._name,))

    def _unreached(self, reason: str) -> None:
        logger.debug("%s is not reached", self.peer, extra={"reason": reason})

    def _reached(self, first: bool) -> None:
        """Others may use the connection from now on."""
        if not first:
            logger.info("connected to %s again", self.peer)

    async def _stay(self) -> None:
        """Until the connection is lost; meanwhile calls that wait for too long are given up."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._lost.wait()
                return
            except TimeoutError:
                self._give_up(asyncio.get_running_loop().time())

    def _give_up(self, now: float) -> None:
        # In the order of the calls, which is that of their deadlines.
        while self._asked:
            number, asked = next(iter(self._asked.items()))
            if asked.deadline > now:
                return
            del self._asked[number]
            self._fail(asked)

    def _gone(self, connection: BusConnection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._ready.clear()
        self._lost.set()
        asked, self._asked = self._asked, {}
        for each in asked.values():
            self._fail(each)

    def _receive(self, connection: BusConnection, kind: int, number: int, name: str, body: Raw) -> None:
        if kind == NOTE:
            getattr(self._receiver, name)(*self._received[name].arguments(body))
        elif kind == CALL:
            task = asyncio.get_running_loop().create_task(self._obey(connection, number, name, body))
            self._obeying.add(task)
            task.add_done_callback(self._obeying.discard)
        elif (asked := self._asked.pop(number, None)) is not None and not asked.answer.done():
            if kind == ANSWER:
                asked.answer.set_result(asked.call.result(body))
            else:
                asked.answer.set_exception(wire.error_of(name, body))

    async def _obey(self, connection: BusConnection, number: int, name: str, body: Raw) -> None:
        try:
            asked = self._received[name]
            answer = frame(ANSWER, number, "", await getattr(self._receiver, name)(*asked.arguments(body)))
        except Exception as error:
            answer = frame(wire.FAILURE, number, *wire.failure_of(error))
        connection.send(answer)

    # --- to the store -------------------------------------------------------------------------------------------

    async def call(self, method: str, *arguments: object) -> Any:
        if not self._ready.is_set():
            await self._wait()
        return await self._send(method, arguments)

    async def exchange(self, report: bytes) -> bytes:
        """Send the report of this worker. Returns the report of the node. Raises `Unavailable`."""
        answer: bytes = await self.call("exchange", report)
        return answer

    async def again(self, method: str, *arguments: object) -> Any:
        """As `call`, while the store is greeted: before others may use the connection."""
        return await self._send(method, arguments)

    def note_again(self, method: str, *arguments: object) -> None:
        """As `note`, while the store is greeted."""
        if self._connection is not None:
            self._connection.send(frame(NOTE, 0, method, arguments))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable(self.away) from None

    def _send(self, method: str, arguments: tuple[object, ...]) -> asyncio.Future[Any]:
        if self._connection is None:
            raise Unavailable(self.away)
        if len(self._asked) >= MAX_REQUESTS or self._connection.buffered > MAX_UNSENT_BYTES:
            raise Unavailable(f"too many calls wait: {self.away}")
        loop = asyncio.get_running_loop()
        self._number += 1
        answer: asyncio.Future[Any] = loop.create_future()
        self._asked[self._number] = _Asked(self._calls[method], answer, loop.time() + self._answer_seconds)
        self._connection.send(frame(CALL, self._number, method, arguments))
        return answer

    def note(self, method: str, *arguments: object) -> bool:
        """Without waiting for anybody. False when it was not sent."""
        if self._connection is None or not self._ready.is_set() or self._connection.buffered > MAX_UNSENT_BYTES:
            return False
        self._connection.send(frame(NOTE, 0, method, arguments))
        return True

    def _fail(self, asked: _Asked) -> None:
        if not asked.answer.done():
            asked.answer.set_exception(Unanswered(self.away))
            asked.answer.exception()  # the caller may have given up


class ReportLink(StoreLink):
    """Of a worker whose streams are kept by another engine than the store process: it only exchanges reports."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(dial_socket(path), name, None, _nothing)


async def _nothing(first: bool) -> None:
    pass


# --- what a store sends ------------------------------------------------------------------------------------------------


class FeedReceiver:
    """Receives what a store sends to a process. The connection may be open before the feed is started and after it is stopped.
    There are no sessions then."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None
        self._end: OnDisconnectRequest | None = None
        self._ending: set[asyncio.Future[int]] = set()

    def start(self, deliver: Deliver, end: OnDisconnectRequest) -> None:
        self._deliver, self._end = deliver, end

    def stop(self) -> None:
        self._deliver = self._end = None

    @call()
    def deliver(self, messages: list[Registered]) -> None:
        if self._deliver is not None:
            self._deliver(messages)

    @call()
    def deliver_runs(self, runs: list[wire.CarriedRun]) -> None:
        if self._deliver is not None:
            self._deliver([wire.run_of(run) for run in runs])

    @call()
    def session_taken(self, notice: SessionTaken) -> None:
        task = asyncio.ensure_future(self._carry_out(notice))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @call(CallKind.TASK)
    async def disconnect(self, request: RemoteDisconnect) -> int:
        return await self._carry_out(request)

    @call(CallKind.TASK)
    async def release(self, wanted: SessionWanted) -> int:
        return await self._carry_out(wanted)

    async def _carry_out(self, request: EndRequest) -> int:
        return 0 if self._end is None else await self._end(request)


# --- the stores of ports ---------------------------------------------------------------------------------------------------


class Caller(Protocol):
    """Sends calls to a store."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises the error of the call, `Unavailable` if it was not sent, and `Unanswered`."""

    def note(self, method: str, *arguments: object) -> bool:
        """Without an answer. False if it was not sent."""


C = TypeVar("C")
T = TypeVar("T")


def remote(kind: Callable[[C], T], caller: C) -> T:
    """An object of the class `kind`, which derives from a port. Methods that it does not define itself are calls."""
    return _completed(kind)(caller)  # type: ignore[no-any-return]


@cache
def _completed(kind: Any) -> Any:
    members = {name: next(vars(each)[name] for each in kind.__mro__ if name in vars(each)) for name in dir(kind)}
    owners = {name: next(each for each in kind.__mro__ if name in vars(each)) for name in members}
    sent = {
        name: _sender(name, method)
        for name, method in members.items()
        if inspect.iscoroutinefunction(method) and getattr(owners[name], "_is_protocol", False)
    }
    return type(kind.__name__, (kind,), {**sent, "__doc__": kind.__doc__})


def _sender(name: str, method: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    _, *parameters = inspect.signature(method).parameters.values()
    defaults = [parameter.default for parameter in parameters]

    def send(self: Any, *arguments: object) -> Any:
        return self._caller.call(name, *arguments, *defaults[len(arguments) :])

    return send
