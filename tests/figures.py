"""What a benchmark's figure was computed from."""

from benchmarks.report import Figure


def ratios_of(figure: Figure) -> list[float]:
    """Of each round and the floor's beside it."""
    return [measured / floor for measured, floor in zip(figure.rounds, figure.floor_rounds, strict=True)]
