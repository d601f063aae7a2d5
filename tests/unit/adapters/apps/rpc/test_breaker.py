"""The circuit breaker, on a clock that stands still until it is told to move."""

from ropewalk.adapters.apps.rpc.breaker import Breaker
from ropewalk.testing.clock import ManualClock


class Circuit:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock)

    def request(self, ok: bool | None) -> bool:
        """True if it was let through."""
        ticket = self.breaker.enter()
        if ticket is not None:
            self.breaker.leave(ticket, ok)
        return ticket is not None

    def requests(self, ok: bool, count: int) -> int:
        return sum(self.request(ok) for _ in range(count))

    def enter(self) -> int:
        ticket = self.breaker.enter()
        assert ticket is not None
        return ticket

    @classmethod
    def opened(cls) -> "Circuit":
        circuit = cls()
        circuit.requests(False, 10)
        assert circuit.breaker.open
        return circuit


def test_nine_failures_are_too_few_to_judge_by() -> None:
    circuit = Circuit()
    circuit.requests(False, 9)
    assert not circuit.breaker.open
    assert circuit.request(False)
    assert circuit.breaker.open


def test_it_opens_at_eighty_percent_and_not_below() -> None:
    below, at = Circuit(), Circuit()
    for circuit, successes in ((below, 3), (at, 2)):
        circuit.requests(True, successes)
        circuit.requests(False, 10 - successes)
    assert not below.breaker.open
    assert at.breaker.open


def test_what_happened_before_the_window_is_forgotten() -> None:
    circuit = Circuit()
    circuit.requests(False, 9)
    circuit.clock.advance(10)
    circuit.requests(False, 9)
    assert not circuit.breaker.open
    circuit.clock.advance(9)
    circuit.request(False)
    assert circuit.breaker.open


def test_while_it_is_open_nobody_is_let_through() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(4.9)
    assert circuit.requests(True, 100) == 0
    assert circuit.breaker.open


def test_after_the_pause_five_are_let_through_and_their_success_closes_it() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    tickets = [circuit.enter() for _ in range(5)]
    assert circuit.breaker.enter() is None
    for ticket in tickets:
        assert circuit.breaker.open
        circuit.breaker.leave(ticket, True)
    assert not circuit.breaker.open
    assert circuit.requests(True, 100) == 100


def test_one_failure_among_the_five_opens_it_again() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    assert circuit.requests(True, 4) == 4
    assert circuit.request(False)
    assert circuit.requests(True, 10) == 0
    circuit.clock.advance(5)
    assert circuit.requests(True, 5) == 5
    assert not circuit.breaker.open


def test_a_trial_whose_end_nobody_saw_may_be_made_again() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    assert all(circuit.request(None) for _ in range(20))
    assert circuit.requests(True, 5) == 5
    assert not circuit.breaker.open


def test_once_closed_it_begins_to_count_anew() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    circuit.requests(True, 5)
    circuit.requests(False, 9)
    assert not circuit.breaker.open


def test_a_request_that_comes_back_late_is_old_news() -> None:
    circuit = Circuit()
    slow = circuit.enter()
    circuit.requests(False, 10)
    circuit.clock.advance(5)
    trial = circuit.enter()
    circuit.breaker.leave(slow, False)
    assert circuit.breaker.enter() is not None, "the trials go on"
    circuit.breaker.leave(trial, False)
    assert circuit.breaker.enter() is None


def test_after_long_heavy_traffic_only_the_last_seconds_count() -> None:
    circuit = Circuit()
    for _ in range(100):
        circuit.requests(True, 100)
        circuit.clock.advance(1)
    circuit.requests(False, 4000)
    assert circuit.breaker.open
