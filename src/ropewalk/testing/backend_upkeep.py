"""Conformance of `ports.Backend` as a whole: health, gauges, and removal of expired data."""

from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.testing.backend_rig import BackendRig, at, offsets, publish

IDLE_SECONDS = 1_000_000.0
EMPTY = {
    "streams": 0,
    "history_messages": 0,
    "history_bytes": 0,
    "sessions_kept": 0,
    "presence_members": 0,
    "dedup_keys": 0,
}


class UpkeepConformance(BackendRig):
    async def test_gauges_count_the_stored_objects(self) -> None:
        async with self.running() as backend:
            assert backend.health() == ""
            assert EMPTY.items() <= backend.gauges().items()
            await publish(backend, "a", 7)
            await backend.streams.append([Publication("b", b"12345", uid="u")])
            await backend.sessions.save("sid", SessionSnapshot("", {}), 10)
            await backend.presence.join("a", "sid", Member("bo"))
            await backend.sweep()
            kept = {
                "streams": 2,
                "history_messages": 6,
                "history_bytes": 10,
                "sessions_kept": 1,
                "presence_members": 1,
                "dedup_keys": 1,
            }
            assert kept.items() <= backend.gauges().items()

    async def test_sweep_removes_expired_history_and_sessions(self) -> None:
        async with self.running() as backend:
            await publish(backend, "a", 3)
            await backend.sessions.save("sid", SessionSnapshot("", {}), 10)
            await self.advance(100)
            await backend.sweep()
            gauges = backend.gauges()
            assert (gauges["history_messages"], gauges["history_bytes"], gauges["sessions_kept"]) == (0, 0, 0)
            assert gauges["streams"] == 1

    async def test_sweep_removes_everything_after_a_long_idle_time(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([Publication("a", b"1", uid="u")])
            await backend.sessions.save("sid", SessionSnapshot("", {}), 10)
            await backend.presence.join("a", "sid", Member("bo"))
            await backend.presence.detach("sid", 15)
            await self.advance(IDLE_SECONDS)
            await backend.presence.expire()
            await backend.sweep()
            assert EMPTY.items() <= backend.gauges().items()
            assert await backend.streams.summaries("", 10) == []

    async def test_removed_stream_starts_a_new_epoch(self) -> None:
        async with self.running() as backend:
            before = (await publish(backend, "a", 2))[-1]
            await self.advance(IDLE_SECONDS)
            await backend.sweep()
            after = await publish(backend, "a", 2)
            assert offsets(after) == [1, 2]
            assert after[0].epoch != before.epoch
            answer = await backend.streams.replay("a", at(before))
            rest = Replay("a", after[0].epoch, 2, tuple(after))
            assert answer == Gap("a", GapReason.EPOCH_CHANGED, after[0].epoch, 1, 2, rest=rest)

    async def test_uid_limit_drops_the_oldest_uids(self) -> None:
        async with self.running(dedup_limit=2) as backend:
            await backend.streams.append([Publication("a", b"1", uid=uid) for uid in ("one", "two", "three")])
            await backend.sweep()
            assert backend.gauges()["dedup_keys"] == 2
            appended = await backend.streams.append([Publication("a", b"1", uid=uid) for uid in ("three", "two", "one")])
            assert [item.duplicate for item in appended] == [True, True, False]
