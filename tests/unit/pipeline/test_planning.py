"""A batch is cut into tasks by size, the same way every time."""

from ropewalk.pipeline.offsets import Piece
from ropewalk.pipeline.options import Admission
from ropewalk.pipeline.planning import plan

PIECES = [Piece(0, "a", 0, 1000), Piece(1, "b", 50, 60)]


def test_without_limits_a_piece_is_a_task() -> None:
    assert plan(PIECES, Admission()) == PIECES


def test_no_task_has_more_rows_than_allowed() -> None:
    assert [piece.rows for piece in plan(PIECES, Admission(max_partition_rows=400))] == [333, 333, 334, 10]


def test_there_are_at_least_as_many_tasks_as_asked_for_and_large_pieces_give_most() -> None:
    planned = plan(PIECES, Admission(min_partitions=8))

    assert len(planned) >= 8
    assert [piece for piece in planned if piece.shard == 1] == [Piece(1, "b", 50, 60)]


def test_a_loss_of_unknown_size_is_a_task_of_its_own() -> None:
    lost = Piece(2, "c", 5, 5, replaced=True)

    assert plan([lost], Admission(min_partitions=4)) == [lost]
