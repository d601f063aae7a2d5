"""The inbox: pending commands are bounded by number and bytes, also before authentication."""

import asyncio

import pytest

from ropewalk.engine.inbox import MAX_BYTES, MAX_FRAMES, RESUME_BYTES, RESUME_FRAMES, Inbox
from ropewalk.model.sessions import Accepted, ConnectRequest
from tests.unit.engine.workbench import Workbench, settle

LARGE = b'{"command":"ping"}' + b" " * 65_000


def test_reading_pauses_above_the_frame_limit_and_resumes_below_the_low_mark() -> None:
    held: list[bool] = []
    inbox = Inbox(held.append)
    for _ in range(MAX_FRAMES + 10):
        inbox.put(b"x")
    assert held == [True]
    while inbox:
        inbox.take()
    assert held == [True, False]


def test_reading_pauses_above_the_byte_limit_and_resumes_below_the_low_mark() -> None:
    held: list[bool] = []
    inbox = Inbox(held.append)
    for _ in range(4):
        inbox.put(b"x" * RESUME_BYTES)
    assert held == [True]
    assert 4 * RESUME_BYTES > MAX_BYTES
    inbox.take()
    inbox.take()
    assert held == [True]
    inbox.take()
    assert held == [True, False]


async def test_inbox_settles_at_a_frame_that_waits_and_at_its_end() -> None:
    inbox = Inbox(lambda hold: None)
    settled = asyncio.create_task(inbox.wait_idle())
    for _ in range(2):
        inbox.put(b"x")
    await settle()
    inbox.take()
    inbox.finished()  # it waited for nothing
    await settle()
    assert not settled.done()
    inbox.take()
    await settle()
    assert settled.done()
    inbox.finished()
    again = asyncio.create_task(inbox.wait_idle())
    await settle()
    assert not again.done()
    inbox.end()
    await again


def test_few_small_frames_never_pause_reading() -> None:
    held: list[bool] = []
    inbox = Inbox(held.append)
    for _ in range(1000):
        for number in range(RESUME_FRAMES):
            inbox.put(b"%d" % number)
        assert [inbox.take() for _ in range(RESUME_FRAMES)] == [b"%d" % number for number in range(RESUME_FRAMES)]
    assert held == []


class SlowAuthenticator:
    """An authenticator that waits for `decided`."""

    def __init__(self) -> None:
        self.decided = asyncio.Event()

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        await self.decided.wait()
        return Accepted("bo")


@pytest.mark.parametrize(("frame", "maximum"), [(LARGE, 3), (b'{"command":"ping"}', MAX_FRAMES)])
async def test_client_cannot_buffer_much_before_authentication(frame: bytes, maximum: int) -> None:
    authenticator = SlowAuthenticator()
    async with Workbench(authenticators=[authenticator]) as bench:
        client = bench.open_connection()
        await settle()
        sent = 0
        while client.connection.reading:
            client.session.receive(frame)
            sent += 1
        assert sent <= maximum
        authenticator.decided.set()
        await client.session.wait_opened()
        while client.seen().count("pong") < sent:
            await settle()
        assert client.connection.reading
        assert client.seen() == ["welcome", *["pong"] * sent]


async def test_pending_commands_of_an_ended_session_are_not_handled() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        client.session.receive(b"nonsense")
        client.session.receive(b'{"command":"ping"}')
        await settle()
        assert client.seen()[:1] == ["welcome"]
        assert "pong" not in client.seen()
        assert client.connection.closed is not None
        assert client.connection.closed[0] == 1007


async def test_client_with_many_commands_does_not_block_another() -> None:
    async with Workbench() as bench:
        flooding, other = await bench.connect(), await bench.connect()
        for _ in range(MAX_FRAMES):
            flooding.session.receive(b'{"command":"ping"}')
        other.session.receive(b'{"command":"ping"}')
        while "pong" not in other.seen():
            await asyncio.sleep(0)
        assert flooding.seen().count("pong") < MAX_FRAMES // 2
