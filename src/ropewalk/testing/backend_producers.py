"""What every `ports.StreamStore` must do with numbered publications: a producer's sequence is registered once, for ever."""

import asyncio

from ropewalk.model.messages import Publication
from ropewalk.testing.backend_rig import BackendRig

LONG_AFTER = 10_000.0
"""Seconds after which a uid is forgotten."""


def numbered(sequence: int, stream: str = "a", producer: str = "app") -> Publication:
    return Publication(stream, b"%d" % sequence, producer=producer, sequence=sequence)


class ProducerConformance(BackendRig):
    async def test_a_sequence_is_registered_once_and_keeps_its_position(self) -> None:
        async with self.running() as backend:
            batch = [numbered(1), numbered(2, "b"), numbered(3)]
            first = await backend.streams.append(batch)
            again = await backend.streams.append(batch)
            assert [receipt.duplicate for receipt in first] == [False, False, False]
            assert [receipt.duplicate for receipt in again] == [True, True, True]
            assert [(item.epoch, item.offset) for item in again] == [(item.epoch, item.offset) for item in first]
            assert [(await backend.streams.tip(stream)).offset for stream in ("a", "b")] == [2, 1]

    async def test_the_rest_of_a_batch_is_registered_where_a_part_was(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([numbered(1), numbered(2)])
            again = await backend.streams.append([numbered(1), numbered(2), numbered(3), numbered(4)])
            assert [(receipt.offset, receipt.duplicate) for receipt in again] == [(1, True), (2, True), (3, False), (4, False)]

    async def test_a_sequence_twice_in_one_batch_is_registered_once(self) -> None:
        async with self.running() as backend:
            receipts = await backend.streams.append([numbered(1), numbered(1), numbered(2)])
            assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(1, False), (1, True), (2, False)]

    async def test_sequences_may_jump_and_none_below_is_registered_later(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([numbered(1 << 32), numbered((7 << 32) + 1)])
            [below] = await backend.streams.append([numbered((7 << 32) - 1)])
            assert below.duplicate
            [above] = await backend.streams.append([numbered((7 << 32) + 2)])
            assert (above.offset, above.duplicate) == (3, False)

    async def test_each_producer_counts_by_itself(self) -> None:
        async with self.running() as backend:
            receipts = await backend.streams.append([numbered(5, producer="one"), numbered(5, producer="two")])
            assert [receipt.duplicate for receipt in receipts] == [False, False]

    async def test_a_sequence_is_known_long_after_every_uid_is_forgotten(self) -> None:
        async with self.running() as backend:
            await backend.streams.append([numbered(1), Publication("a", b"uid", uid="u")])
            await self.advance(60)
            await backend.sweep()
            again = await backend.streams.append([numbered(1), Publication("a", b"uid", uid="u")])
            assert [receipt.duplicate for receipt in again] == [True, False]
            await self.advance(LONG_AFTER)
            await backend.sweep()
            [much_later] = await backend.streams.append([numbered(1)])
            assert much_later.duplicate

    async def test_of_two_at_once_one_is_registered(self) -> None:
        async with self.running() as backend:
            answers = await asyncio.gather(*(backend.streams.append([numbered(1), numbered(2)]) for _ in range(4)))
            assert sorted(receipt.duplicate for receipts in answers for receipt in receipts) == [False] * 2 + [True] * 6
            assert (await backend.streams.tip("a")).offset == 2
