"""Atomic join: confirmation, history, `confirm_history`, live; no duplicate, no hole, no inversion."""

import asyncio

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.model.history import Gap, Replay
from ropewalk.model.messages import Position
from ropewalk.model.rules import StreamRules
from tests.unit.engine.workbench import Clock, Workbench, public, settle


async def test_history_comes_between_its_confirmations_and_live_comes_after() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1", "2", "3")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        await bench.publish("s", "4")
        assert client.seen() == ["welcome", "confirm_subscription", 1, 2, 3, "confirm_history", 4]


async def test_a_message_of_the_same_tick_is_in_the_snapshot_or_live_but_never_both() -> None:
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


def _quoted(text: str) -> bytes:
    return b'"' + text.replace('"', '\\"').encode() + b'"'


class SlowBackend(MemoryBackend):
    """A store on the other side of a network: its answers are taken first and arrive later."""

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
async def test_what_is_published_while_the_store_is_asked_is_neither_lost_nor_doubled(during: int) -> None:
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


async def test_a_client_that_leaves_while_the_store_is_asked_is_not_joined() -> None:
    backend = SlowBackend()
    async with Workbench(backend=backend) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), history={"streams": {"s": {"epoch": "", "offset": 0}}})
        client.session.lost()
        backend.arrive.set()
        await settle()
        assert bench.node.gauges()["streams_listened"] == 0


async def test_a_history_request_of_a_live_subscription_brings_only_what_was_not_delivered() -> None:
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


async def test_a_gap_is_said_with_its_reason_and_live_goes_on() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1")
        client = await bench.connect()
        request = {"streams": {"s": {"epoch": "another", "offset": 7}}}
        await client.send(command="subscribe", identifier=public("s"), history=request)
        await bench.publish("s", "2")
        assert client.seen() == ["welcome", "confirm_subscription", "reject_history", 2]
        rejection = client.connection.replies()[2]
        assert rejection["reason"] == "epoch_changed"
        assert rejection["streams"]["s"]["tip"] == 1
        assert bench.stats.gaps == {"epoch_changed": 1}


async def test_a_repeated_subscribe_is_confirmed_again_and_delivers_once() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        for _ in range(3):
            await client.send(command="subscribe", identifier=public("s"))
        await bench.publish("s", "1")
        assert client.seen() == ["welcome", *["confirm_subscription"] * 3, 1]


async def test_the_older_spelling_of_a_history_request_is_understood() -> None:
    async with Workbench() as bench:
        await bench.publish("s", "1")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        await client.send(type="history", identifier=public("s"), history={"since": 1})
        assert client.seen() == ["welcome", "confirm_subscription", 1, "confirm_history"]


async def test_what_excluded_a_client_live_is_not_replayed_to_it_even_under_its_next_sid() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        receipts = await bench.publish("s", "1", exclude_socket=client.sid)
        await bench.publish("s", "2", broadcast_type="note")
        assert client.seen()[2:] == ["note"]
        client.session.lost()
        back = await bench.connect(client.sid)
        position = {"epoch": receipts[0].epoch, "offset": 0}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert back.seen() == ["welcome", "note", "confirm_history"]


async def test_a_confirmation_says_where_live_delivery_begins() -> None:
    async with Workbench() as bench:
        (receipt,) = await bench.publish("s", "1")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        await client.send(command="subscribe", identifier=public("new"), history={"since": 1})
        _, confirmation, _, history = client.connection.replies()
        assert confirmation["streams"] == {"s": {"epoch": receipt.epoch, "tip": 1}}
        assert history["streams"] == {"new": {"epoch": "", "tip": 0}}
