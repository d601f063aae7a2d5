"""Admission: each kind of connection has its own limit, and undecided connections do not block others."""

from collections import Counter
from dataclasses import replace

from ropewalk.adapters.endpoints.admission import (
    CROWDED_IDLE_TIMEOUT,
    HTTP_RESERVE,
    MAX_UNIDENTIFIED,
    ConnectionAdmission,
    ConnectionLimits,
)


class UndecidedConnection:
    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


class OpenConnections:
    """The number of open connections of each library."""

    def __init__(self) -> None:
        self.websockets = 0
        self.http = 0

    def admission(self, limits: ConnectionLimits) -> ConnectionAdmission:
        return ConnectionAdmission(limits, Counter(), lambda: self.websockets, lambda: self.http)


async def test_clients_at_their_limit_do_not_block_http() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(clients=2, http=2))
    open_now.websockets = 2
    assert not admission.client_may_enter()
    assert admission.http_may_enter()
    assert admission.refusals == {"connections": 1}


async def test_http_beyond_its_limit_is_closed_sooner_and_then_refused() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(clients=2, http=2, idle_timeout=75))
    open_now.http = 1
    assert admission.idle_timeout() == 75
    open_now.http = 2
    assert admission.http_may_enter()
    assert admission.idle_timeout() == CROWDED_IDLE_TIMEOUT
    open_now.http = 2 + HTTP_RESERVE
    assert not admission.http_may_enter()
    assert admission.client_may_enter()


async def test_oldest_undecided_connection_is_dropped_beyond_the_limit() -> None:
    admission = OpenConnections().admission(ConnectionLimits())
    undecided = [UndecidedConnection() for _ in range(MAX_UNIDENTIFIED + 2)]
    for connection in undecided:
        admission.arrived(connection)
    assert [connection.dropped for connection in undecided[:3]] == [True, True, False]
    assert admission.connections() == MAX_UNIDENTIFIED


async def test_connection_whose_request_waits_for_its_turn_is_counted_and_not_dropped() -> None:
    admission = OpenConnections().admission(ConnectionLimits())
    waiting = [UndecidedConnection() for _ in range(3)]
    for connection in waiting:
        admission.arrived(connection)
        admission.waits(connection)
    for _ in range(MAX_UNIDENTIFIED + 1):
        admission.arrived(UndecidedConnection())
    assert not any(connection.dropped for connection in waiting)
    assert admission.connections() == MAX_UNIDENTIFIED + 3
    for connection in waiting:
        admission.left(connection)
    assert admission.connections() == MAX_UNIDENTIFIED


async def test_undecided_connections_are_dropped_when_descriptors_run_out() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(descriptors=10))
    open_now.websockets = 9
    first, second = UndecidedConnection(), UndecidedConnection()
    admission.arrived(first)
    assert not first.dropped
    admission.arrived(second)
    assert (first.dropped, second.dropped) == (True, False)
    assert admission.refusals == {"descriptors": 1}


async def test_clients_leave_spare_descriptors_to_http() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(clients=1000, http=1000, descriptors=10, spare=4, idle_timeout=75))
    open_now.websockets, open_now.http = 9, 4
    assert admission.client_may_enter()
    assert admission.idle_timeout() == 75
    open_now.websockets, open_now.http = 10, 3
    assert not admission.client_may_enter()
    assert admission.http_may_enter()
    assert admission.idle_timeout() == CROWDED_IDLE_TIMEOUT
    open_now.http = 4
    assert not admission.http_may_enter()
    open_now.websockets, open_now.http = 3, 10
    assert admission.client_may_enter()
    assert admission.http_may_enter()
    open_now.http = 11
    assert not admission.client_may_enter()
    assert not admission.http_may_enter()
    assert admission.refusals == {"descriptors": 4}


async def test_limits_can_change_while_connections_are_open() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(clients=1))
    open_now.websockets = 1
    assert not admission.client_may_enter()
    admission.limits = replace(admission.limits, clients=2)
    assert admission.client_may_enter()


async def test_connections_of_other_processes_count_for_the_limits() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(clients=5, http=5, descriptors=100, idle_timeout=75))
    open_now.websockets = open_now.http = 2
    admission.set_elsewhere(clients=2, http=2)
    assert admission.client_may_enter()
    assert admission.idle_timeout() == 75
    admission.set_elsewhere(clients=3, http=3)
    assert not admission.client_may_enter()
    assert admission.idle_timeout() == CROWDED_IDLE_TIMEOUT
    assert admission.http_may_enter()
    admission.set_elsewhere(clients=3, http=3 + HTTP_RESERVE)
    assert not admission.http_may_enter()
    admission.set_elsewhere(clients=9, http=9 + HTTP_RESERVE)
    open_now.websockets = open_now.http = 0
    assert not admission.client_may_enter()
    assert not admission.http_may_enter()
    assert admission.connections() == 0  # descriptors are counted per process


async def test_connections_of_other_processes_do_not_matter_without_limits() -> None:
    admission = OpenConnections().admission(ConnectionLimits())
    admission.set_elsewhere(clients=10**6, http=10**6)
    assert admission.client_may_enter()
    assert admission.http_may_enter()
    assert admission.idle_timeout() == ConnectionLimits().idle_timeout


async def test_connections_of_other_processes_count_for_changed_limits() -> None:
    open_now = OpenConnections()
    admission = open_now.admission(ConnectionLimits(clients=2))
    admission.set_elsewhere(clients=2, http=0)
    assert not admission.client_may_enter()
    admission.limits = replace(admission.limits, clients=3)
    assert admission.client_may_enter()
    open_now.websockets = 1
    assert not admission.client_may_enter()
