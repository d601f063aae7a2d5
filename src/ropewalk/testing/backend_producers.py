"""Conformance of `ports.StreamStore` for numbered publications: a sequence number is registered once, permanently."""

import asyncio

from ropewalk.model.messages import Publication
from ropewalk.testing.backend_rig import BackendRig

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
