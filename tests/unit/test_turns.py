"""Tests that must be alone are, and get their turn."""

import fcntl
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.turns import turn

SECONDS = 30.0


def is_waited_at(gate: Path) -> bool:
    handle = os.open(gate, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def test_two_share_the_room(tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=SECONDS)

    def enter() -> None:
        with turn(False, tmp_path):
            together.wait()

    with ThreadPoolExecutor(2) as pool:
        for entered in [pool.submit(enter), pool.submit(enter)]:
            entered.result()


def test_one_that_is_alone_waits_for_those_within_and_those_who_come_later_wait_for_it(tmp_path: Path) -> None:
    story: list[str] = []

    def enter(name: str, alone: bool) -> None:
        with turn(alone, tmp_path):
            story.append(f"{name} comes")
            time.sleep(0.01)  # for the other to come too, if it could
            story.append(f"{name} goes")

    with ThreadPoolExecutor(2) as pool:
        with turn(False, tmp_path):
            first = pool.submit(enter, "first", True)
            deadline = time.monotonic() + SECONDS
            while not is_waited_at(tmp_path / "gate"):
                assert time.monotonic() < deadline
            second = pool.submit(enter, "second", False)
            time.sleep(0.1)  # for it to come, if it could
            story.append("the room is left")
        first.result()
        second.result()
    assert story == ["the room is left", "first comes", "first goes", "second comes", "second goes"]
