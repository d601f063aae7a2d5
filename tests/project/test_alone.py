"""Tests marked `alone` wait for running tests, and later tests wait for them."""

import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.alone import run_slot

SECONDS = 60.0


def is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def test_ordinary_tests_run_side_by_side(tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=SECONDS)

    def run() -> None:
        with run_slot(False, tmp_path):
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(run), pool.submit(run)]:
            running.result()


def test_a_test_marked_alone_runs_between_the_earlier_and_the_later_ones(tmp_path: Path) -> None:
    events: list[str] = []

    def run(name: str, alone: bool) -> None:
        with run_slot(alone, tmp_path):
            events.append(f"{name} starts")
            events.append(f"{name} ends")

    with ThreadPoolExecutor(2) as pool:
        with run_slot(False, tmp_path):
            exclusive = pool.submit(run, "alone", True)
            deadline = time.monotonic() + SECONDS
            while not is_locked(tmp_path / "waiting"):
                assert time.monotonic() < deadline
            later = pool.submit(run, "later", False)
            events.append("earlier ends")
        exclusive.result()
        later.result()
    assert events == ["earlier ends", "alone starts", "alone ends", "later starts", "later ends"]
