"""The hub: messages of one tick are encoded together, once for each group."""

import asyncio
import re
from collections.abc import Sequence

import pytest

from ropewalk.core.stats import Stats
from ropewalk.engine.audience import Backlog, Group
from ropewalk.engine.hub import MAX_PENDING_BYTES, Hub
from ropewalk.model.history import MESSAGE_OVERHEAD_BYTES, Gap, GapReason
from ropewalk.model.messages import Deliverable, Position, Publication, Registered, TransientRun
from ropewalk.protocol.broky.codec import MAX_RUN_BYTES
from ropewalk.protocol.broky.codec import MESSAGES as BROKY
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.runs import decode, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.codec import MessageCodec
from ropewalk.protocol.websocket_frame import MESSAGES as CABLE
from tests.unit.engine.workbench import Workbench

HEAD = CABLE.head("")


class Listener:
    def __init__(self, *names: str) -> None:
        self.names = names
        self.written: list[bytes] = []

    def attach(self, group: Group) -> None:
        group.writers[self] = self.written.append

    def detach(self, group: Group) -> None: ...

    def missed(self, group: Group, after: Position, upto: Position) -> None: ...

    def write_rest(self, rest: bytes) -> None:
        self.written.append(rest)


class SocketListener(Listener):
    """Its kernel buffer takes `room` bytes, then blocks."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def attach(self, group: Group) -> None:
        group.writers[self] = self.send

    def send(self, data: bytes) -> int:
        if not self.room:
            raise BlockingIOError
        taken = min(len(data), self.room)
        self.room -= taken
        self.written.append(data[:taken])
        return taken


def registered(
    offset: int, payload: bytes = b"1", at: float = 1.0, exclude_socket: str = "", broadcast_type: str = ""
) -> Registered:
    return Registered("s", payload, at, "e" if offset else "", offset, exclude_socket, broadcast_type)


def split_run(run: TransientRun) -> list[Registered]:
    return [Registered(run.stream, b'"%d"' % number, run.timestamp) for number in range(run.count)]


def delivered(codec: MessageCodec, *messages: Deliverable, stats: Stats | None = None) -> list[bytes]:
    """The writes of one tick to one listener."""
    hub, listener = Hub(stats or Stats(), lambda: 2.0), Listener()
    hub.join("s", "", codec, listener)
    _deliver(hub, messages)
    return listener.written


def _deliver(hub: Hub, messages: Sequence[Deliverable]) -> None:
    for message in messages:
        hub.deliver(hub.audiences["s"], message)
    hub.flush()


def runs_in(blob: bytes) -> list[Run]:
    bodies = [decode(frame) for frame in FrameSplitter().feed(blob)]
    return [body for body in bodies if isinstance(body, Run)]


async def test_messages_registered_together_are_one_run_in_one_write() -> None:
    stats = Stats()
    (blob,) = delivered(BROKY, registered(7), registered(8, b'{"$bytes":"aGk="}'), registered(9), registered(10), stats=stats)
    assert [(run.offset, run.count, split_payloads(run), run.format, run.epoch) for run in runs_in(blob)] == [
        (7, 1, [b"1"], Format.JSON, b"e"),
        (8, 1, [b"hi"], Format.BYTES, b"e"),
        (9, 2, [b"1", b"1"], Format.JSON, b"e"),
    ]
    assert (stats.deliveries, stats.delivered_bytes) == (4, len(blob))
    assert (sum(stats.publish_to_deliver.counts), stats.publish_to_deliver.total) == (4, 4.0)


async def test_messages_with_other_times_epochs_or_a_hole_are_separate_runs() -> None:
    later, jump = registered(2, at=1.5), registered(4, at=1.5)
    other = Registered("s", b"1", 1.5, "f", 5)
    (blob,) = delivered(BROKY, registered(1), later, jump, other, registered(0), registered(0), registered(6))
    assert [(run.offset, run.count) for run in runs_in(blob)] == [(1, 1), (2, 1), (4, 1), (5, 1), (0, 2), (6, 1)]


async def test_run_size_is_limited() -> None:
    payload = b'"%b"' % bytes(MAX_RUN_BYTES // 2).replace(b"\0", b"x")
    (blob,) = delivered(BROKY, *(registered(offset, payload) for offset in range(1, 4)))
    assert [run.count for run in runs_in(blob)] == [1, 1, 1]


async def test_messages_of_cable_only_types_are_left_out() -> None:
    (blob,) = delivered(BROKY, registered(0, broadcast_type="presence"), registered(1), registered(2, broadcast_type="x"))
    assert [(run.offset, run.count) for run in runs_in(blob)] == [(1, 2)]


async def test_transient_run_is_forwarded_unchanged_and_split_for_text_clients() -> None:
    stats = Stats()
    run = TransientRun("s", b"a frame", 3, 1.0, split_run)
    assert delivered(BROKY, run, stats=stats) == [b"a frame"]
    assert (stats.deliveries, stats.delivered_bytes) == (3, 7)
    assert sum(stats.publish_to_deliver.counts) == 3
    (mixed,) = delivered(BROKY, registered(1), run, registered(2))
    first, last = (delivered(BROKY, registered(offset))[0] for offset in (1, 2))
    assert mixed == first + b"a frame" + last
    texts = delivered(CABLE, registered(1), run)
    assert texts == [b"".join(CABLE.message(HEAD, each) for each in (registered(1), *split_run(run)))]


async def test_message_that_excludes_a_listener_keeps_its_place() -> None:
    hub, included, excluded = Hub(Stats(), lambda: 2.0), Listener("a"), Listener("b")
    for listener in (included, excluded):
        hub.join("s", "", CABLE, listener)
    _deliver(hub, [registered(1), registered(2, exclude_socket="b"), registered(3)])
    one, two, three = (CABLE.message(HEAD, registered(offset)) for offset in (1, 2, 3))
    assert b"".join(included.written) == one + two + three
    assert b"".join(excluded.written) == one + three


async def test_only_ordered_runs_keep_their_place_among_other_streams() -> None:
    async with Workbench() as bench:
        hub, listener = bench.node.hub, Listener()
        for stream in ("a", "b"):
            hub.join(stream, "", BROKY, listener)
        for ordered in (False, True):
            runs = [
                TransientRun(stream, frame, 1, 1.0, split_run, ordered)
                for stream, frame in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4"))
            ]
            bench.backend.feed.publish_runs(runs)
            hub.flush()
        assert listener.written == [b"124", b"3", b"12", b"3", b"4"]


async def test_messages_with_a_partition_key_keep_their_place_among_other_streams() -> None:
    async with Workbench() as bench:
        hub, listener = bench.node.hub, Listener()
        for partition_key in ("", "p"):
            streams = [f"{stream}{partition_key}" for stream in ("a", "b")]
            for stream in streams:
                hub.join(stream, "", CABLE, listener)
            await bench.node.broker.publish(
                [Publication(streams[place], b"%d" % place, partition_key=partition_key) for place in (0, 1, 0)]
            )
            hub.flush()
        seen = [re.findall(rb'"message":(\d)', blob) for blob in listener.written]
        assert seen == [[b"0", b"0"], [b"1"], [b"0"], [b"1"], [b"0"]]


async def test_bytes_not_taken_by_a_socket_are_written_later_without_affecting_others() -> None:
    message = CABLE.message(HEAD, registered(1))
    stats = Stats()
    hub, listeners = Hub(stats, lambda: 2.0), [SocketListener(room) for room in (0, 1, len(message) - 1, len(message))]
    for listener in (*listeners, Listener()):
        hub.join("s", "", CABLE, listener)
    _deliver(hub, [registered(1)])
    assert [b"".join(listener.written) for listener in listeners] == [message] * len(listeners)
    assert [len(listener.written) for listener in listeners] == [1, 2, 2, 1]
    assert stats.deliveries == len(listeners) + 1


class FailingCodec:
    """A codec that cannot encode offset 2."""

    def head(self, identifier: str) -> bytes:
        return b""

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        if any(message.offset == 2 for message in messages):
            raise ValueError
        return b"".join(b"%d" % message.offset for message in messages)

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return b""


async def test_message_that_cannot_be_encoded_does_not_affect_the_others() -> None:
    hub, listener, other = Hub(Stats(), lambda: 2.0), Listener(), Listener()
    hub.join("s", "", FailingCodec(), listener)
    hub.join("s", "", CABLE, other)
    _deliver(hub, [registered(1), registered(2), registered(3)])
    assert listener.written == [b"13"]
    assert other.written == [b"".join(CABLE.message(HEAD, registered(offset)) for offset in (1, 2, 3))]


async def test_backlog_is_bounded_for_small_messages() -> None:
    backlog = Backlog(100 * MESSAGE_OVERHEAD_BYTES)
    maximum = 0
    for offset in range(1, 1_000):
        backlog.add(Registered("a", b"1", 0.0, "e", offset))
        maximum = max(maximum, len(backlog.messages))
    assert backlog.overflowed
    assert 90 < maximum < 100


async def test_backlog_has_room_again_after_take() -> None:
    backlog = Backlog(2 * MESSAGE_OVERHEAD_BYTES)
    backlog.add(Registered("a", b"1", 0.0, "e", 1))
    assert [message.offset for message in backlog.take()] == [1]
    backlog.add(Registered("a", b"1", 0.0, "e", 2))
    assert ([message.offset for message in backlog.take()], backlog.overflowed) == ([2], False)


# --- slices -----------------------------------------------------------------------------------------------------------


async def _turn() -> None:
    await asyncio.sleep(0)


def offsets_in(listener: Listener) -> list[int]:
    return [int(found) for found in re.findall(rb'"offset":(\d+)', b"".join(listener.written))]


async def test_large_audience_is_written_in_slices_and_small_ones_first() -> None:
    hub, many, few = Hub(Stats(), lambda: 2.0, slice_writes=10), [Listener() for _ in range(35)], Listener()
    for listener in many:
        hub.join("s", "", CABLE, listener)
    hub.join("t", "", CABLE, few)
    hub.deliver(hub.audiences["s"], registered(1))
    reached = []
    for turn in range(4):
        await _turn()
        reached.append((sum(bool(listener.written) for listener in many), len(few.written)))
        hub.deliver(hub.audiences["t"], registered(turn + 1))
    assert reached == [(10, 0), (20, 1), (30, 2), (35, 3)]


async def test_messages_join_the_write_for_listeners_that_still_wait() -> None:
    hub, listeners = Hub(Stats(), lambda: 2.0, slice_writes=10), [Listener() for _ in range(40)]
    for listener in listeners:
        hub.join("s", "", CABLE, listener)
    for offset in range(1, 5):
        hub.deliver(hub.audiences["s"], registered(offset))
        await _turn()
    for _ in range(8):
        await _turn()
    assert [offsets_in(listener) for listener in listeners] == [[1, 2, 3, 4]] * 40
    assert [len(listener.written) for listener in listeners[::10]] == [2, 2, 2, 1]


async def test_time_of_a_message_is_measured_when_its_last_listener_has_it() -> None:
    stats, now = Stats(), [2.0]
    hub = Hub(stats, lambda: now[0], slice_writes=10)
    for _ in range(40):
        hub.join("s", "", CABLE, Listener())
    hub.deliver(hub.audiences["s"], registered(1))
    counts = []
    for _ in range(4):
        await _turn()
        now[0] += 0.001
        counts.append((sum(stats.publish_to_deliver.counts), round(stats.publish_to_deliver.total, 3)))
    assert counts == [(0, 0.0)] * 3 + [(1, 1.003)]


async def test_groups_that_have_become_small_take_new_listeners() -> None:
    hub = Hub(Stats(), lambda: 2.0, slice_writes=10)
    joined = [(hub.join("s", "", CABLE, listener), listener) for listener in [Listener() for _ in range(100)]]
    for group, listener in joined[:95]:
        if listener is not joined[0][1]:
            hub.leave(group, listener)
    for _ in range(20):
        hub.join("s", "", CABLE, Listener())
    assert sorted(len(group.writers) for group in hub.audiences["s"].groups) == [6, 10, 10]


async def test_audience_ends_with_its_last_listener() -> None:
    hub = Hub(Stats(), lambda: 2.0, slice_writes=10)
    joined = [(hub.join("s", "", CABLE, listener), listener) for listener in [Listener() for _ in range(25)]]
    hub.deliver(hub.audiences["s"], registered(1))
    for group, listener in joined:
        hub.leave(group, listener)
    assert not hub.audiences
    assert [offsets_in(listener) for _, listener in joined] == [[1]] * 25
    await _turn()
    assert hub.streams() == 0


async def test_publishers_that_are_faster_than_deliveries_wait() -> None:
    hub, listeners = Hub(Stats(), lambda: 2.0, slice_writes=10), [Listener() for _ in range(40)]
    for listener in listeners:
        hub.join("s", "", CABLE, listener)
    large = b'"%b"' % (b"x" * 400_000)
    for offset in range(1, 30):
        hub.deliver(hub.audiences["s"], registered(offset, large))
        for group in hub.audiences["s"].groups:
            assert (
                group.size == sum(each.size for each in group.pending[1:] if isinstance(each, Registered)) <= MAX_PENDING_BYTES
            )
    assert {len(listener.written) for listener in listeners} == {9}
    assert {offsets_in(listener)[-1] for listener in listeners} == {27}
    hub.deliver(hub.audiences["s"], registered(30, b'"%b"' % (b"x" * MAX_PENDING_BYTES)))
    for _ in range(10):
        await _turn()
    assert [offsets_in(listener) for listener in listeners] == [[*range(1, 31)]] * 40


async def test_a_new_group_begins_at_the_position_that_was_delivered() -> None:
    """What is dropped for a slow listener begins there."""
    hub = Hub(Stats(), lambda: 2.0, slice_writes=1)
    hub.join("s", "", CABLE, Listener())
    hub.audiences["s"].cursor.move("e", 7)
    group = hub.join("s", "", CABLE, Listener())
    assert group.written == group.newest == Position("e", 7)


async def test_group_that_fails_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    class FailingGap(FailingCodec):
        def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
            raise ValueError

    hub, listener = Hub(Stats(), lambda: 2.0), Listener()
    hub.join("s", "", FailingGap(), Listener())
    hub.join("t", "", CABLE, listener)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    hub.send_gap(hub.audiences["s"], Gap("s", GapReason.TRIMMED, "e", 2, 1), Position("e", 0))
    hub.deliver(hub.audiences["t"], registered(1))
    await _turn()
    await _turn()
    assert (len(errors), len(listener.written)) == (1, 1)
