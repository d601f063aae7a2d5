"""Atomic join: confirmation, history, `confirm_history`, live; no duplicate, no hole, no inversion."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.backoff import Backoff
from ropewalk.core.rules import Rulebook
from ropewalk.engine import joins
from ropewalk.model import closing as closings
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, Replay
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position, Publication
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.protocol.broky.codec import BrokyCodec
from ropewalk.protocol.broky.frames import Gap as BrokyGap
from ropewalk.protocol.broky.frames import Reason, Run, Subscribe, Subscribed, Welcome
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.sse import SseCodec
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle


async def test_history_is_between_its_confirmations_and_live_messages_follow() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1", "2", "3")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        await bench.publish("s", "4")
        assert client.seen() == ["welcome", "confirm_subscription", 1, 2, 3, "confirm_history", 4]


async def test_history_over_tcp_waits_for_a_failing_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Workbench() as bench:
        bench.codec = BrokyCodec(Welcome(), None)
        since, failures = bench.backend.streams.since, [Unavailable("unavailable")] * (joins.ATTEMPTS + 1)

        async def fail_at_first(stream: str, time: float) -> Replay | Gap:
            if failures:
                raise failures.pop()
            return await since(stream, time)

        await bench.publish("s", "1", "2", "3")
        client = await bench.connect()
        client.session.receive(encode(Subscribe(1, b"s")))
        await settle()
        monkeypatch.setattr(joins, "BETWEEN_ATTEMPTS", Backoff(0.0, 0.0))
        monkeypatch.setattr(bench.backend.streams, "since", fail_at_first)
        client.session.receive(encode(Subscribe(2, b"s", history=True)))
        await settle()
        splitter = FrameSplitter()
        got = [decode(frame) for data in client.connection.written for frame in splitter.feed(data)]
        assert [type(body) for body in got] == [Welcome, Subscribed, Subscribed, Run]
        assert not failures


async def test_half_closed_client_is_not_kept_for_an_unavailable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server cannot detect whether it is still connected."""

    async def fail(stream: str, time: float) -> Replay | Gap:
        raise Unavailable("unavailable")

    async with Workbench() as bench:
        bench.codec = BrokyCodec(Welcome(), None)
        monkeypatch.setattr(joins, "BETWEEN_ATTEMPTS", Backoff(0.0, 0.0))
        monkeypatch.setattr(bench.backend.streams, "since", fail)
        client = await bench.connect()
        client.session.receive(encode(Subscribe(1, b"s", history=True)))
        for _ in range(joins.ATTEMPTS):
            await settle()
        assert client.connection.closed is None
        rest = client.session.finish()
        assert rest is not None
        await rest
        assert client.connection.closed is not None


async def test_message_of_the_same_tick_is_replayed_or_live_but_not_both() -> None:
    async with Workbench() as bench:
        first = await bench.connect()
        await first.send(command="subscribe", identifier=public("s"))
        second = await bench.connect()
        # Published and not yet flushed to the first client when the second one joins.
        second.session.receive(b'{"command":"subscribe","history":{"since":1},"identifier":%s}' % _quoted(public("s")))
        publishing = asyncio.ensure_future(bench.publish("s", "1", "2"))
        await publishing
        await settle()
        assert [item for item in first.seen() if isinstance(item, int)] == [1, 2]
        assert [item for item in second.seen() if isinstance(item, int)] == [1, 2]


async def test_confirmation_history_and_its_confirmation_are_one_write() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1", "2", "3")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        assert client.seen() == ["welcome", "confirm_subscription", 1, 2, 3, "confirm_history"]
        assert len(client.connection.written) == 2


async def test_session_is_welcomed_before_open_returns() -> None:
    async with Workbench() as bench:
        assert bench.open_connection().seen() == ["welcome"]


async def test_cached_history_leaves_out_messages_that_exclude_the_client() -> None:
    async with Workbench() as bench:
        clients = [await bench.connect() for _ in range(3)]
        await bench.publish("s", "1", "2")
        await bench.node.broker.publish([Publication("s", b"3", exclude_socket=clients[1].sid)])
        await bench.publish("s", "4")
        for client in clients:
            await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        got = [[item for item in client.seen() if isinstance(item, int)] for client in clients]
        assert got == [[1, 2, 3, 4], [1, 2, 4], [1, 2, 3, 4]]


