"""The conformance suite for staging detects faulty ones."""

from pathlib import Path

import pytest

from ropewalk.adapters.staging.files import FileStaging
from ropewalk.model.transactions import Decision, StagedPiece
from ropewalk.ports import Staging
from ropewalk.testing.staging import StagingConformance
from tests.unit.testing.suites import Suite, failed_tests


class Staged(StagingConformance):
    kind: type[FileStaging] = FileStaging

    def make(self, directory: Path) -> Staging:
        return self.kind(directory / "transactions")


class DecidingWithoutPieces(Staged):
    class kind(FileStaging):
        async def decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
            await super().decide(app, last, decision)
            return []


class ForgettingFinishedBatches(Staged):
    class kind(FileStaging):
        async def finish(self, app: str, batch: int) -> None:
            await self.discard_batch(app, batch)


class KeepingDiscarded(Staged):
    class kind(FileStaging):
        async def discard_batch(self, app: str, batch: int) -> None: ...


FAULTY = {
    DecidingWithoutPieces: "test_decision_with_missing_pieces_is_rejected",
    ForgettingFinishedBatches: "test_finished_batch_is_recorded_and_its_pieces_are_removed",
    KeepingDiscarded: "test_discarded_pieces_are_removed",
}


@pytest.mark.parametrize(("suite", "test"), FAULTY.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_faulty_staging_fails_its_test(suite: Suite, test: str, tmp_path: Path) -> None:
    assert await failed_tests(suite, tmp_path, test) == {test}


async def test_correct_staging_passes_all_tests(tmp_path: Path) -> None:
    assert await failed_tests(Staged, tmp_path) == set()
