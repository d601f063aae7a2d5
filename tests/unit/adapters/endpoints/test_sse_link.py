"""One SSE connection whose peer reads slowly or never."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from ropewalk.adapters.endpoints import sse
from ropewalk.adapters.endpoints.sse import SseEndpoint
from ropewalk.model.commands import Command
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.handshake import AllowedOrigins
from tests.unit.adapters.http_server import Client, serving
from tests.waiting import until

DEADLINE = 60.0


class FakeSession:
    """A session that writes as the test wants, and records the events of its link in `events`."""

    sid = "s1"

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[str] = []
        self.answer = b""

    async def wait_opened(self) -> bool:
        return True

    async def submit(self, command: Command) -> bool:
        self.connection.write(self.answer)
        return True

    def streams(self) -> dict[str, list[str]]:
        return {"i": ["chat"]}

    def receive(self, frame: bytes) -> None:
        raise AssertionError("an SSE client sends nothing")

    def note_activity(self) -> None:
        raise AssertionError("an SSE client sends nothing")

    def reject_frame(self, reason: str, code: int, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        raise AssertionError("an SSE client sends nothing")

    def message_overdue(self) -> None:
        raise AssertionError("an SSE client sends nothing")

    def finish(self) -> None:
        raise AssertionError("an SSE client has one side only")

    def wait_idle(self) -> None:
        raise AssertionError("an SSE client sends nothing")

    def pause_writing(self) -> None:
        self.events.append("paused")

    def resume_writing(self) -> None:
        self.events.append("resumed")

    def credit_granted(self) -> None:
        self.events.append("granted")

    def connection_lost(self, going_away: bool = False) -> None:
        self.events.append("lost")


class Sessions:
    """Each session writes `answer` at its first command."""

    def __init__(self) -> None:
        self.opened: list[FakeSession] = []
        self.answer = b""

    def open(self, request: ConnectRequest, connection: Connection, codec: SessionCodec) -> FakeSession:
        self.request = request
        self.opened.append(FakeSession(connection))
        self.opened[-1].answer = self.answer
        return self.opened[-1]


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
async def client(sessions: Sessions) -> AsyncIterator[Client]:
    async with serving(SseEndpoint(sessions.open, AllowedOrigins([]), 3, Counter()).routes()) as client:
        yield client


async def stuck(client: Client, sessions: Sessions) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, FakeSession]:
    """A connection whose peer does not read, written to until the session is paused."""
    reader, writer = await asyncio.open_connection(client.host, client.port, limit=1024)
    writer.write(b"GET /events?stream=chat HTTP/1.0\r\nHost: x\r\n\r\n")
    await until(lambda: bool(sessions.opened))
    (session,) = sessions.opened
    line = b"data: %b\n\n" % (b"x" * 2000)
    async with asyncio.timeout(DEADLINE):
        # Small pieces, and no more than needed: nothing else may wake the link.
        while not session.events:
            session.connection.write(line)
            await asyncio.sleep(0)
    return reader, writer, session


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(DEADLINE):
        return await reader.read()


async def test_full_socket_pauses_the_session_until_it_drains(client: Client, sessions: Sessions) -> None:
    reader, writer, session = await stuck(client, sessions)
    reading = asyncio.create_task(read_all(reader))
    await until(lambda: session.events == ["paused", "resumed"])
    assert session.connection.pending() <= sse.HIGH_WATER
    session.connection.write(b"data: last\n\n")
    session.connection.close(1000, "")
    assert (await reading).endswith(b"x\n\ndata: last\n\n")
    await until(lambda: session.events[-1] == "lost")
    writer.close()


async def test_closed_connection_of_a_peer_that_never_reads_is_aborted(
    client: Client, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "FLUSH_TIMEOUT", 0.05)
    _, writer, session = await stuck(client, sessions)
    session.connection.close(1000, "")
    session.connection.close(1000, "")
    await until(lambda: session.events[-1] == "lost")
    writer.close()


async def test_writes_after_close_are_dropped(client: Client, sessions: Sessions) -> None:
    async with client.get("/events?stream=chat") as response:
        connection = sessions.opened[0].connection
        connection.write(b"data: 1\n\n")
        connection.close(1000, "")
        connection.write(b"data: 2\n\n")
        assert await response.read() == b"data: 1\n\n"


async def test_writes_of_one_step_are_sent_together(client: Client, sessions: Sessions) -> None:
    async with client.get("/events?stream=chat") as response:
        for number in range(50):
            sessions.opened[0].connection.write(b"data: %d\n\n" % number)
        piece, _ = await response.content.readchunk()
        assert piece.count(b"data: ") == 50


async def test_too_many_bytes_before_the_response_starts_are_answered_with_503(client: Client, sessions: Sessions) -> None:
    sessions.answer = b"data: %b\n\n" % (b"x" * sse.EARLY_BYTES)
    async with client.get("/events?stream=chat") as response:
        assert response.status == 503
        assert "more messages came" in (await response.json())["error"]
    await until(lambda: sessions.opened[0].events == ["lost"])


async def test_session_receives_the_request_for_authentication(client: Client, sessions: Sessions) -> None:
    headers = {"X-JID": "from-header", "Cookie": "a=1", "Host": "cable.test"}
    async with client.get("/events?stream=chat&x=1&x=2", headers=headers) as response:
        assert response.status == 200
    request = sessions.request
    assert request.url == "http://cable.test/events?stream=chat&x=1&x=2"
    assert request.path == "/events"
    assert request.params == {"stream": "chat", "x": "2"}
    assert request.headers["cookie"] == "a=1"
    assert request.remote == "127.0.0.1"
    assert request.token == "from-header"
    assert not request.extended
