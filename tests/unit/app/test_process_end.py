"""The first stop signal, its duplicates, and the second signal."""

from ropewalk.app.process_end import ECHO_SECONDS, StopSignals


def test_second_signal_means_now() -> None:
    signals = StopSignals()
    assert not signals.means_now(100.0)
    assert signals.means_now(103.0)


def test_duplicates_of_one_signal_count_once() -> None:
    signals = StopSignals()
    assert [signals.means_now(100.0 + after) for after in (0.0, 0.0, 0.001, ECHO_SECONDS)] == [False] * 4
    assert signals.means_now(100.01 + ECHO_SECONDS)