async def test_cached_histories_with_different_ranges_are_kept_apart() -> None:
    async with Workbench() as bench:
        epoch = (await bench.publish("s", "1", "2", "3"))[0].epoch
        got: list[list[int]] = []
        for after in (0, 1, 0, 2):
            client = await bench.connect()
            positions = {"s": {"epoch": epoch, "offset": after}}
            await client.send(command="subscribe", identifier=public("s"), history={"streams": positions})
            got.append([item for item in client.seen() if isinstance(item, int)])
        await bench.publish("s", "4")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        assert got == [[1, 2, 3], [2, 3], [1, 2, 3], [3]]
        assert client.seen() == ["welcome", "confirm_subscription", 1, 2, 3, 4, "confirm_history"]
        assert bench.stats.replayed_messages == 3 + 2 + 3 + 1 + 4


def _quoted(text: str) -> bytes:
    return b'"' + text.replace('"', '\\"').encode() + b'"'


class SlowBackend(MemoryBackend):
    """A store behind a network: it answers at once, and the answers arrive later."""

    def __init__(self) -> None:
        super().__init__(Rulebook(StreamRules()), Clock())
        self.arrive = asyncio.Event()
        inner = self.streams.replay

        async def replay(stream: str, position: Position) -> Replay | Gap:
            answer = await inner(stream, position)
            await self.arrive.wait()
            return answer

        self.streams.replay = replay  # type: ignore[method-assign]


@pytest.mark.parametrize("during", [0, 1, 3])
async def test_message_published_during_a_replay_is_neither_lost_nor_repeated(during: int) -> None:
    backend = SlowBackend()
    async with Workbench(backend=backend) as bench:
        (receipt, _) = await bench.publish("s", "1", "2")
        client = await bench.connect()
        position = {"epoch": receipt.epoch, "offset": 0}
        await client.send(command="subscribe", identifier=public("s"), history={"streams": {"s": position}})
        await bench.publish("s", *["0"] * during)
        assert client.seen() == ["welcome"]
        backend.arrive.set()
        await settle()
        await bench.publish("s", "9")
        late = list(range(3, 3 + during))
        assert client.seen() == ["welcome", "confirm_subscription", 1, 2, "confirm_history", *late, 3 + during]


async def test_client_that_leaves_during_a_replay_is_not_joined() -> None:
    backend = SlowBackend()
    async with Workbench(backend=backend) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history={"streams": {"s": {"epoch": "", "offset": 0}}})
        client.session.connection_lost()
        backend.arrive.set()
        await settle()
        assert bench.report().streams_listened == 0


async def test_history_of_a_live_subscription_has_only_undelivered_messages() -> None:
    async with Workbench() as bench:
        receipts = await bench.publish("s", "1", "2", "3")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        await bench.publish("s", "4")
        position = {"epoch": receipts[0].epoch, "offset": 1}
        await client.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert client.seen() == ["welcome", "confirm_subscription", 4, 2, 3, "confirm_history"]
        await client.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert client.seen()[6:] == ["confirm_history"]


async def test_gap_has_its_reason_and_the_kept_messages_follow() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1")
        client = await bench.connect()
        request = {"streams": {"s": {"epoch": "another", "offset": 7}}}
        await client.send(command="subscribe", identifier=public("s"), history=request)
        await bench.publish("s", "2")
        assert client.seen() == ["welcome", "confirm_subscription", "reject_history", 1, 2]
        rejection = client.connection.replies()[2]
        assert rejection["reason"] == "epoch_changed"
        assert rejection["streams"]["s"]["tip"] == 1
        assert bench.stats.gaps == {"epoch_changed": 1}


async def test_repeated_subscribe_is_confirmed_again_and_delivers_once() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        for _ in range(3):
            await client.send(command="subscribe", identifier=public("s"))
        await bench.publish("s", "1")
        assert client.seen() == ["welcome", *["confirm_subscription"] * 3, 1]


async def pipelined(bench: Workbench, *commands: Mapping[str, object], backend: "SlowBackend") -> Client:
    """A client that sent all commands before the first was answered."""
    client = await bench.connect()
    for command in commands:
        client.session.receive(json.dumps(command).encode())
    await settle()
    assert client.seen() == ["welcome"]
    backend.arrive.set()
    await settle()
    return client


def subscribe_command(stream: str, **more: object) -> dict[str, object]:
    return {"command": "subscribe", "identifier": public(stream), "history": {"streams": {stream: EVERYTHING}}, **more}


EVERYTHING = {"epoch": "", "offset": 0}


