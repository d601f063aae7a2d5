"""The client's state against a model of the server, with frames in transit, disconnects, restores and trimmed history.

Offsets of an epoch rise, and each offset missing between two messages is inside a reported gap.
"""

from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ropewalk.client.effects import Send, Yield
from ropewalk.client.events import Event, Gap, Message
from ropewalk.client.state import ClientState
from ropewalk.client.track import Track
from ropewalk.core.delivered import Delivered
from ropewalk.core.history import BEFORE_ALL, HistoryTotals, StreamLog
from ropewalk.engine.subscription import Subscription, with_sent
from ropewalk.model.commands import History, Subscribe
from ropewalk.model.history import Gap as ServerGap
from ropewalk.model.history import GapReason, HistoryRequest, Replay, split_at_gaps
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Subscribed
from ropewalk.protocol.client_commands import ClientCommand
from ropewalk.protocol.server_messages import (
    Data,
    HistoryConfirmed,
    HistoryRejected,
    ServerMessage,
    StreamGap,
    SubscriptionConfirmed,
    Welcome,
)

IDENTIFIER = "i"
STREAMS = ("a", "b")


class Server:
    """One session with two streams, like in the engine. `bound`: messages of a stream in one answer."""

    def __init__(self, limit: int, bound: int) -> None:
        self._rules = StreamRules(limit, 1e9)
        self._bound = bound
        self._runs = 0
        self.logs: dict[str, StreamLog] = {}
        self.restart()

    def restart(self) -> None:
        """Lose all data, including the session."""
        self._runs += 1
        self.logs = {name: StreamLog(name, f"{name}{self._runs}", self._rules, HistoryTotals()) for name in STREAMS}
        self.session = False
        self.cut()

    def cut(self) -> None:
        self.to_client: deque[ServerMessage] = deque()
        self.to_server: deque[ClientCommand] = deque()
        self.subscription = Subscription(IDENTIFIER, Subscribed(STREAMS))
        self.held: list[Registered] = []

    def welcome(self) -> None:
        self.to_client.append(Welcome("s", self.session, (IDENTIFIER,) if self.session else ()))

    def publish(self, stream: str) -> None:
        registered = self.logs[stream].append(Publication(stream, b"0"), 0.0)
        if not self.subscription.held:
            self._send(registered)
        elif self.session:
            self.held.append(registered)

    def abandon(self) -> None:
        """Let the resume timeout expire."""
        if self.session and self.subscription.held:
            for message in self.held:
                self._send(message)
            self._reject([ServerGap(log.stream, GapReason.UNCLAIMED, log.epoch, log.oldest, log.tip) for log in self._all()])
            self.subscription.delivered = tuple(Delivered(log.epoch, self._first_held(log)) for log in self._all())

    def _first_held(self, log: StreamLog) -> int:
        return next((message.offset for message in self.held if message.stream == log.stream), log.tip + 1)

    def _all(self) -> list[StreamLog]:
        return [self.logs[name] for name in STREAMS]

    def handle(self, command: ClientCommand) -> None:
        match command:
            case Subscribe(_, request):
                self.session = True
                self.to_client.append(SubscriptionConfirmed(IDENTIFIER))
                self._answer(request)
            case History(_, request):
                self._answer(request)

    def _answer(self, request: HistoryRequest | None) -> None:
        answers = [self._replay(log, request or HistoryRequest()) for log in self._all()]
        if self.subscription.held:
            pending = [list(split_at_gaps(answer)) for answer in answers]
            live = [Delivered(answer.epoch, answer.tip + 1) for answer in answers]
            self.subscription.delivered = tuple(with_sent(each, pieces) for each, pieces in zip(live, pending, strict=True))
        else:
            pending = [self.subscription.take_unsent(split_at_gaps(answer)) for answer in answers]
        for row in zip_longest(*pending):
            pieces = [piece for piece in row if piece is not None]
            for message in (message for piece in pieces for message in piece.messages):
                self._send(message)
            if gaps := [piece for piece in pieces if isinstance(piece, ServerGap)]:
                self._reject(gaps)
        if request is not None:
            self.to_client.append(HistoryConfirmed(IDENTIFIER))

    def _replay(self, log: StreamLog, request: HistoryRequest) -> Replay | ServerGap:
        position = request.streams.get(log.stream)
        answer = log.after(position, 0.0) if position else Replay(log.stream, log.epoch, log.tip)
        if isinstance(answer, ServerGap):
            return replace(answer, rest=self._bounded(answer.rest)) if isinstance(answer.rest, Replay) else answer
        return self._bounded(answer)

    def _bounded(self, answer: Replay) -> Replay | ServerGap:
        if len(answer.messages) <= self._bound:
            return answer
        part = answer.messages[: self._bound]
        return ServerGap(answer.stream, GapReason.PARTIAL, answer.epoch, part[-1].offset + 1, answer.tip, part)

    def _send(self, message: Registered) -> None:
        self.to_client.append(Data(IDENTIFIER, b"0", message.stream, message.epoch, message.offset))

    def _reject(self, gaps: list[ServerGap]) -> None:
        details = {gap.stream: StreamGap(gap.reason, gap.epoch, gap.oldest, gap.tip) for gap in gaps}
        self.to_client.append(HistoryRejected(IDENTIFIER, gaps[0].reason, details))


