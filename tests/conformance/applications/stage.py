"""A server with the obedient application behind it, and the calls that the application received."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ropewalk.testing import application_events as events
from ropewalk.testing.application_events import ApplicationEvent
from ropewalk.testing.application_orders import NAME
from tests.cable import Cable, cable
from tests.conformance.applications import obedient_channels
from tests.conformance.applications.rpc_process import ROOT, rpc_process
from tests.server import RunningServer, running_server

PYTHON, GRPC, HTTP = "python", "grpc", "http"
TIMEOUT = 60.0

RESTORE = "--rpc_restore"
NO_AUTH = ("--broadcast_key", "none", "--api_secret", "none", "--public_streams")
SILENT = ("--ping_interval", "0")  # so that a client that waits for nothing times out


class Stage:
    def __init__(self, kind: str, server: RunningServer, log: Path) -> None:
        self.kind = kind
        self.server = server
        self._log = log

    @asynccontextmanager
    async def client(self, user: str = "ann", **options: Any) -> AsyncIterator[Cable]:
        """A client that was accepted and welcomed; options are those of `tests.cable`."""
        params = {NAME: user, **options.pop("params", {})}
        async with cable(self.server, params=params, **options) as client:
            yield client

    def told(self) -> list[ApplicationEvent]:
        written = events.read(self._log)
        return events.folded(written) if self.kind == PYTHON else written

    def story(self, *sids: str) -> list[str]:
        """The kinds of the calls for these sessions, in order."""
        return [event.kind for event in self.told() if event.sid in sids]

    async def heard(self, sid: str, kind: str) -> ApplicationEvent:
        """The latest call of this kind for a session, as soon as there is one."""
        return await self._first(kind, lambda event: event.sid == sid)

    async def heard_by(self, query: str, kind: str) -> ApplicationEvent:
        """The same for the client with this text in its URL."""
        return await self._first(kind, lambda event: query in event.url)

    async def _first(self, kind: str, fits: Callable[[ApplicationEvent], bool]) -> ApplicationEvent:
        deadline = time.monotonic() + TIMEOUT
        while not (found := [event for event in self.told() if event.kind == kind and fits(event)]):
            others = [event.kind for event in self.told() if fits(event)]
            assert time.monotonic() < deadline, f"no {kind} in {TIMEOUT} s, but {others}"
            await asyncio.sleep(0.02)
        return found[-1]

    async def dismiss(self, ids: str, path: str = "/_broadcast", reconnect: bool = False) -> int:
        """Disconnect a user through the HTTP API; returns the number of sessions."""
        body = {"command": "disconnect", "payload": {"identifier": ids, "reconnect": reconnect}}
        async with aiohttp.ClientSession() as http, http.post(f"{self.server.url}{path}", json=body) as response:
            assert response.status == 201, await response.text()
            return int((await response.json())["disconnected"])


@contextmanager
def staged(kind: str, *flags: str) -> Iterator[Stage]:
    """At the end, checks that every accepted session had exactly one disconnect call."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "events.jsonl"
        with application(kind, log) as named, running_stage(kind, log, *named, *flags) as stage:
            yield stage
            if stage.server.process.poll() is None:
                stage.server.stop()
            assert_matching_calls(stage.told(), restored_calls=kind == PYTHON or RESTORE in flags)
            assert_no_unordered_tracebacks(stage.server.log())


@contextmanager
def running_stage(kind: str, log: Path, *flags: str) -> Iterator[Stage]:
    with running_server(*NO_AUTH, *SILENT, *flags, allow_tracebacks=True) as server:
        yield Stage(kind, server, log)


@contextmanager
def application(kind: str, log: Path) -> Iterator[tuple[str, ...]]:
    """Start the application; yields the flags that name it."""
    if kind == PYTHON:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(obedient_channels.LOG, str(log))
            yield "--app", f"{obedient_channels.__name__}:app", "--app_dir", str(ROOT)
    else:
        with rpc_process(kind, log) as backend:
            yield "--rpc_host", backend.address


BEGINNINGS = ("connect", "restored", "refused")


def assert_matching_calls(calls: list[ApplicationEvent], restored_calls: bool) -> None:
    """Each sid begins once and ends at most once, with no call before or after; accepted sessions have one disconnect call."""
    for sid in {event.sid for event in calls}:
        kinds = [event.kind for event in calls if event.sid == sid]
        assert sum(kinds.count(beginning) for beginning in BEGINNINGS) == (kinds[0] in BEGINNINGS), kinds
        assert kinds[0] in BEGINNINGS or not restored_calls, kinds
        assert kinds == ["refused"] or "refused" not in kinds, kinds
        assert "disconnect" not in kinds[:-1], kinds
    kinds = [event.kind for event in calls]
    assert kinds.count("connect") == kinds.count("disconnect"), f"connect and disconnect calls do not match: {kinds}"


def assert_no_unordered_tracebacks(log: str) -> None:
    """The only tracebacks are those that a test ordered."""
    ordered = log.count("\nRuntimeError: as ordered") + log.count("\nRuntimeError: as its name demands")
    assert log.count("Traceback (most recent call last)") == ordered, log
