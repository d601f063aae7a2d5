"""Work that fails is restarted with backoff, and the reason is reported until the work is connected again."""

import asyncio
import logging

import pytest

from ropewalk.adapters.broadcasters.intake import RETRY_BACKOFF, Retrying


class LostConnection(Exception):
    """What the library of a broadcaster raises when the other side is down."""


class Script:
    """Work that raises one error after another, then connects and runs until it is cancelled.

    Pauses between two runs take no time. `pauses` has their lengths, `health` what was reported in each.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.pauses: list[float] = []
        self.health: list[str] = []
        self._errors = list(errors)
        self._connected = asyncio.Event()
        self.retrying = Retrying("redis", self._work, (LostConnection,), chance=lambda: 1.0)
        monkeypatch.setattr(self.retrying, "pause", self._pause)

    async def run_until_connected(self) -> None:
        self.retrying.start()
        async with asyncio.timeout(60):
            await self._connected.wait()
        await self.retrying.stop(0)

    async def _work(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.retrying.connected()
        self._connected.set()
        await asyncio.Event().wait()

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.health.append(self.retrying.health())


async def test_failed_work_is_restarted_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, LostConnection("a"), OSError("b"), LostConnection("c"))
    await script.run_until_connected()
    assert script.pauses == [RETRY_BACKOFF.first, 2 * RETRY_BACKOFF.first, 4 * RETRY_BACKOFF.first]


async def test_reason_is_reported_until_the_work_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, LostConnection("refused"), LostConnection())
    assert script.retrying.health() == "broadcaster redis: not connected yet"
    await script.run_until_connected()
    assert script.health == ["broadcaster redis: refused", "broadcaster redis: LostConnection"]
    assert script.retrying.health() == ""


async def test_same_reason_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(monkeypatch, *(LostConnection("refused") for _ in range(3)), LostConnection("reset"))
    await script.run_until_connected()
    assert [vars(record)["reason"] for record in caplog.records if record.levelno == logging.WARNING] == ["refused", "reset"]


async def test_unexpected_error_is_logged_with_its_traceback_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(monkeypatch, LostConnection("expected"), ZeroDivisionError("a bug"))
    await script.run_until_connected()
    [unexpected] = [record for record in caplog.records if record.exc_info]
    assert "a bug" in (unexpected.exc_text or "")
    assert len(script.pauses) == 2


async def test_stop_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()

    async def work() -> None:
        failed.set()
        raise LostConnection

    retrying = Retrying("redis", work, (LostConnection,))
    monkeypatch.setattr(retrying, "delay", lambda attempt: 3600.0)
    retrying.start()
    await failed.wait()
    await retrying.stop(60)
    assert retrying._task is not None
    assert not retrying._task.cancelled()
