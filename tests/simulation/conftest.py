"""Setup of the simulations."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    """Failures in the simulation are intended: thousands of warnings would hide the result of a test."""
    logger = logging.getLogger("ropewalk")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)
