"""How long silence is trusted."""

from ropewalk.client.keepalive import Keepalive
from ropewalk.protocol.server_messages import ServerPing, Welcome


def test_twice_the_interval_that_was_asked_for() -> None:
    assert Keepalive(3).timeout == 6


def test_without_a_wish_silence_is_trusted_until_two_pings_have_told_the_interval() -> None:
    keepalive = Keepalive(None)
    keepalive.heard(Welcome("s"))
    keepalive.heard(ServerPing(100.0))
    assert keepalive.timeout is None
    keepalive.heard(ServerPing(110.0))
    assert keepalive.timeout == 20.0


def test_a_server_that_pings_less_often_than_asked_is_trusted_longer() -> None:
    keepalive = Keepalive(3)
    keepalive.heard(ServerPing(100.0))
    keepalive.heard(ServerPing(110.0))
    assert keepalive.timeout == 20.0


def test_pings_without_a_time_teach_nothing() -> None:
    keepalive = Keepalive(3)
    keepalive.heard(ServerPing())
    keepalive.heard(ServerPing())
    assert keepalive.timeout == 6
