"""Conformance suites for `ports.Backend`.

Invariant: the suites use the port only, so a backend that passes can replace any other.
"""

import asyncio

from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.journal import Row, RowKind, decode_ts_producer
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.testing.backend_feed import FeedConformance
from ropewalk.testing.backend_leases import LeaseConformance
from ropewalk.testing.backend_presence import PresenceConformance
from ropewalk.testing.backend_rig import BackendRig, SharedBackendRig, SharingNode, at, offsets, publish
from ropewalk.testing.backend_sessions import SessionConformance
from ropewalk.testing.backend_streams import StreamConformance

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


TTL = 10.0


def connected_row(number: int) -> Row:
    return Row(RowKind.CONNECTED, "sid", float(number), sid="sid", detail=f'{{"number":{number}}}')


class RecordQueueConformance(SharedBackendRig):
    """For a shared backend with a record queue; see `SharedBackendConformance`."""

    async def test_queue_is_empty_before_the_first_claim(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.backend.streams.append([Publication("s", b"1")])
            assert not await two.queue.add([connected_row(1)])
            assert await one.queue.claim(TTL)
            assert (await one.queue.read(10)).rows == ()

    async def test_publications_of_all_nodes_are_queued_in_order(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.queue.claim(TTL)
            first = (await one.backend.streams.append([Publication("s", b"1"), Publication("t", b"2")]))[0]
            await two.backend.streams.append([Publication("s", b"3")])
            rows = [row for row in (await one.queue.read(10)).rows if row.stream == "s"]
            assert [(row.kind, row.epoch, row.offset, row.value) for row in rows] == [
                (RowKind.PUBLISH, first.epoch, 1, b"1"),
                (RowKind.PUBLISH, first.epoch, 2, b"3"),
            ]

    async def test_row_has_all_fields_of_its_publication(self) -> None:
        async with self.two_nodes() as (one, _):
            await one.queue.claim(TTL)
            sent = Publication("s", b'"x"', uid="u", exclude_socket="e", broadcast_type="b", partition_key="key", ts_producer=9)
            numbered = Publication("t", b"1", producer="p", sequence=7)
            await one.backend.streams.append([sent, numbered])
            rows = {row.stream: row for row in (await one.queue.read(10)).rows}
            row = rows["s"]
            assert (row.key, row.value, row.uid) == ("key", b'"x"', "u")
            assert (row.exclude_socket, row.broadcast_type) == ("e", "b")
            assert [decode_ts_producer(rows[stream].detail) for stream in ("s", "t")] == [9, 0]
            assert row.timestamp == (await self._timestamp(one, "s"))
            assert (rows["t"].key, rows["t"].producer, rows["t"].sequence) == ("t", "p", 7)

    async def test_duplicates_and_transient_messages_are_not_queued(self) -> None:
        async with self.two_nodes() as (one, _):
            await one.queue.claim(TTL)
            await one.backend.streams.append([Publication("s", b"1", uid="u")])
            await one.backend.streams.append([Publication("s", b"1", uid="u"), Publication("s", b"2", transient=True)])
            assert [row.value for row in (await one.queue.read(10)).rows] == [b"1"]

    async def test_rows_stay_until_they_are_removed_once(self) -> None:
        async with self.two_nodes() as (one, _):
            await one.queue.claim(TTL)
            await one.backend.streams.append([Publication("s", b"%d" % number) for number in range(5)])
            piece = await one.queue.read(2)
            assert await one.queue.read(2) == piece
            for _ in range(2):  # removing the same piece again removes nothing else
                assert await one.queue.remove(piece)
                assert [row.offset for row in (await one.queue.read(10)).rows] == [3, 4, 5]

    async def test_one_node_holds_the_claim_until_it_expires(self) -> None:
        async with self.two_nodes() as (one, two):
            assert await one.queue.claim(TTL)
            assert not await two.queue.claim(TTL)
            assert await one.queue.claim(TTL)
            await one.backend.streams.append([Publication("s", b"1")])
            await self.advance(TTL + 1)
            assert await two.queue.claim(TTL)
            assert not await one.queue.claim(TTL)
            assert not await one.queue.remove(await one.queue.read(1))
            assert len((await two.queue.read(10)).rows) == 1

    async def test_nodes_add_rows_of_their_own(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.queue.claim(TTL)
            assert await two.queue.add([connected_row(1), connected_row(2)])
            assert list((await one.queue.read(10)).rows) == [connected_row(1), connected_row(2)]

    @staticmethod
    async def _timestamp(node: SharingNode, stream: str) -> float:
        page = await node.backend.streams.page(stream, 0, 1)
        assert page is not None
        return page.messages[0].timestamp


AFTER_UID_EXPIRY_SECONDS = 10_000.0


def numbered(sequence: int, stream: str = "a", producer: str = "app") -> Publication:
    return Publication(stream, b"%d" % sequence, producer=producer, sequence=sequence)


class ProducerConformance(BackendRig):
    async def test_sequence_is_registered_once_and_keeps_its_position(self) -> None:
        async with self.running() as backend:
            batch = [numbered(1), numbered(2, "b"), numbered(3)]
            first = await backend.streams.append(batch)
            again = await backend.streams.append(batch)
            assert [receipt.duplicate for receipt in first] == [False, False, False]
            assert [receipt.duplicate for receipt in again] == [True, True, True]
            assert [(item.epoch, item.offset) for item in again] == [(item.epoch, item.offset) for item in first]
            assert [(await backend.streams.tip(stream)).offset for stream in ("a", "b")] == [2, 1]
            rest = await backend.streams.append([numbered(3), numbered(4), numbered(4), numbered(5)])
            assert [(item.offset, item.duplicate) for item in rest] == [(2, True), (3, False), (3, True), (4, False)]

    async def test_sequences_may_skip_but_never_go_back(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([numbered(1 << 32), numbered((7 << 32) + 1)])
            [below] = await backend.streams.append([numbered((7 << 32) - 1)])
            assert below.duplicate
            [above] = await backend.streams.append([numbered((7 << 32) + 2)])
            assert (above.offset, above.duplicate) == (3, False)
            others = await backend.streams.append([numbered(5, producer="one"), numbered(5, producer="two")])
            assert [receipt.duplicate for receipt in others] == [False, False], "each producer has its own sequence"

    async def test_sequence_outlives_every_uid(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([numbered(1), Publication("a", b"uid", uid="u")])
            await self.advance(60)
            await backend.sweep()
            again = await backend.streams.append([numbered(1), Publication("a", b"uid", uid="u")])
            assert [receipt.duplicate for receipt in again] == [True, False]
            await self.advance(AFTER_UID_EXPIRY_SECONDS)
            await backend.sweep()
            [much_later] = await backend.streams.append([numbered(1)])
            assert much_later.duplicate

    async def test_concurrent_appends_register_a_sequence_once(self) -> None:
        async with self.running() as backend:
            answers = await asyncio.gather(*(backend.streams.append([numbered(1), numbered(2)]) for _ in range(4)))
            assert sorted(receipt.duplicate for receipts in answers for receipt in receipts) == [False] * 2 + [True] * 6
            assert (await backend.streams.tip("a")).offset == 2


__all__ = ["BackendConformance", "RecordQueueConformance", "SharedBackendConformance"]


class BackendConformance(
    StreamConformance, ProducerConformance, SessionConformance, PresenceConformance, FeedConformance, UpkeepConformance
):
    """Inherit it as `TestMyBackend` and fill `make`; where time cannot be set, fill `advance` too. See `backend_rig`."""


class SharedBackendConformance(LeaseConformance, BackendConformance):
    """For a backend whose store several nodes share: the same cases on two instances that alternate, and the cases about two
    nodes (leases, takeover, faults). Fill `make_two` and `disturb`."""
