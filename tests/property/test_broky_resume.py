"""The state of a TCP client against a model of the server, with frames in transit, disconnects, data loss and trimmed history.

Offsets of an epoch rise, each offset missing between two messages is inside a reported gap, and each
push is registered once and acknowledged with its position.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.broky import BrokyClientCodec
from ropewalk.client.effects import CallAnswered, Effect, Send, WritePushes, Yield
from ropewalk.client.events import Event, Gap, Message
from ropewalk.client.state import ClientState
from ropewalk.client.track import DISCONNECTED
from ropewalk.core.history import BEFORE_ALL, HistoryTotals, StreamLog
from ropewalk.model.history import Gap as ServerGap
from ropewalk.model.history import GapReason, Replay, split_at_gaps
from ropewalk.model.messages import Position, Publication
from ropewalk.model.messages import Registered as Kept
from ropewalk.model.rules import StreamRules
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Body, Reason, Run
from ropewalk.protocol.broky.runs import build_run, decode, encode_run
from ropewalk.protocol.broky.tables import encode

KEYS = (b"a", b"b")
MAX_UNACKED = 600  # bytes: two or three pushes of this test
REASONS = {
    GapReason.TRIMMED: Reason.TRIMMED,
    GapReason.EPOCH_CHANGED: Reason.EPOCH_CHANGED,
    GapReason.AHEAD: Reason.AHEAD,
    GapReason.DROPPED: Reason.SLOW,
}


class Server:
    """Serves one connection at a time, like the engine: commands are read at once and handled in order, and an answer
    has the ref of the last subscription to its key. `longest`: messages of one run."""

    def __init__(self, limit: int, longest: int) -> None:
        self._rules = StreamRules(limit, 1e9)
        self._longest = longest
        self._runs = 0
        self.restart()

    def restart(self) -> None:
        """Lose all data; streams exist again once published to."""
        self._runs += 1
        self.logs: dict[bytes, StreamLog] = {}
        self.uids: dict[bytes, Position] = {}
        self.cut()

    def cut(self) -> None:
        self.to_client: deque[Body] = deque()
        self.to_server: deque[Body] = deque()
        self.commands: deque[Body] = deque()
        self.subscribed: set[bytes] = set()
        self.refs: dict[bytes, int] = {}

    def welcome(self) -> None:
        self.to_client.append(frames.Welcome(max_unacked=MAX_UNACKED))

    def publish(self, key: bytes, payloads: Iterable[bytes], silently: bool = False) -> list[Kept]:
        """`silently`: the connection is too slow, and receives a gap instead."""
        name = key.decode()
        log = self.logs.setdefault(key, StreamLog(name, f"{name}{self._runs}", self._rules, HistoryTotals()))
        registered = [log.append(Publication(name, payload), 0.0) for payload in payloads]
        if key in self.subscribed and silently:
            self.to_client.append(_gap(ServerGap(name, GapReason.DROPPED, log.epoch, log.tip + 1, log.tip)))
        elif key in self.subscribed:
            self._send(registered)
        return registered

    def read(self, body: Body) -> None:
        match body:
            case frames.Subscribe(ref, key):
                self.refs[key] = ref
                self.commands.append(body)
            case frames.Unsubscribe():
                self.commands.append(body)
            case Run():
                position = self.uids.get(body.uid)
                if position is None:
                    (kept,) = self.publish(body.key, [body.payload])
                    position = self.uids[body.uid] = Position(kept.epoch, kept.offset)
                epoch = position.epoch.encode()
                self.to_client.append(frames.Pushed((body.ref,), (position.offset,), len(epoch).to_bytes() + epoch))

    def handle(self) -> None:
        match self.commands.popleft():
            case frames.Subscribe(_, key) as command:
                self._subscribe(self.refs.pop(key, 0), key, command)
            case frames.Unsubscribe(_, key):
                self.subscribed.discard(key)

    def _subscribe(self, ref: int, key: bytes, command: frames.Subscribe) -> None:
        log = self.logs.get(key)
        answer = self._answer(log, key, command)
        tip = Position(log.epoch, log.tip) if log else BEFORE_ALL
        self.to_client.append(frames.Subscribed(ref, tip.epoch.encode(), tip.offset))
        for piece in split_at_gaps(answer):
            self._send(list(piece.messages))
            if isinstance(piece, ServerGap):
                self.to_client.append(_gap(piece))
        self.subscribed.add(key)

    def _answer(self, log: StreamLog | None, key: bytes, command: frames.Subscribe) -> Replay | ServerGap:
        if command.epoch:
            if log is not None:
                return log.after(Position(command.epoch.decode(), command.offset), 0.0)
            return ServerGap(key.decode(), GapReason.EPOCH_CHANGED, "", 1, 0) if command.offset else Replay(key.decode(), "", 0)
        if log is not None and command.history:
            return log.after(BEFORE_ALL, 0.0)
        return Replay(key.decode(), log.epoch if log else "", log.tip if log else 0)

    def _send(self, messages: list[Kept]) -> None:
        for first in range(0, len(messages), self._longest):
            some = messages[first : first + self._longest]
            run = build_run(some[0].stream.encode(), [message.payload for message in some])
            at, epoch = some[0].offset, some[0].epoch.encode()
            self.to_client.append(Run(0, run.count, at, 0, run.key, b"", run.sizes, (), b"", epoch, run.payload))


def _gap(gap: ServerGap) -> frames.Gap:
    last = gap.tip if gap.reason is GapReason.AHEAD else gap.oldest - 1
    return frames.Gap(gap.stream.encode(), REASONS[gap.reason], gap.epoch.encode(), 0, last)


class World:
    def __init__(self, limit: int, longest: int) -> None:
        self.server = Server(limit, longest)
        self.codec = BrokyClientCodec()
        self.state = ClientState()
        self.events: list[Event] = []
        self.pushed: list[bytes] = []
        self.answers: dict[int, Position] = {}
        for key in KEYS:
            self.subscribe(key, BEFORE_ALL)
        self.server.welcome()

    def step(self, name: str) -> None:
        match name:
            case "publish a" | "publish b":
                self.server.publish(name[-1].encode(), [b"1", b"2", b"3"])
            case "too slow":
                self.server.publish(b"a", [b"4"], silently=True)
            case "client reads" if self.server.to_client:
                for reply in self.codec.decode(encode(self.server.to_client.popleft())):
                    self.apply(self.state.receive(reply, 0.0))
            case "server reads" if self.server.to_server:
                self.server.read(self.server.to_server.popleft())
            case "server works" if self.server.commands:
                self.server.handle()
            case "push":
                self.push()
            case "cut":
                self.reconnect(self.server.cut)
            case "restart":
                self.reconnect(self.server.restart)
            case "leave and return":
                self.leave_and_return(b"a")

    def push(self) -> None:
        ref = self.state.calls.next_ref()
        uid = ref.to_bytes(20)
        self.pushed.append(uid)
        self.apply(self.state.calls.push(ref, encode_run(build_run(b"a", [uid], ref, uid=uid))))

    def leave_and_return(self, key: bytes) -> None:
        """Unsubscribe, then subscribe from the last position."""
        position = next((event for event in reversed(self.events) if event_of(event, key)), None)
        after = BEFORE_ALL
        if isinstance(position, Message):
            after = Position(position.epoch, position.offset)
        elif isinstance(position, Gap):
            after = Position(position.epoch or "", (position.resumes_at or 1) - 1)
        self.apply(self.state.unsubscribe(key.decode()))
        self.codec.remove(key.decode())
        self.subscribe(key, after)

    def subscribe(self, key: bytes, after: Position) -> None:
        target = self.codec.public(key, None, after, presence_events=False, prefix=False)
        self.codec.add(target)
        self.apply(self.state.subscribe(target.identifier, target.track, 0.0))

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(command):
                    frame = self.codec.encode(command, self.state.calls.next_ref())
                    self.server.to_server.extend([decode(frame)] if frame else [])
                case WritePushes(pushes):
                    self.server.to_server.extend(map(decode, pushes))
                case Yield(_, events):
                    self.events += events
                case CallAnswered(ref, position):
                    assert ref not in self.answers
                    assert isinstance(position, Position)
                    self.answers[ref] = position

    def reconnect(self, lose: Callable[[], None]) -> None:
        lose()
        self.state.lost()
        self.codec.open("")
        self.server.welcome()

    def settle(self) -> None:
        while self.server.to_client or self.server.to_server or self.server.commands:
            self.step("server reads")
            self.step("server works")
            self.step("client reads")


def event_of(event: Event, key: bytes) -> bool:
    return isinstance(event, Message | Gap) and event.stream == key.decode()


def check_positions(world: World) -> None:
    for key in KEYS:
        expected = BEFORE_ALL
        for event in world.events:
            if event == Gap(key.decode(), DISCONNECTED, BEFORE_ALL):
                assert not expected.epoch, "only without a position to resume from"
            elif isinstance(event, Gap) and event_of(event, key):
                assert event.resumes_at is not None
                assert event.reason, "every gap was reported by the server"
                expected = Position(event.epoch or "", event.resumes_at - 1)
            if isinstance(event, Message) and event_of(event, key):
                assert event.offset == expected.offset + 1
                assert event.epoch == expected.epoch or not expected.epoch
                expected = Position(event.epoch, event.offset)
        log = world.server.logs.get(key)
        assert expected.offset == (log.tip if log else 0) or (log is None and not expected.epoch)


LINE = ["client reads", "server reads", "server works"]
STEPS = [*LINE, "publish a", "publish b", "cut", "restart", "too slow", "push", "leave and return"]
WEIGHTED = STEPS + [*LINE, "publish a", "push"] * 3


@given(st.integers(1, 8), st.integers(1, 4), st.lists(st.sampled_from(WEIGHTED), max_size=80))
def test_each_position_is_delivered_once_in_order_or_reported_as_a_gap(limit: int, longest: int, names: list[str]) -> None:
    world = World(limit, longest)
    for name in names:
        world.step(name)
    world.settle()
    check_positions(world)


@given(st.lists(st.sampled_from(["push", "push", *LINE, "cut"]), max_size=80))
def test_push_is_registered_once_in_order_and_acknowledged(names: list[str]) -> None:
    world = World(1000, 3)
    for name in names:
        world.step(name)
    world.settle()
    assert len(world.state.calls.pushes) == 0
    payloads = [event.data for event in world.events if isinstance(event, Message)]
    assert payloads == world.pushed
    offsets = [world.answers[int.from_bytes(uid)].offset for uid in world.pushed]
    assert offsets == list(range(1, len(world.pushed) + 1))
    assert [key for key, _ in groupby(world.answers)] == sorted(world.answers)
