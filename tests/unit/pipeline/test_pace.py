"""A replay's rows come out in time."""

from io import StringIO

from ropewalk.pipeline.pace import Bar, Pace, chunks
from ropewalk.testing.clock import ManualClock


def paced(times: list[float], speed: float, most: int = 100) -> list[tuple[float, list[float]]]:
    """When which rows were given out."""
    clock = ManualClock(1000.0)
    pace = Pace(speed, clock, clock.advance)
    return [(clock() - 1000.0, chunk) for chunk in chunks(times, pace, lambda time: time, most)]


def test_at_original_speed_rows_keep_their_distance() -> None:
    assert paced([5.0, 5.0, 7.0, 7.5], 1.0) == [(0.0, [5.0, 5.0]), (2.0, [7.0]), (2.5, [7.5])]


def test_ten_times_as_fast_takes_a_tenth() -> None:
    assert paced([0.0, 10.0], 10.0) == [(0.0, [0.0]), (1.0, [10.0])]


def test_as_fast_as_possible_waits_for_nothing_and_bounds_each_piece() -> None:
    assert paced([0.0, 60.0, 120.0], 0.0, most=2) == [(0.0, [0.0, 60.0]), (0.0, [120.0])]


def test_a_publisher_that_fell_behind_catches_up() -> None:
    clock = ManualClock(0.0)
    pace = Pace(1.0, clock, clock.advance)
    given = []
    for chunk in chunks([0.0, 1.0, 2.0, 9.0], pace, lambda time: time):
        given.append((clock(), chunk))
        clock.advance(5.0)  # it takes long to publish

    assert given == [(0.0, [0.0]), (5.0, [1.0, 2.0]), (10.0, [9.0])]


def test_the_bar_ends_with_all_of_it() -> None:
    out = StringIO()
    bar = Bar(200, ManualClock(0.0), out)
    bar.show(50)
    bar.show(60)
    bar.show(200)
    bar.end()

    lines = out.getvalue().splitlines()
    assert ["25 %" in lines[0], "100 %  200 of 200 rows" in lines[-1], len(lines)] == [True, True, 2]
