"""The first signal, its echo, and the second one."""

from ropewalk.app.stop_signals import ECHO_SECONDS, StopSignals


def test_the_first_signal_begins_an_orderly_end_and_a_second_one_means_now() -> None:
    signals = StopSignals()
    assert not signals.means_now(100.0)
    assert signals.means_now(103.0)


def test_one_signal_that_comes_by_several_ways_is_one() -> None:
    signals = StopSignals()
    assert [signals.means_now(100.0 + after) for after in (0.0, 0.0, 0.001, ECHO_SECONDS)] == [False] * 4
    assert signals.means_now(100.01 + ECHO_SECONDS)
