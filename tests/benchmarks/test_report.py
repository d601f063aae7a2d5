"""Figures that are computed from the rounds of a benchmark."""

from benchmarks.report import Bar, figure


def test_ratio_does_not_change_when_the_machine_becomes_faster() -> None:
    rounds, floor = [100.0, 100.0, 200.0, 200.0, 200.0], [125.0, 125.0, 125.0, 250.0, 250.0]
    found = figure("x", "deliveries", "/s", rounds, floor, {}, Bar("ratio", ">=", 0.8))
    assert (found.value, found.floor, found.ratio, found.holds) == (200.0, 125.0, 0.8, True)


def test_bar_may_apply_to_the_value_alone() -> None:
    found = figure("x", "deliveries", "/s", [90.0], [100.0], {}, Bar("value", ">=", 100.0))
    assert (found.ratio, found.holds) == (0.9, False)
