"""Detection of hanging workers, as opposed to slow or new ones, and to a suspended machine."""

from collections.abc import Iterator

import pytest

from ropewalk.app.supervisor import LATE_LOOKS, LOOK_SECONDS, MAX_UNANSWERED, HangWatch


class Machine:
    """Workers that are pinged at each look. They answer before the next look unless they are silent."""

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


def test_worker_that_misses_enough_pings_hangs(machine: Machine) -> None:
    machine.silent = {"b"}
    assert list(machine.looks(MAX_UNANSWERED)) == [[]] * MAX_UNANSWERED
    assert machine.look() == ["b"]
    assert LOOK_SECONDS * MAX_UNANSWERED == 30  # as documented


def test_late_answer_restarts_the_count(machine: Machine) -> None:
    machine.silent = {"b"}
    assert not any(machine.looks(MAX_UNANSWERED))
    machine.answers["b"] += 1
    assert not any(machine.looks(MAX_UNANSWERED))
    assert machine.look() == ["b"]


def test_new_worker_has_its_own_timeout(machine: Machine) -> None:
    machine.silent = {"b", "d"}
    assert not any(machine.looks(MAX_UNANSWERED - 1))
    machine.answers["d"] = 0
    assert not machine.look()
    assert machine.look() == ["b"]
    del machine.answers["b"]
    assert not any(machine.looks(MAX_UNANSWERED - 2))
    assert machine.look() == ["d"]


def test_late_look_restarts_the_count(machine: Machine) -> None:
    machine.silent = {"b"}
    assert not any(machine.looks(MAX_UNANSWERED))
    assert not machine.look(after=LATE_LOOKS * LOOK_SECONDS + 1)
    assert not any(machine.looks(MAX_UNANSWERED - 1))
    assert machine.look() == ["b"]


def test_suspended_machine_causes_no_hangs(machine: Machine) -> None:
    machine.silent = {"a", "b", "c"}
    assert not machine.look()
    assert not machine.look(after=3600)
    machine.silent = set()
    assert not any(machine.looks(MAX_UNANSWERED * 3))


def test_timeout_doubles_if_all_workers_are_silent(machine: Machine) -> None:
    machine.silent = {"a", "b", "c"}
    assert not any(machine.looks(2 * MAX_UNANSWERED))
    assert machine.look() == ["a", "b", "c"]


def test_doubled_timeout_restarts_after_an_answer(machine: Machine) -> None:
    for _ in range(2):
        machine.silent = {"a", "b", "c"}
        assert not any(machine.looks(2 * MAX_UNANSWERED - 1))
        machine.silent = set()
        assert not any(machine.looks(3))


def test_no_worker_hangs_if_there_are_none() -> None:
    assert not any(Machine().looks(3 * MAX_UNANSWERED))
