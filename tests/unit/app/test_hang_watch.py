"""Which workers hang, and which are only slow, new, or on a machine that stood still."""

from collections.abc import Iterator

import pytest

from ropewalk.app.hang_watch import LATE_LOOKS, LOOK_SECONDS, MOST_UNANSWERED, HangWatch


class Machine:
    """Workers that are asked at each look, and answer before the next one unless they are silent."""

    def __init__(self, *workers: str) -> None:
        self.answers = dict.fromkeys(workers, 0)
        self.silent: set[str] = set()
        self.now = 1000.0
        self._watch = HangWatch[str]()

    def looks(self, count: int) -> Iterator[list[str]]:
        for _ in range(count):
            yield self.look()

    def look(self, after: float = LOOK_SECONDS) -> list[str]:
        self.now += after
        hanging = self._watch.look(self.now, self.answers)
        for worker in self.answers.keys() - self.silent:
            self.answers[worker] += 1
        return hanging


@pytest.fixture
def machine() -> Machine:
    made = Machine("a", "b", "c")
    assert list(made.looks(3)) == [[], [], []]
    return made


def test_one_that_leaves_so_many_questions_unanswered_hangs(machine: Machine) -> None:
    machine.silent = {"b"}
    assert list(machine.looks(MOST_UNANSWERED)) == [[]] * MOST_UNANSWERED
    assert machine.look() == ["b"]
    assert LOOK_SECONDS * MOST_UNANSWERED == 30  # as the pages say


def test_one_late_answer_is_enough(machine: Machine) -> None:
    machine.silent = {"b"}
    assert not any(machine.looks(MOST_UNANSWERED))
    machine.answers["b"] += 1
    assert not any(machine.looks(MOST_UNANSWERED))
    assert machine.look() == ["b"]


def test_one_that_has_just_started_has_its_own_time(machine: Machine) -> None:
    machine.silent = {"b", "d"}
    assert not any(machine.looks(MOST_UNANSWERED - 1))
    machine.answers["d"] = 0
    assert not machine.look()
    assert machine.look() == ["b"]
    del machine.answers["b"]
    assert not any(machine.looks(MOST_UNANSWERED - 2))
    assert machine.look() == ["d"]


def test_where_the_watch_itself_did_not_run_nobody_is_to_blame(machine: Machine) -> None:
    machine.silent = {"b"}
    assert not any(machine.looks(MOST_UNANSWERED))
    assert not machine.look(after=LATE_LOOKS * LOOK_SECONDS + 1)
    assert not any(machine.looks(MOST_UNANSWERED - 1))
    assert machine.look() == ["b"]


def test_a_long_time_without_looks_counts_as_none(machine: Machine) -> None:
    machine.silent = {"a", "b", "c"}
    assert not machine.look()
    assert not machine.look(after=3600)
    machine.silent = set()
    assert not any(machine.looks(MOST_UNANSWERED * 3))


def test_where_all_are_silent_at_once_they_get_the_time_twice(machine: Machine) -> None:
    machine.silent = {"a", "b", "c"}
    assert not any(machine.looks(2 * MOST_UNANSWERED))
    assert machine.look() == ["a", "b", "c"]


def test_the_time_is_given_again_once_somebody_has_answered(machine: Machine) -> None:
    for _ in range(2):
        machine.silent = {"a", "b", "c"}
        assert not any(machine.looks(2 * MOST_UNANSWERED - 1))
        machine.silent = set()
        assert not any(machine.looks(3))


def test_nobody_is_watched_where_nobody_serves() -> None:
    assert not any(Machine().looks(3 * MOST_UNANSWERED))