async def test_subscribe_repeated_before_the_first_answer_gets_no_answer() -> None:
    backend = SlowBackend()
    async with Workbench(backend=backend) as bench:
        await bench.publish("s", "1")
        client = await pipelined(bench, *[subscribe_command("s")] * 3, backend=backend)
        assert client.seen() == ["welcome", "confirm_subscription", 1, "confirm_history"]
        await client.send(**subscribe_command("s"))  # after the answer it is a new request
        assert client.seen()[4:] == ["confirm_subscription", "confirm_history"]


async def test_subscribe_after_an_unsubscribe_is_not_a_repeat() -> None:
    backend = SlowBackend()
    async with Workbench(backend=backend) as bench:
        leaving = {"command": "unsubscribe", "identifier": public("s")}
        client = await pipelined(bench, subscribe_command("s"), leaving, subscribe_command("s"), backend=backend)
        assert client.seen() == ["welcome", *["confirm_subscription", "confirm_history"] * 2]
        await bench.publish("s", "1")
        assert client.seen()[-1] == 1


async def test_repeated_subscribe_gets_history_and_presence_the_first_did_not_request() -> None:
    backend = SlowBackend()
    async with Workbench(backend=backend) as bench:
        await bench.publish("s", "1")
        plain = {"command": "subscribe", "identifier": public("s")}
        repeat = subscribe_command("s", presence={"id": "bo"})
        client = await pipelined(bench, subscribe_command("other"), plain, repeat, backend=backend)
        other_replies = ["confirm_subscription", "confirm_history"]
        assert client.seen() == ["welcome", *other_replies, "confirm_subscription", 1, "confirm_history", "presence"]


async def test_legacy_history_request_is_accepted() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        await client.send(type="history", identifier=public("s"), history={"since": 1})
        assert client.seen() == ["welcome", "confirm_subscription", 1, "confirm_history"]


async def test_excluded_message_is_not_replayed_under_the_next_sid() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        receipts = await bench.publish("s", "1", exclude_socket=client.sid)
        await bench.publish("s", "2", broadcast_type="note")
        assert client.seen()[2:] == ["note"]
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        position = {"epoch": receipts[0].epoch, "offset": 0}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert back.seen() == ["welcome", "note", "confirm_history"]


SHORT = StreamRule("short", history_limit=3)


async def test_trimmed_position_gets_all_kept_messages_and_then_live() -> None:
    async with Workbench(rules=[SHORT]) as bench:
        (receipt, *_) = await bench.publish("short", *"123456")
        client, asking = await bench.connect(), await bench.connect(positions="1")
        request = {"streams": {"short": {"epoch": receipt.epoch, "offset": 1}}}
        for each in (client, asking):
            await each.send(command="subscribe", identifier=public("short"), history=request)
        await bench.publish("short", "7")
        assert client.seen() == ["welcome", "confirm_subscription", "reject_history", 4, 5, 6, 7]
        assert asking.seen() == ["welcome", "confirm_subscription", "reject_history", 4, 5, 6, "confirm_history", 7]
        gap = {"reason": "trimmed", "epoch": receipt.epoch, "oldest": 4, "tip": 6}
        assert client.connection.replies()[2]["streams"] == {"short": gap}


async def test_clients_with_and_without_positions_share_one_group() -> None:
    async with Workbench() as bench:
        clients = [await bench.connect(), await bench.connect(positions="1")]
        for client in clients:
            await client.send(command="subscribe", identifier=public("news"))
        (first,), (second,) = (client.session.subscriptions[public("news")].groups for client in clients)
        assert first is second


async def test_messages_sent_after_a_gap_are_not_sent_again() -> None:
    async with Workbench(rules=[SHORT]) as bench:
        (receipt, *_) = await bench.publish("short", *"123456")
        client = await bench.connect()
        ask = {"identifier": public("short"), "history": {"streams": {"short": {"epoch": receipt.epoch, "offset": 1}}}}
        await client.send(command="subscribe", **ask)
        await bench.publish("short", "7")
        before = len(client.seen())
        await client.send(command="history", **ask)
        assert client.seen()[before:] == ["reject_history"]


@pytest.mark.parametrize("extended", [True, False])
async def test_confirmations_equal_the_reference_byte_for_byte(extended: bool) -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1")
        client = await bench.connect(extended=extended)
        identifier = '{"channel":"$pubsub","stream_name":"s"}'
        for command in ("subscribe", "subscribe", "history"):
            await client.send(command=command, identifier=identifier, history={"since": 1})
        quoted = _quoted(identifier)
        confirmation = b'{"type":"confirm_subscription","identifier":%s}' % quoted
        history = b'{"type":"confirm_history","identifier":%s}' % quoted
        frames = [frame for frame in client.connection.texts() if b'"type":"confirm' in frame]
        assert frames == [confirmation, history, confirmation, history, history]


