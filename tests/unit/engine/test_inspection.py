"""The report of a node, and what of it is sampled."""

import asyncio

import pytest

from ropewalk.engine import sampler
from ropewalk.engine.inspection import NodeInspector
from ropewalk.engine.sampler import PERIOD, Sampler
from ropewalk.engine.session import Session
from ropewalk.model.report import SessionTotals
from tests.unit.engine.workbench import Client, Workbench, public


class WatchedSessions(dict[str, Session]):
    """Counts how many sessions were looked at."""

    looked_at = 0

    def get(self, sid: str, otherwise: object = None) -> Session | None:  # type: ignore[override]
        self.looked_at += 1
        return super().get(sid)


async def subscribed(bench: Workbench, streams: int) -> Client:
    client = await bench.connect()
    for stream in range(streams):
        await client.send(command="subscribe", identifier=public(f"s{stream}"))
    return client


async def test_a_report_tells_what_there_is() -> None:
    async with Workbench() as bench:
        (slow, _) = [await subscribed(bench, 2) for _ in range(2)]
        slow.session.writing_paused()
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


async def test_what_is_counted_beside_the_node_is_among_its_counters() -> None:
    async with Workbench() as bench:
        await bench.publish("s0", '"hello"')
        report = NodeInspector(bench.node, counts=lambda: {"ring_shards_handed_over": 2}).report()
        assert (report.counts["publications"], report.counts["ring_shards_handed_over"]) == (1, 2)


async def test_a_node_that_shuts_down_reports_it() -> None:
    async with Workbench() as bench:
        bench.node.leave()
        assert bench.report().problems == ("shutting down",)


async def test_many_sessions_are_counted_by_the_sampler_and_not_by_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SLICE", 2)
    async with Workbench() as bench:
        for _ in range(5):
            await subscribed(bench, 2)
        watched = WatchedSessions(bench.node.sessions.live)
        sampling = Sampler(watched, bench.stats)
        assert (sampling.totals(), watched.looked_at) == (SessionTotals(), 0)
        await sampling.sample(0.0)
        assert (sampling.totals(), watched.looked_at) == (SessionTotals(10), 5)
        await sampling.sample(PERIOD - 1)
        assert watched.looked_at == 5


async def test_a_sample_gives_way_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "SLICE", 2)
    async with Workbench() as bench:
        clients = [await subscribed(bench, 1) for _ in range(5)]
        watched = WatchedSessions(bench.node.sessions.live)
        sampling = Sampler(watched, bench.stats)
        walk = asyncio.create_task(sampling.sample(0.0))
        await asyncio.sleep(0)
        assert watched.looked_at == 2
        del watched[clients[-1].sid]  # it ends before its turn comes
        await walk
        assert sampling.totals() == SessionTotals(4)


async def test_rates_are_the_growth_between_two_samples() -> None:
    async with Workbench() as bench:
        sampling = Sampler({}, bench.stats)
        await sampling.sample(100.0)
        bench.stats.publications += 50
        await sampling.sample(100.0 + PERIOD / 2)
        assert sampling.rates["publications"] == 0
        await sampling.sample(100.0 + PERIOD * 2)
        assert sampling.rates["publications"] == 50 / (PERIOD * 2)
        await sampling.sample(100.0 + PERIOD * 4)
        assert sampling.rates["publications"] == 0
