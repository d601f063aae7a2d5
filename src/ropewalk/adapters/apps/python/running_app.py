"""An App while it runs: its start and stop, and the calls in progress."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk.adapters.apps.python.containment import run_contained
from ropewalk.channels import App, Runner
from ropewalk.ports import Publisher

logger = logging.getLogger("ropewalk.channels")


class RunningApp:
    """Made by `begin`. After `end` the app must not be asked any more."""

    def __init__(self, app: App, runner: Runner) -> None:
        self.app = app
        self._runner = runner
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def begin(cls, app: App, runner: Runner, publisher: Publisher) -> "RunningApp":
        """Raises ServerError where the app cannot start."""
        await run_contained(app.start(publisher.publish, runner))
        return cls(app, runner)

    @contextmanager
    def call(self) -> Iterator[App]:
        self._calls += 1
        self._idle.clear()
        try:
            yield self.app
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def end(self, timeout: float) -> None:
        """Calls under way may finish first, then the app shuts down; each has so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("the app shuts down while it is still asked", extra={"calls": self._calls})
        try:
            async with asyncio.timeout(timeout):
                await run_contained(self.app.stop(self._runner))
        except TimeoutError:
            logger.warning("the app did not shut down in time", extra={"seconds": timeout})
