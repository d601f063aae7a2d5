"""Names handlers that block the event loop, and with it every client of the server.

A thread asks the loop once in a while for a sign of life. When none comes in time, the stack of the loop's thread says which
handler it is in.
"""

import asyncio
import logging
import sys
import threading
import time

from ropewalk.adapters.apps.python.containment import contained
from ropewalk.adapters.apps.python.stacks import described, frames_from

logger = logging.getLogger("ropewalk.channels")

TOO_LONG = 1.0
"""Seconds."""

QUIET = 60.0
"""Seconds between two warnings about the same handler."""

MOST_NAMES = 1000


class Watchdog:
    """Made on the event loop that it watches."""

    def __init__(self, too_long: float = TOO_LONG) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._too_long = too_long
        self._stopped = threading.Event()
        self._warned: dict[str, float] = {}
        threading.Thread(target=self._watch, name="ropewalk-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._too_long):
            alive = threading.Event()
            try:
                self._loop.call_soon_threadsafe(alive.set)
            except RuntimeError:  # the loop is closed
                return
            since = time.monotonic()
            if not alive.wait(self._too_long) and (name := self._warn()):
                while not alive.wait(self._too_long) and not self._stopped.is_set():
                    pass
                seconds = round(time.monotonic() - since, 1)
                logger.warning("the event loop goes on after a handler blocked it", extra={"handler": name, "seconds": seconds})

    def _warn(self) -> str:
        """The name of the handler that was warned about, or ""."""
        found = described(frames_from(sys._current_frames().get(self._loop_thread)), contained.__code__)
        name = found.get("handler", "")
        now = time.monotonic()
        if not found or now - self._warned.get(name, -QUIET) < QUIET:
            return ""
        if len(self._warned) >= MOST_NAMES:
            self._warned.clear()
        self._warned[name] = now
        logger.warning(
            "a handler blocks the event loop, and with it everybody: make it a plain function, or await what it waits for",
            extra=found,
        )
        return name
