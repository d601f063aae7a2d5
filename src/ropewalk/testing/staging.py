"""What every `ports.Staging` must do: keep what was put and decided over a crash, and give back nothing that is damaged."""

from pathlib import Path
from zlib import crc32

import pytest

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

    async def test_nothing_is_there_at_first(self, tmp_path: Path) -> None:
        assert (await self.loaded(tmp_path))[1] == []

    async def test_pieces_are_there_after_a_restart(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        first, second = piece_of(0, 0), piece_of(0, 1, b"")
        await staging.put("app", 7, first, DATA)
        await staging.put("app", 7, second, b"")
        await staging.put("other", 7, first, DATA)
        found = {record.app: record for record in (await self.loaded(tmp_path))[1]}
        assert found.keys() == {"app", "other"}
        assert {batch: sorted(pieces) for batch, pieces in found["app"].staged.items()} == {7: [first, second]}
        assert (found["app"].last, found["app"].decided) == (None, None)

    async def test_what_is_discarded_is_gone(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        for batch in (1, 2):
            await staging.put("app", batch, piece_of(0, 0), DATA)
            await staging.put("app", batch, piece_of(0, 1), DATA)
        await staging.discard("app", 1, [piece_of(0, 0), piece_of(5, 5)])
        await staging.discard_batch("app", 2)
        await staging.discard_batch("nobody", 2)
        assert (await self.loaded(tmp_path))[1] == [AppRecord("app", None, None, {1: [piece_of(0, 1)]})]

    async def test_a_decision_and_its_pieces_outlive_a_crash(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        decision = Decision(3, (piece_of(0, 0), piece_of(1, 0)))
        for piece in decision.pieces:
            await staging.put("app", 3, piece, DATA)
        assert await staging.decide("app", 2, decision) == []
        restarted, records = await self.loaded(tmp_path)
        assert [(record.last, record.decided) for record in records] == [(2, decision)]
        assert await restarted.read("app", 3, piece_of(1, 0)) == DATA

    async def test_a_decision_that_names_what_is_not_there_is_none(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        await staging.put("app", 3, piece_of(0, 0), DATA)
        assert await staging.decide("app", None, Decision(3, (piece_of(0, 0), piece_of(0, 1)))) == [piece_of(0, 1)]
        assert (await self.loaded(tmp_path))[1][0].decided is None

    async def test_a_piece_that_is_not_as_it_was_put_is_found_out(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        wrong = StagedPiece(0, 0, 0, len(DATA), crc32(DATA) ^ 1)
        await staging.put("app", 3, wrong, DATA)
        assert await staging.decide("app", None, Decision(3, (wrong,))) == [wrong]

    async def test_an_end_is_remembered_and_what_was_kept_up_to_it_is_gone(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        for batch in (2, 3, 4):
            await staging.put("app", batch, piece_of(0, 0), DATA)
        await staging.decide("app", None, Decision(3, (piece_of(0, 0),)))
        await staging.finish("app", 3)
        assert (await self.loaded(tmp_path))[1] == [AppRecord("app", 3, None, {4: [piece_of(0, 0)]})]

    async def test_an_empty_decision_needs_no_piece(self, tmp_path: Path) -> None:
        staging, _ = await self.loaded(tmp_path)
        assert await staging.decide("app", None, Decision(0, ())) == []
        await staging.finish("app", 0)
        assert (await self.loaded(tmp_path))[1] == [AppRecord("app", 0)]

    @pytest.mark.parametrize("names", [("a", "A"), (".", ".."), ("a:b", "a_b"), ("x" * 128, "x" * 127)])
    async def test_names_do_not_get_mixed_up(self, tmp_path: Path, names: tuple[str, str]) -> None:
        staging, _ = await self.loaded(tmp_path)
        for last, name in enumerate(names):
            await staging.finish(name, last)
        assert {record.app: record.last for record in (await self.loaded(tmp_path))[1]} == {names[0]: 0, names[1]: 1}
