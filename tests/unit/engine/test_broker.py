"""The broker: registered and ephemeral publications."""

import asyncio
from collections.abc import Sequence

import pytest

from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication, Receipt
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.testing.simulation.steps import run
from tests.unit.engine.workbench import Workbench, public, settle

FLEETING = StreamRule("fleeting/*", history_limit=0)


async def test_stream_without_history_has_positions_unless_the_node_is_ephemeral() -> None:
    for forgets, offset in ((False, 1), (True, 0)):
        async with Workbench(rules=[FLEETING], keeps_ephemeral=not forgets) as bench:
            (receipt,) = await bench.publish("fleeting/1", "1")
            assert receipt.offset == offset
            assert bench.node.broker.is_ephemeral("fleeting/1") is forgets
            assert not bench.node.broker.is_ephemeral("kept")
            assert bench.backend.gauges()["streams"] == offset


async def test_mixed_batch_of_ephemeral_and_stored_streams_keeps_its_order() -> None:
    async with Workbench(rules=[FLEETING], keeps_ephemeral=False) as bench:
        client = await bench.connect()
        for stream in ("kept", "fleeting/1"):
            await client.send(command="subscribe", identifier=public(stream))
        batch = [
            Publication("fleeting/1", b"1", uid="u", partition_key="p"),
            Publication("kept", b"2"),
            Publication("fleeting/1", b"3", uid="u", partition_key="q"),
            Publication("kept", b"4"),
        ]
        receipts = await bench.node.broker.publish(batch)
        await settle()
        assert [receipt.offset for receipt in receipts] == [0, 1, 0, 2]
        assert receipts[0] == Receipt("fleeting/1", "", 0)
        messages = [reply for reply in client.connection.replies() if "message" in reply]
        assert [reply["message"] for reply in messages if reply["identifier"] == public("fleeting/1")] == [1, 3]
        assert [reply["message"] for reply in messages if reply["identifier"] == public("kept")] == [2, 4]
        assert bench.stats.publications == 4


async def test_changed_rule_applies_from_the_next_publication() -> None:
    async with Workbench(rules=[FLEETING], keeps_ephemeral=False) as bench:
        offsets = []
        for rules in ([FLEETING], [], [FLEETING], []):
            bench.rules.replace(StreamRules(), rules)
            bench.backend.reload_rules()
            offsets += [receipt.offset for receipt in await bench.publish("fleeting/1", "1", "2")]
        assert offsets == [0, 0, 1, 2, 0, 0, 3, 4]


async def test_closed_broker_rejects_publications_and_counts_the_pending_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workbench() as bench:
        append, answer = bench.backend.streams.append, asyncio.Event()

        async def append_later(publications: Sequence[Publication]) -> list[Receipt]:
            receipts = await append(publications)
            await answer.wait()
            return receipts

        monkeypatch.setattr(bench.backend.streams, "append", append_later)
        pending = [asyncio.create_task(bench.publish("s", "1", "2")), asyncio.create_task(bench.publish("s", "3"))]
        await settle()
        closing = asyncio.create_task(bench.node.broker.close(60))
        await settle()
        with pytest.raises(Unavailable, match="shutting down"):
            await bench.publish("s", "4")
        with pytest.raises(Unavailable, match="shutting down"):
            bench.node.broker.publish_runs([])
        assert (closing.done(), bench.stats.publications) == (False, 0)
        answer.set()
        await closing
        assert bench.stats.publications == 3
        assert [len(await each) for each in pending] == [2, 1]


def test_closing_broker_waits_a_limited_time_for_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def append(publications: Sequence[Publication]) -> list[Receipt]:
        await asyncio.Event().wait()
        return []

    async def close() -> float:
        """Returns how long it takes."""
        loop = asyncio.get_running_loop()
        async with Workbench() as bench:
            monkeypatch.setattr(bench.backend.streams, "append", append)
            pending = asyncio.create_task(bench.publish("s", "1"))
            await settle()
            begun = loop.time()
            await bench.node.broker.close(60)
            seconds = loop.time() - begun
            pending.cancel()
            return seconds

    assert run(close()) == 60


async def test_node_sends_its_final_report_after_the_last_publication() -> None:
    bench = Workbench()
    await bench.node.start()
    await bench.publish("s", "1")
    published: list[int] = []

    async def report() -> None:
        published.append(bench.stats.publications)
        with pytest.raises(Unavailable):
            await bench.publish("s", "2")

    await bench.node.stop(report)
    assert (published, bench.stats.publications) == ([1], 1)
