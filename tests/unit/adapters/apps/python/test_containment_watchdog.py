"""Handlers that block the event loop are logged while they block. The handlers here block until that has happened."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.adapters.apps.python.containment import Watchdog
from ropewalk.channels import App, Channel, action
from tests.unit.adapters.apps.python.running_apps import perform, running

SOON = 0.01


class Listener(logging.Handler):
    """`warned` is set when a handler is reported to block, `over` when it no longer does."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warned, self.over = threading.Event(), threading.Event()
        self.records: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(vars(record))
        (self.warned if "blocks the event loop" in record.getMessage() else self.over).set()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    logging.getLogger("ropewalk.channels").addHandler(listener)
    yield listener
    logging.getLogger("ropewalk.channels").removeHandler(listener)


def blocking(listener: Listener) -> App:
    app = App()

    @app.channel
    class Room(Channel):
        @action
        async def block(self) -> None:
            deeply(listener)

        @action
        async def begin(self) -> None:
            async def background() -> None:
                deeply(listener)

            await asyncio.gather(asyncio.get_running_loop().create_task(background()))

    return app


def deeply(listener: Listener) -> None:
    assert listener.warned.wait(60)


async def run_until_warned(listener: Listener, name: str) -> dict[str, Any]:
    async with running(blocking(listener)) as application:
        watchdog = Watchdog(SOON)
        try:
            await application.command(perform(name))
            assert await asyncio.to_thread(listener.over.wait, 60)
        finally:
            watchdog.stop()
    return listener.records[0]


async def test_blocking_handler_is_logged_with_its_line(listener: Listener) -> None:
    warned = await run_until_warned(listener, "block")
    assert warned["handler"] == "Room.block"
    assert "test_containment_watchdog.py" in warned["at"]
    assert " block > " in warned["at"]
    assert " deeply" in warned["at"]
    assert [each["handler"] for each in listener.records] == ["Room.block"] * 2


async def test_blocking_task_of_a_handler_is_logged(listener: Listener) -> None:
    warned = await run_until_warned(listener, "begin")
    assert warned["handler"].endswith("background")


async def test_loop_blocked_by_other_code_is_not_logged(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, warn = threading.Event(), Watchdog._warn

    def look(watchdog: Watchdog) -> str:
        name = warn(watchdog)
        looked.set()
        return name

    monkeypatch.setattr(Watchdog, "_warn", look)
    async with running(blocking(listener)):
        watchdog = Watchdog(SOON)
        assert looked.wait(60)
        watchdog.stop()
    assert listener.records == []