class Run:
    def __init__(self, limit: int, bound: int) -> None:
        self.server = Server(limit, bound)
        self.state = ClientState()
        self.events: list[Event] = []
        # From the beginning, to cover the whole stream: a request by time does not report earlier messages.
        self.state.subscribe(IDENTIFIER, Track(None, dict.fromkeys(STREAMS, BEFORE_ALL)), 0.0)
        self.server.welcome()

    def step(self, name: str) -> None:
        match name:
            case "publish a" | "publish b":
                self.server.publish(name[-1])
            case "client reads" if self.server.to_client:
                self.client_reads()
            case "server reads" if self.server.to_server:
                self.server.handle(self.server.to_server.popleft())
            case "cut":
                self.reconnect(self.server.cut)
            case "restart":
                self.reconnect(self.server.restart)
            case "resume timeout":
                self.server.abandon()

    def client_reads(self) -> None:
        for effect in self.state.receive(self.server.to_client.popleft(), 0.0):
            match effect:
                case Send(command):
                    self.server.to_server.append(cast(ClientCommand, command))
                case Yield(_, events):
                    self.events += events

    def reconnect(self, lose: Callable[[], None]) -> None:
        lose()
        self.state.lost()
        self.server.welcome()

    def settle(self) -> None:
        while self.server.to_client or self.server.to_server:
            self.step("server reads")
            self.step("client reads")


def check(run: Run) -> None:
    for stream in STREAMS:
        expected = BEFORE_ALL
        for event in run.events:
            if isinstance(event, Gap) and event.stream == stream:
                assert event.resumes_at is not None
                expected = Position(event.epoch or "", event.resumes_at - 1)
            if isinstance(event, Message) and event.stream == stream:
                assert event.offset == expected.offset + 1
                assert event.epoch == expected.epoch or not expected.epoch
                expected = Position(event.epoch, event.offset)
        log = run.server.logs[stream]
        assert expected.offset == log.tip


STEPS = ["publish a", "publish b", "client reads", "server reads", "cut", "restart", "resume timeout"]
WEIGHTED = STEPS + ["publish a", "client reads", "server reads"] * 3


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.sampled_from(WEIGHTED), max_size=80))
def test_each_position_is_delivered_once_in_order_or_reported_as_a_gap(limit: int, bound: int, names: list[str]) -> None:
    run = Run(limit, bound)
    for name in names:
        run.step(name)
    run.settle()
    check(run)
