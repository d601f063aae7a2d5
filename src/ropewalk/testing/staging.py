"""Conformance of `ports.Staging`: staged pieces and decisions survive a crash, and damaged pieces are detected."""

from pathlib import Path
from zlib import crc32

from ropewalk.model.transactions import AppRecord, Decision, StagedPiece
from ropewalk.ports import Staging

DATA = b"some rows"


def piece_of(part: int, seq: int, data: bytes = DATA) -> StagedPiece:
    return StagedPiece(part, 0, seq, len(data), crc32(data))


class StagingConformance:
    """Inherit it as `TestMyStaging` and fill `make`. A second one made over the same directory stands for a restart."""

    def make(self, directory: Path) -> Staging:
        raise NotImplementedError

    async def loaded(self, directory: Path) -> tuple[Staging, list[AppRecord]]:
        staging = self.make(directory)
        return staging, await staging.load()

    async def test_new_staging_is_empty(self, tmp_path: Path) -> None:
        assert (await self.loaded(tmp_path))[1] == []

    async def test_pieces_survive_a_restart(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        first, second = piece_of(0, 0), piece_of(0, 1, b"")
        await staging.put("app", 7, first, DATA)
        await staging.put("app", 7, second, b"")
        await staging.put("other", 7, first, DATA)
        found = {record.app: record for record in (await self.loaded(tmp_path))[1]}
        assert found.keys() == {"app", "other"}
        assert {batch: sorted(pieces) for batch, pieces in found["app"].staged.items()} == {7: [first, second]}
        assert (found["app"].last, found["app"].decided) == (None, None)

    async def test_discarded_pieces_are_removed(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        for batch in (1, 2):
            await staging.put("app", batch, piece_of(0, 0), DATA)
            await staging.put("app", batch, piece_of(0, 1), DATA)
        await staging.discard("app", 1, [piece_of(0, 0), piece_of(5, 5)])
        await staging.discard_batch("app", 2)
        await staging.discard_batch("nobody", 2)
        assert (await self.loaded(tmp_path))[1] == [AppRecord("app", None, None, {1: [piece_of(0, 1)]})]

    async def test_decision_and_its_pieces_survive_a_crash(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        decision = Decision(3, (piece_of(0, 0), piece_of(1, 0)))
        for piece in decision.pieces:
            await staging.put("app", 3, piece, DATA)
        assert await staging.decide("app", 2, decision) == []
        restarted, records = await self.loaded(tmp_path)
        assert [(record.last, record.decided) for record in records] == [(2, decision)]
        assert await restarted.read("app", 3, piece_of(1, 0)) == DATA

    async def test_decision_with_missing_pieces_is_rejected(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        await staging.put("app", 3, piece_of(0, 0), DATA)
        assert await staging.decide("app", None, Decision(3, (piece_of(0, 0), piece_of(0, 1)))) == [piece_of(0, 1)]
        assert (await self.loaded(tmp_path))[1][0].decided is None

    async def test_damaged_piece_is_detected(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        wrong = StagedPiece(0, 0, 0, len(DATA), crc32(DATA) ^ 1)
        await staging.put("app", 3, wrong, DATA)
        assert await staging.decide("app", None, Decision(3, (wrong,))) == [wrong]

    async def test_finished_batch_is_recorded_and_its_pieces_are_removed(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        for batch in (2, 3, 4):
            await staging.put("app", batch, piece_of(0, 0), DATA)
        await staging.decide("app", None, Decision(3, (piece_of(0, 0),)))
        await staging.finish("app", 3)
        assert (await self.loaded(tmp_path))[1] == [AppRecord("app", 3, None, {4: [piece_of(0, 0)]})]

    async def test_empty_decision_needs_no_pieces(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        assert await staging.decide("app", None, Decision(0, ())) == []
        await staging.finish("app", 0)
        assert (await self.loaded(tmp_path))[1] == [AppRecord("app", 0)]

    async def test_similar_names_are_kept_apart(self, tmp_path: Path) -> None:
        names = ("a", "A", ".", "..", "a:b", "a_b", "x" * 128, "x" * 127)
        staging, _ = await self.loaded(tmp_path)
        for last, name in enumerate(names):
            await staging.finish(name, last)
        found = {record.app: record.last for record in (await self.loaded(tmp_path))[1]}
        assert found == {name: last for last, name in enumerate(names)}
