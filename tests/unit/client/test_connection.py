"""Failed connection attempts, and the delays between connections, with dialers of the test."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from ropewalk.client.codec import CableClientCodec
from ropewalk.client.connection import MAX_LOGGED_REASONS, Connection, SessionOptions
from ropewalk.client.effects import Redial
from ropewalk.client.errors import CertificateUntrusted, TlsFailed, Unreachable
from ropewalk.client.link import ClientLink
from ropewalk.core.backoff import Backoff
from ropewalk.testing.simulation.steps import run

UNTRUSTED = CertificateUntrusted("https://a", ValueError("self-signed"))


class FailingDialer:
    """Raises each error in turn, then waits."""

    url = hint = ""

    def __init__(self, *errors: Unreachable) -> None:
        self.errors = list(errors)
        self.done = asyncio.Event()

    async def dial(self, receive: Callable[[bytes], None], sid: str, token: str) -> ClientLink:
        if self.errors:
            raise self.errors.pop(0)
        self.done.set()
        return await asyncio.Event().wait()  # type: ignore[return-value]


class Owner:
    """Records the failed attempts: the error, the allowed attempts, and whether it was the last."""

    sid = ""
    publishing = True

    def __init__(self) -> None:
        self.failures: list[tuple[Exception, int, bool]] = []

    def receive(self, data: bytes) -> None: ...
    def next_ref(self) -> int:
        return 1

    def disconnected(self) -> None: ...
    def attempt_failed(self, error: Exception, max_attempts: int, last: bool) -> None:
        self.failures.append((error, max_attempts, last))

    def ended(self, error: Exception) -> None: ...


async def fail(*errors: Unreachable, on_demand: bool = False, accepted_before: Unreachable | None = None) -> Owner:
    """Returns after an attempt with each error. The server accepts the session before the last one."""
    owner, dialer = Owner(), FailingDialer(*errors)
    backoff = Backoff(first=0.0, cap=0.0)
    options = SessionOptions(lambda: 0.0, backoff, chance=lambda: 0.0, attempts=3, on_demand=on_demand)
    connection = Connection(dialer, CableClientCodec(), options, owner, "", None)
    connection.start()
    await dialer.done.wait()
    await connection.close()
    if accepted_before is not None:
        connection.accepted()
        dialer.errors.append(accepted_before)
        dialer.done.clear()
        connection.start()
        await dialer.done.wait()
        await connection.close()
    return owner


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "ropewalk.client")
    return caplog


@pytest.mark.parametrize("error", [UNTRUSTED, TlsFailed("no TLS is spoken there")], ids=lambda error: type(error).__name__)
async def test_tls_errors_are_logged_as_warnings_with_the_reason(error: Unreachable, log: pytest.LogCaptureFixture) -> None:
    await fail(error)
    [record] = log.records
    assert (record.levelname, record.getMessage()) == ("WARNING", f"not connected, retrying: {error}")


async def test_other_errors_are_logged_as_info(log: pytest.LogCaptureFixture) -> None:
    await fail(Unreachable("connection refused"))
    assert [(record.levelname, record.getMessage()) for record in log.records] == [("INFO", "connection lost")]


async def test_error_that_is_also_raised_is_logged_as_info(log: pytest.LogCaptureFixture) -> None:
    await fail(UNTRUSTED, on_demand=True)
    assert [record.levelname for record in log.records] == ["INFO"]


async def test_each_reason_is_logged_once_per_connection(log: pytest.LogCaptureFixture) -> None:
    refused = Unreachable("connection refused")
    await fail(UNTRUSTED, refused, UNTRUSTED, refused, accepted_before=UNTRUSTED)
    assert len(log.records) == 3


async def test_number_of_remembered_reasons_is_limited(log: pytest.LogCaptureFixture) -> None:
    await fail(*(Unreachable(str(number)) for number in range(MAX_LOGGED_REASONS + 1)), Unreachable("0"))
    assert len(log.records) == MAX_LOGGED_REASONS + 2


async def test_last_attempt_is_reported_to_callers() -> None:
    errors = [Unreachable("connection refused")] * 3
    owner = await fail(*errors)
    assert owner.failures == [(errors[0], 3, False), (errors[0], 3, False), (errors[0], 3, True)]


async def test_tls_error_has_one_attempt() -> None:
    owner = await fail(UNTRUSTED)
    assert owner.failures == [(UNTRUSTED, 1, True)]


class LeavingLink:
    """Open until the client leaves."""

    received = reading = writable = True

    def __init__(self) -> None:
        self._left = asyncio.Event()

    def read(self, reading: bool) -> None: ...
    def write(self, data: bytes) -> None: ...
    def cut(self) -> None: ...
    async def drain(self) -> None: ...
    async def close(self) -> None: ...
    def leave(self) -> None:
        self._left.set()

    async def run(self) -> None:
        await self._left.wait()


class TimingDialer:
    """Records the loop's time of each connection."""

    url = hint = ""

    def __init__(self) -> None:
        self.times: asyncio.Queue[float] = asyncio.Queue()

    async def dial(self, receive: Callable[[bytes], None], sid: str, token: str) -> ClientLink:
        self.times.put_nowait(asyncio.get_running_loop().time())
        return LeavingLink()


def test_client_reconnects_after_the_delay_of_the_server_or_else_of_its_backoff() -> None:
    async def delays() -> list[float]:
        dialer, backoff = TimingDialer(), Backoff(first=7.0, cap=7.0)
        options = SessionOptions(lambda: 0.0, backoff, chance=lambda: 1.0)
        connection = Connection(dialer, CableClientCodec(), options, Owner(), "", None)
        connection.start()
        found, before = [], await dialer.times.get()
        for after in (1.5, 0.0, 60.0, None):
            connection.accepted()
            connection.leave(Redial(after=after))
            now = await dialer.times.get()
            found.append(now - before)
            before = now
        await connection.close()
        return found

    assert run(delays()) == [1.5, 0.0, 60.0, 7.0]
