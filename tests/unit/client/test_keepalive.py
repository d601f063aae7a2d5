"""The timeout of a silent connection."""

from ropewalk.client.keepalive import Keepalive
from ropewalk.protocol.server_messages import ServerPing, Welcome


def test_timeout_is_twice_the_requested_interval() -> None:
    assert Keepalive(3).timeout == 6


def test_interval_is_measured_from_two_pings_by_default() -> None:
    keepalive = Keepalive(None)
    keepalive.heard(Welcome("s"))
    keepalive.heard(ServerPing(100.0))
    assert keepalive.timeout is None
    keepalive.heard(ServerPing(110.0))
    assert keepalive.timeout == 20.0


def test_timeout_grows_if_the_server_pings_less_often() -> None:
    keepalive = Keepalive(3)
    keepalive.heard(ServerPing(100.0))
    keepalive.heard(ServerPing(110.0))
    assert keepalive.timeout == 20.0


def test_pings_without_a_time_do_not_change_the_timeout() -> None:
    keepalive = Keepalive(3)
    keepalive.heard(ServerPing())
    keepalive.heard(ServerPing())
    assert keepalive.timeout == 6
