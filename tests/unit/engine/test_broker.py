"""The broker: what it registers, and what it only passes on."""

from ropewalk.model.messages import Publication, Receipt
from ropewalk.model.rules import StreamRule, StreamRules
from tests.unit.engine.workbench import Workbench, public, settle

FLEETING = StreamRule("fleeting/*", history_limit=0)


async def test_a_stream_without_history_has_positions_unless_nothing_else_keeps_what_is_registered() -> None:
    for forgets, offset in ((False, 1), (True, 0)):
        async with Workbench(rules=[FLEETING], forgets=forgets) as bench:
            (receipt,) = await bench.publish("fleeting/1", "1")
            assert receipt.offset == offset
            assert bench.node.broker.is_ephemeral("fleeting/1") is forgets
            assert not bench.node.broker.is_ephemeral("kept")
            assert bench.backend.gauges()["streams"] == offset


async def test_a_batch_for_ephemeral_and_other_streams_keeps_its_order() -> None:
    async with Workbench(rules=[FLEETING], forgets=True) as bench:
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


async def test_a_stream_follows_its_rule_from_the_next_publication_on() -> None:
    async with Workbench(rules=[FLEETING], forgets=True) as bench:
        offsets = []
        for rules in ([FLEETING], [], [FLEETING], []):
            bench.rules.replace(StreamRules(), rules)
            bench.backend.rules_changed()
            offsets += [receipt.offset for receipt in await bench.publish("fleeting/1", "1", "2")]
        assert offsets == [0, 0, 1, 2, 0, 0, 3, 4]
