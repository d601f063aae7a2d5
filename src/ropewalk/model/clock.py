"""Where the time comes from."""

from collections.abc import Callable

Clock = Callable[[], float]
"""UNIX seconds. Passed in everywhere, so that tests own the time."""
