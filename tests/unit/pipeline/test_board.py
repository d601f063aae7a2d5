"""The state of jobs in the state directory: running, ended, lost and stopping."""

from pathlib import Path

import msgspec
import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.board import LOST, Board, Note


def note(condition: str = "running") -> Note:
    return Note("archive", 4711, condition, 1.0)


def test_second_run_of_a_job_is_rejected(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note())
        with pytest.raises(UserMistake, match="archive runs already in process 4711"), Board(tmp_path).claimed("archive"):
            pass
    with board.claimed("archive"):
        assert board.runs("archive")
    assert not board.runs("archive")


def test_process_that_ended_without_a_note_is_lost(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note())
        assert board.notes() == [note()]

    assert [each.condition for each in board.notes()] == [LOST]


def test_written_result_is_kept_after_the_end(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note("failed"))

    assert board.notes() == [msgspec.structs.replace(note("failed"), pid=0)]


def test_stop_request_applies_to_the_current_run_only(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note())
        board.ask_to_stop("archive")
        assert board.asked_to_stop("archive")
        assert board.stopping("archive")
        board.write(note("stopped"))
        assert not board.stopping("archive")
    with board.claimed("archive"):
        assert not board.asked_to_stop("archive")


def test_missing_directory_has_no_notes(tmp_path: Path) -> None:
    assert Board(tmp_path / "nowhere").notes() == []
    assert not Board(tmp_path / "nowhere").runs("archive")
