"""Hooks of the application suites, and a session that calls an application as the engine does."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
    State,
    merge_state,
)
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.ports import Application
from ropewalk.testing import application_events as events
from ropewalk.testing.application_events import ApplicationEvent
from ropewalk.testing.application_orders import NAME, Order, call, seat

POLL = 0.005


class ApplicationSetup(Struct, frozen=True):
    """What a test asks of the application it is given: where the obedient application writes down what it is told, how many
    seconds a call may take, and how many calls are made at once, where the adapter bounds that."""

    log: Path
    timeout: float
    concurrency: int = 28


class NoPublisher:
    """The obedient application publishes nothing."""

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        raise AssertionError(publications)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        raise AssertionError(request)


class ApplicationRig:
    """Hooks and helpers of the suites.

    `guard`: seconds after which a test gives up waiting. `plenty` and `short`: how long calls may take where the test is not
    about time, and where it is.
    """

    guard = 60.0
    plenty = 30.0
    short = 1.0

    def serving(self, setup: ApplicationSetup) -> AbstractAsyncContextManager[Application]:
        """Serve the obedient application of `application_orders` while entered. Yields the adapter, not started."""
        raise NotImplementedError("serve the obedient application")

    def told(self, log: Path) -> list[ApplicationEvent]:
        """The calls it received. Override it if channels receive events of the session one by one: see `folded`."""
        return events.read(log)

    @asynccontextmanager
    async def running(
        self, directory: Path, timeout: float | None = None, concurrency: int = 28
    ) -> AsyncIterator[tuple[Application, "Record"]]:
        log = directory / "told.jsonl"
        setup = ApplicationSetup(log, self.plenty if timeout is None else timeout, concurrency)
        async with self._guarded(), self.serving(setup) as application:
            await application.start(NoPublisher())
            try:
                yield application, Record(lambda: self.told(log))
            finally:
                await application.stop()

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.guard) as guard:
                yield
        except TimeoutError as late:
            if not guard.expired():
                raise
            raise AssertionError(f"not finished after {self.guard:g} seconds{_noted(late.__cause__)}") from late


class Record:
    """The calls that the application received so far."""

    def __init__(self, read: Callable[[], list[ApplicationEvent]]) -> None:
        self._read = read

    def of(self, sid: str) -> list[ApplicationEvent]:
        return [event for event in self._read() if event.sid == sid]

    def kinds(self, sid: str) -> list[str]:
        return [event.kind for event in self.of(sid)]

    async def heard(self, sid: str, kind: str) -> ApplicationEvent:
        """The latest of its kind, as soon as there is one."""
        await until(lambda: kind in self.kinds(sid), f"the application receives {kind} of the session {sid}")
        return [event for event in self.of(sid) if event.kind == kind][-1]


class ApplicationSession:
    """Calls the application for one client, in request, and keeps the state on its behalf, as the engine does."""

    def __init__(
        self,
        application: Application,
        sid: str,
        user: str = "ann",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.sid = sid
        self.ids = ""
        self.state: State = {}
        self.own: dict[str, State] = {}
        self._application = application
        self._url = "http://localhost/cable?" + urlencode({**({NAME: user} if user else {}), **(params or {})})
        self._headers = dict(headers or {})

    @property
    def context(self) -> CallContext:
        return CallContext(self.sid, self._url, self._headers, self.ids, self.state)

    async def connect(self, wanted: Callable[[], bool] = lambda: True) -> ConnectResult:
        result = await self._application.connect(self.context, wanted)
        self.ids, self.state = result.ids, merge_state(self.state, result.state)
        return result

    async def subscribe(self, request: Order | None = None, number: int = 0) -> CommandResult:
        return await self.command(Action.SUBSCRIBE, seat(request, number))

    async def perform(self, identifier: str, request: Order | None = None) -> CommandResult:
        return await self.command(Action.PERFORM, identifier, call(request))

    async def unsubscribe(self, identifier: str) -> CommandResult:
        return await self.command(Action.UNSUBSCRIBE, identifier)

    async def command(self, action: Action, identifier: str, data: str = "") -> CommandResult:
        before = self.own.get(identifier, {})
        result = await self._application.command(CommandCall(self.context, action, identifier, before, data))
        self.state = merge_state(self.state, result.state)
        if action is Action.UNSUBSCRIBE:
            self.own.pop(identifier, None)
        elif result.accepted:
            self.own[identifier] = merge_state(before, result.own)
        return result

    async def restored(self, former: str) -> RestoreResult:
        result = await self._application.restored(RestoreCall(self.context, former, dict(self.own)))
        self.state = merge_state(self.state, result.state)
        for identifier, changes in result.own.items():
            self.own[identifier] = merge_state(self.own[identifier], changes)
        return result

    async def disconnect(self) -> None:
        await self._application.disconnect(DisconnectCall(self.context, dict(self.own)))


def said(result: ConnectResult | CommandResult | RestoreResult) -> list[tuple[str, Any]]:
    """Identifier and message of each transmission that is a channel's. Others are the wire's own, and may be left to the
    server."""
    texts = [json.loads(text) for text in result.transmissions]
    return [(text["identifier"], text["message"]) for text in texts if "message" in text and "type" not in text]


def known_by(result: ConnectResult) -> Any:
    """What the application knows the client by: JSON, as the obedient application writes it."""
    assert result.accepted, "the application refused the client: did the URL and the headers reach it?"
    try:
        return json.loads(result.ids)
    except ValueError:
        raise AssertionError(f"the ids of the client are not those that the application gave: {result.ids!r}") from None


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. If it never holds, the guard of the test fails it and reports `what`."""
    with _waiting(what):
        while True:
            if condition():
                return
            await asyncio.sleep(POLL)


async def until_answered(session: ApplicationSession) -> ConnectResult:
    with _waiting("the application answers a connect"):
        while True:
            try:
                return await session.connect()
            except Unavailable:
                await asyncio.sleep(POLL)


async def failure_of(call: "asyncio.Future[Any]") -> BaseException:
    """The exception of a call. It must not be CancelledError, which the caller would take for a cancellation of its own."""
    with _waiting("a call comes to its end"):
        await asyncio.wait([call])
    assert not call.cancelled(), "the call was cancelled: it must raise an error of the port"
    failure = call.exception()
    assert failure is not None, f"the call was answered: {call.result()}"
    return failure


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError as cancelled:
        cancelled.add_note(f"until {what}")
        raise


def _noted(cause: BaseException | None) -> str:
    """The notes that `_waiting` added to the cancellation."""
    notes: list[str] = getattr(cause, "__notes__", [])
    return f"; it waits {', '.join(notes)}" if notes else ""
