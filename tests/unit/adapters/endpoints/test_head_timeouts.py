"""One timer serves all connections whose request head is incomplete."""

import asyncio

import pytest

from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.testing.clock import ManualClock

SECONDS = 5.0


class Connections:
    """Connections by name. `late` has those that timed out, in order."""

    def __init__(self, clock: ManualClock) -> None:
        self.timeouts = HeadTimeouts(SECONDS)
        self.late: list[str] = []
        self._clock = clock

    def connection(self, name: str) -> "Connection":
        return Connection(name, self.late)

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)
        for _ in range(3):
            await asyncio.sleep(0)


class Connection:
    def __init__(self, name: str, late: list[str]) -> None:
        self._name = name
        self._late = late

    def time_out(self) -> None:
        self._late.append(self._name)


@pytest.fixture
def connections(loop_clock: ManualClock) -> Connections:
    return Connections(loop_clock)


async def test_incomplete_heads_time_out_in_order_and_complete_ones_do_not(connections: Connections) -> None:
    first, complete, second = map(connections.connection, ("first", "complete", "second"))
    for each in (first, complete, second):
        connections.timeouts.begin(each)
    connections.timeouts.end(complete)
    await connections.advance(SECONDS - 0.1)
    assert connections.late == []
    await connections.advance(0.1)
    assert connections.late == ["first", "second"]


async def test_timer_is_set_again_for_a_connection_that_began_later(connections: Connections) -> None:
    complete, incomplete = map(connections.connection, ("complete", "incomplete"))
    connections.timeouts.begin(complete)
    await connections.advance(1.0)
    connections.timeouts.begin(incomplete)
    connections.timeouts.end(complete)
    await connections.advance(SECONDS - 1.0)
    assert connections.late == []
    await connections.advance(1.0)
    assert connections.late == ["incomplete"]


async def test_timer_starts_again_after_all_connections_timed_out(connections: Connections) -> None:
    for name in ("first", "second"):
        connections.timeouts.begin(connections.connection(name))
        await connections.advance(SECONDS)
        assert connections.late[-1] == name


async def test_end_is_harmless_for_connections_that_are_not_waiting(connections: Connections) -> None:
    complete = connections.connection("complete")
    connections.timeouts.begin(complete)
    connections.timeouts.end(complete)
    connections.timeouts.end(complete)
    connections.timeouts.end(connections.connection("never began"))
    await connections.advance(SECONDS)
    assert connections.late == []
