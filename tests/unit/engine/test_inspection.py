"""The report of a node."""

from ropewalk.engine.inspection import NodeInspector, ReportSources
from ropewalk.model.report import SessionTotals
from tests.unit.engine.workbench import Workbench


async def test_report_has_the_state_of_the_node() -> None:
    async with Workbench() as bench:
        (slow, _) = [await bench.subscribed("s0", "s1") for _ in range(2)]
        slow.session.pause_writing()
        await bench.publish("s0", '"hello"')
        report = bench.report()
        assert (report.connections, report.sessions, report.streams_listened) == (2, 2, 2)
        assert report.totals == SessionTotals(4, slow.session.link.pending())
        assert report.totals.outbox_bytes > 0
        assert (report.counts["publications"], report.counts["deliveries"]) == (1, 2)
        assert report.backend["streams"] == 1
        assert report.latency.buckets[-1] == ("+Inf", 1)
        assert 0 < report.latency.p50 <= report.latency.p99
        assert report.problems == ()


async def test_extra_counters_are_included_in_the_report() -> None:
    async with Workbench() as bench:
        await bench.publish("s0", '"hello"')
        report = NodeInspector(bench.node, ReportSources(counts=lambda: {"ring_shards_handed_over": 2})).report()
        assert (report.counts["publications"], report.counts["ring_shards_handed_over"]) == (1, 2)


async def test_node_that_shuts_down_reports_it() -> None:
    async with Workbench() as bench:
        bench.node.leave()
        assert bench.report().problems == ("shutting down",)
