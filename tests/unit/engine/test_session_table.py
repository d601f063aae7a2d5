"""Revocations of sessions that are opening."""

import asyncio

import pytest

from ropewalk.engine import session_table
from ropewalk.engine.session import Session
from ropewalk.engine.session_table import PERIOD, Revocations, Sampler
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.report import SessionTotals
from tests.unit.engine.workbench import Workbench


class WatchedSessions(dict[str, Session]):
    """Counts the sessions that were looked up."""

    lookups = 0

    def get(self, sid: str, otherwise: object = None) -> Session | None:  # type: ignore[override]
        self.lookups += 1
        return super().get(sid)


async def test_sessions_are_counted_by_the_sampler_not_by_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "SLICE", 2)
    async with Workbench() as bench:
        for _ in range(5):
            await bench.subscribed("s0", "s1")
        watched = WatchedSessions(bench.node.sessions.live)
        sampling = Sampler(watched, bench.stats)
        assert (sampling.totals(), watched.lookups) == (SessionTotals(), 0)
        await sampling.sample(0.0)
        assert (sampling.totals(), watched.lookups) == (SessionTotals(10), 5)
        await sampling.sample(PERIOD - 1)
        assert watched.lookups == 5


async def test_sampler_yields_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "SLICE", 2)
    async with Workbench() as bench:
        clients = [await bench.subscribed("s0") for _ in range(5)]
        watched = WatchedSessions(bench.node.sessions.live)
        sampling = Sampler(watched, bench.stats)
        walk = asyncio.create_task(sampling.sample(0.0))
        await asyncio.sleep(0)
        assert watched.lookups == 2
        del watched[clients[-1].sid]  # it ends before it is sampled
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


BO = RemoteDisconnect("bo", reconnect=False)


def test_revocations_are_kept_for_sessions_that_were_opening_before_them() -> None:
    revocations = Revocations()
    revocations.add(BO)
    assert len(revocations) == 0  # no session is opening
    revocations.opening("early")
    revocations.add(BO)
    revocations.opening("middle")
    revocations.add(RemoteDisconnect("eve"))
    revocations.opening("late")
    assert revocations.find("early", "bo") == BO
    assert [revocations.find(sid, "bo") for sid in ("middle", "late", "unknown")] == [None] * 3
    assert [revocations.find(sid, "eve") is not None for sid in ("early", "middle", "late")] == [True, True, False]
    revocations.opened("early")
    assert len(revocations) == 1
    revocations.add(RemoteDisconnect("eve", reconnect=False))
    assert revocations.find("late", "eve") == RemoteDisconnect("eve", reconnect=False)
    revocations.opened("late")
    revocations.opened("middle")
    assert len(revocations) == 0
