"""Conformance of `ports.RecordQueue`: pending journal rows are kept until they are removed, and one node reads them."""

from ropewalk.model.journal import Row, RowKind, decode_ts_producer
from ropewalk.model.messages import Publication
from ropewalk.testing.backend_rig import SharedBackendRig, SharingNode

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
