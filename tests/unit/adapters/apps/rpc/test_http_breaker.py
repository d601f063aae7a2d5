"""The circuit breaker, on a manual clock."""

from ropewalk.adapters.apps.rpc.http import Breaker
from ropewalk.testing.clock import ManualClock


class Circuit:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock)

    def request(self, ok: bool | None) -> bool:
        """Returns whether the circuit let it through."""
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


def test_circuit_needs_ten_requests_to_open() -> None:
    circuit = Circuit()
    circuit.requests(False, 9)
    assert not circuit.breaker.open
    assert circuit.request(False)
    assert circuit.breaker.open


def test_circuit_opens_at_eighty_percent_failures() -> None:
    below, at = Circuit(), Circuit()
    for circuit, successes in ((below, 3), (at, 2)):
        circuit.requests(True, successes)
        circuit.requests(False, 10 - successes)
    assert not below.breaker.open
    assert at.breaker.open


def test_failures_before_the_window_do_not_count() -> None:
    circuit = Circuit()
    circuit.requests(False, 9)
    circuit.clock.advance(10)
    circuit.requests(False, 9)
    assert not circuit.breaker.open
    circuit.clock.advance(9)
    circuit.request(False)
    assert circuit.breaker.open


def test_open_circuit_lets_no_request_through() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(4.9)
    assert circuit.requests(True, 100) == 0
    assert circuit.breaker.open


def test_five_successful_trials_close_the_circuit() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    tickets = [circuit.enter() for _ in range(5)]
    assert circuit.breaker.enter() is None
    for ticket in tickets:
        assert circuit.breaker.open
        circuit.breaker.leave(ticket, True)
    assert not circuit.breaker.open
    assert circuit.requests(True, 100) == 100


def test_one_failed_trial_opens_the_circuit_again() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    assert circuit.requests(True, 4) == 4
    assert circuit.request(False)
    assert circuit.requests(True, 10) == 0
    circuit.clock.advance(5)
    assert circuit.requests(True, 5) == 5
    assert not circuit.breaker.open


def test_trial_without_a_result_may_be_repeated() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    assert all(circuit.request(None) for _ in range(20))
    assert circuit.requests(True, 5) == 5
    assert not circuit.breaker.open


def test_closed_circuit_starts_a_new_count() -> None:
    circuit = Circuit.opened()
    circuit.clock.advance(5)
    circuit.requests(True, 5)
    circuit.requests(False, 9)
    assert not circuit.breaker.open


def test_late_result_of_an_earlier_request_is_ignored() -> None:
    circuit = Circuit()
    slow = circuit.enter()
    circuit.requests(False, 10)
    circuit.clock.advance(5)
    trial = circuit.enter()
    circuit.breaker.leave(slow, False)
    assert circuit.breaker.enter() is not None, "the trials go on"
    circuit.breaker.leave(trial, False)
    assert circuit.breaker.enter() is None


def test_only_the_window_counts_after_heavy_traffic() -> None:
    circuit = Circuit()
    for _ in range(100):
        circuit.requests(True, 100)
        circuit.clock.advance(1)
    circuit.requests(False, 4000)
    assert circuit.breaker.open
