"""The pace of a replay, and its progress bar."""

from io import StringIO

from ropewalk.pipeline.jobs.replay import Bar, Pace, chunks
from ropewalk.testing.clock import ManualClock


def replay(times: list[float], speed: float, max_rows: int = 100) -> list[tuple[float, list[float]]]:
    """Returns the time and the rows of each chunk."""
    clock = ManualClock(1000.0)
    pace = Pace(speed, clock, clock.advance)
    return [(clock() - 1000.0, chunk) for chunk in chunks(times, pace, lambda time: time, max_rows)]


def test_original_speed_keeps_the_intervals() -> None:
    assert replay([5.0, 5.0, 7.0, 7.5], 1.0) == [(0.0, [5.0, 5.0]), (2.0, [7.0]), (2.5, [7.5])]


def test_speed_10_takes_a_tenth_of_the_time() -> None:
    assert replay([0.0, 10.0], 10.0) == [(0.0, [0.0]), (1.0, [10.0])]


def test_speed_0_does_not_wait_and_limits_chunks() -> None:
    assert replay([0.0, 60.0, 120.0], 0.0, max_rows=2) == [(0.0, [0.0, 60.0]), (0.0, [120.0])]


def test_slow_publisher_catches_up() -> None:
    clock = ManualClock(0.0)
    pace = Pace(1.0, clock, clock.advance)
    given = []
    for chunk in chunks([0.0, 1.0, 2.0, 9.0], pace, lambda time: time):
        given.append((clock(), chunk))
        clock.advance(5.0)  # publishing is slow

    assert given == [(0.0, [0.0]), (5.0, [1.0, 2.0]), (10.0, [9.0])]


def test_progress_bar_ends_at_100_percent() -> None:
    out = StringIO()
    bar = Bar(200, ManualClock(0.0), out)
    bar.show(50)
    bar.show(60)
    bar.show(200)
    bar.end()

    lines = out.getvalue().splitlines()
    assert ["25 %" in lines[0], "100 %  200 of 200 rows" in lines[-1], len(lines)] == [True, True, 2]