async def test_confirmation_has_the_live_position_if_requested() -> None:
    async with Workbench() as bench:
        (receipt,) = await bench.publish("s", "1")
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=public("s"))
        await client.send(command="subscribe", identifier=public("new"), history={"since": 1})
        _, confirmation, _, history = client.connection.replies()
        assert confirmation["streams"] == {"s": {"epoch": receipt.epoch, "tip": 1}}
        assert history["streams"] == {"new": {"epoch": "", "tip": 0}}


async def test_transient_message_during_a_join_reaches_the_client() -> None:
    async with Workbench() as bench:
        await bench.publish("known", "0")
        bench.codec = SseCodec(unwrap=True, raw=True)
        for stream in ("known", "unknown"):
            client = await bench.connect()
            go_on = asyncio.Event()
            client.connection.wait_ready = go_on.wait  # type: ignore[assignment,method-assign]
            await client.send(command="subscribe", identifier=public(stream), history={"since": 1e18})
            await bench.publish(stream, "1", transient=True)
            go_on.set()
            await settle()
            await bench.publish(stream, "2", transient=True)
            assert b"".join(client.connection.written).count(b"data: ") == 2


async def test_stream_unknown_to_the_store_is_a_gap_without_a_position() -> None:
    known = {"streams": {"s": {"epoch": "lost", "offset": 5}}}
    async with Workbench() as bench:
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=public("s"), history=known)
        _, _, gap, confirmation = client.connection.replies()
        assert gap["streams"] == {"s": {"reason": "epoch_changed", "epoch": "", "oldest": 1, "tip": 0}}
        assert "streams" not in confirmation
        bench.codec = BrokyCodec(Welcome(), None)
        client = await bench.connect()
        client.session.receive(encode(Subscribe(1, b"s", epoch=b"lost", offset=5)))
        await settle()
        splitter = FrameSplitter()
        got = [decode(frame) for data in client.connection.written for frame in splitter.feed(data)]
        assert got[1:] == [Subscribed(1), BrokyGap(b"s", Reason.EPOCH_CHANGED)]
        bench.codec = SseCodec(unwrap=False, raw=False)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history=known)
        events = b"".join(client.connection.written)
        assert (events.count(b"event: "), b"id: " in events) == (3, False)


async def test_messages_without_a_position_do_not_overflow_a_join() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=2000)) as bench:
        await bench.publish("s", "1")
        bench.codec = SseCodec(unwrap=True, raw=True)
        client = await bench.connect()
        go_on = asyncio.Event()
        client.connection.wait_ready = go_on.wait  # type: ignore[assignment,method-assign]
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1e9})
        for _ in range(50):
            await bench.publish("s", json.dumps("x" * 100), transient=True)
        await bench.publish("s", json.dumps("y" * 500))
        go_on.set()
        await settle()
        assert client.connection.closed is None
        written = b"".join(client.connection.written)
        assert (written.count(b"data: 1"), written.count(b"y" * 500)) == (1, 1)
        assert written.count(b"x" * 100) < 50


async def test_lost_connection_leaves_many_streams_in_slices_and_gets_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "DROP_SLICE", 4)
    streams = [f"s/{number}" for number in range(20)]
    async with Workbench() as bench:
        lost, other = await bench.subscribed(*streams), await bench.subscribed("s/19")
        written = len(lost.connection.written)
        lost.session.connection_lost()
        assert len(bench.node.hub.audiences) == 16, "one slice"
        await bench.publish("s/19", "1")
        assert len(lost.connection.written) == written
        assert other.seen()[-1] == 1
        assert list(bench.node.hub.audiences) == ["s/19"]


async def test_closed_connection_with_many_streams_gets_earlier_messages_and_then_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joins, "DROP_SLICE", 4)
    async with Workbench() as bench:
        client = await bench.subscribed(*(f"s/{number}" for number in range(20)))
        await bench.node.broker.publish([Publication("s/0", b"1"), Publication("s/19", b"2")])
        client.session.end(closings.REMOTE)
        await bench.node.broker.publish([Publication("s/19", b"3")])
        await settle()
        assert client.seen()[-3:] == [1, 1, "disconnect"]
        assert not bench.node.hub.audiences
