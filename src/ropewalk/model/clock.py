"""The type of clocks."""

from collections.abc import Callable

Clock = Callable[[], float]
"""Returns UNIX seconds. Passed in everywhere, so that tests control the time."""
