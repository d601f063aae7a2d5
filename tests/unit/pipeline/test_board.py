"""The board tells the truth about who runs, whatever became of them."""

from pathlib import Path

import msgspec
import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.board import LOST, Board, Note


def note(condition: str = "running") -> Note:
    return Note("archive", 4711, condition, 1.0)


def test_a_job_runs_once(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note())
        with pytest.raises(UserMistake, match="archive runs already in process 4711"), Board(tmp_path).claimed("archive"):
            pass
    with board.claimed("archive"):
        assert board.runs("archive")
    assert not board.runs("archive")


def test_a_process_that_ended_without_a_word_is_lost(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note())
        assert board.notes() == [note()]

    assert [each.condition for each in board.notes()] == [LOST]


def test_one_that_said_how_it_ended_is_believed(tmp_path: Path) -> None:
    board = Board(tmp_path)
    with board.claimed("archive"):
        board.write(note("failed"))

    assert board.notes() == [msgspec.structs.replace(note("failed"), pid=0)]


def test_a_wish_to_stop_is_for_the_run_at_hand_and_not_for_the_next(tmp_path: Path) -> None:
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


def test_a_directory_nobody_has_run_from_has_no_notes(tmp_path: Path) -> None:
    assert Board(tmp_path / "nowhere").notes() == []
    assert not Board(tmp_path / "nowhere").runs("archive")
