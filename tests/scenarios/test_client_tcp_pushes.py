"""Pushes of the Python client to a scripted server, whose answers the tests choose."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from ropewalk.client import PublicationRefused, PublishUnavailable, Pusher, connect
from ropewalk.protocol.broky.frames import Body, Error, Hello, Ping, Pong, Pushed, Reason, Refused, Run, Subscribe, Welcome
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import new_key
from tests.scenarios.python_clients import PATIENT, QUICK, SECONDS, TCP
from tests.scenarios.shared_servers import LONG_HISTORY, ServerWith

MAX_UNACKED = 4000


class Server:
    """Answers Hello and pings; the test answers everything else."""

    def __init__(self) -> None:
        self.runs: asyncio.Queue[Run] = asyncio.Queue()
        self.hellos = 0
        self.url = ""
        self._writer: asyncio.StreamWriter | None = None

    def send(self, *bodies: Body) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(map(encode, bodies)))

    def register(self, run: Run, offset: int) -> None:
        self.send(Pushed((run.ref,), (offset,), b"\x01e"))

    async def take(self, count: int) -> list[Run]:
        async with asyncio.timeout(SECONDS):
            return [await self.runs.get() for _ in range(count)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        splitter = FrameSplitter()
        while data := await reader.read(65536):
            for frame in splitter.feed(data):
                match decode(frame):
                    case Hello():
                        self.hellos += 1
                        self.send(Welcome(max_frame=100_000, max_unacked=MAX_UNACKED))
                    case Ping(ref):
                        self.send(Pong(ref))
                    case Run() as run:
                        self.runs.put_nowait(run)
        writer.close()

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()


@asynccontextmanager
async def scripted() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield server
        server.hang_up()


async def test_pushes_are_pipelined_and_answered_in_any_order() -> None:
    async with scripted() as server, Pusher(server.url, backoff=QUICK) as pusher:
        pushes = [asyncio.create_task(pusher.push("k", b"%d" % number)) for number in range(8)]
        runs = await server.take(8)
        assert [run.payload for run in runs] == [b"%d" % number for number in range(8)]
        for offset, run in reversed(list(enumerate(runs, 1))):
            server.register(run, offset)
        assert [position.offset for position in await asyncio.gather(*pushes)] == list(range(1, 9))


async def test_unacknowledged_bytes_stay_within_the_limit_of_the_server() -> None:
    async with scripted() as server, Pusher(server.url, backoff=QUICK) as pusher:
        pushes = [asyncio.create_task(pusher.push("k", bytes(1200))) for _ in range(5)]
        first = await server.take(2)
        await asyncio.wait_for(pusher.flush(), SECONDS)
        assert server.runs.empty()
        for offset, run in enumerate(first, 1):
            server.register(run, offset)
        for offset, run in enumerate(await server.take(2), 3):
            server.register(run, offset)
        (last,) = await server.take(1)
        server.register(last, 5)
        assert [position.offset for position in await asyncio.gather(*pushes)] == [1, 2, 3, 4, 5]


async def test_unanswered_pushes_are_sent_again_unchanged_and_in_order() -> None:
    async with scripted() as server, Pusher(server.url, backoff=QUICK) as pusher:
        pushes = [asyncio.create_task(pusher.push("k", b"%d" % number)) for number in range(3)]
        before = await server.take(3)
        server.register(before[1], 2)
        await asyncio.wait([pushes[1]], timeout=SECONDS)
        server.hang_up()
        again = await server.take(2)
        assert [(run.payload, run.uid) for run in again] == [(run.payload, run.uid) for run in (before[0], before[2])]
        for offset, run in ((1, again[0]), (3, again[1])):
            server.register(run, offset)
        assert [(await push).offset for push in pushes] == [1, 2, 3]


async def test_unavailable_push_is_retried_and_does_not_delay_others() -> None:
    async with scripted() as server, Pusher(server.url, attempts=2, backoff=QUICK) as pusher:
        first, second = (asyncio.create_task(pusher.push("k", payload)) for payload in (b"1", b"2"))
        one, two = await server.take(2)
        server.send(Refused(one.ref, 0, Reason.UNAVAILABLE, "not now"))
        server.register(two, 1)
        assert (await second).offset == 1
        (one,) = await server.take(1)
        server.send(Refused(one.ref, 0, Reason.UNAVAILABLE, "not now"))
        with pytest.raises(PublishUnavailable, match="not now"):
            await first
        assert server.hellos == 1


async def test_cancelled_push_is_not_sent_again() -> None:
    async with scripted() as server, Pusher(server.url, backoff=QUICK) as pusher:
        given_up = asyncio.create_task(pusher.push("k", b"given up"))
        await server.take(1)
        given_up.cancel()
        other = asyncio.create_task(pusher.push("k", b"other"))
        await server.take(1)
        server.hang_up()
        (again,) = await server.take(1)
        assert again.payload == b"other"
        server.register(again, 1)
        assert (await other).offset == 1


async def test_fatal_error_fails_pending_pushes_and_the_next_push_reconnects() -> None:
    async with scripted() as server, Pusher(server.url, backoff=QUICK) as pusher:
        pushes = [asyncio.create_task(pusher.push("k", b"x")) for _ in range(2)]
        await server.take(2)
        server.send(Error(Reason.TOO_BIG, "too much"))
        for push in pushes:
            with pytest.raises(PublicationRefused, match="too much"):
                await push
        later = asyncio.create_task(pusher.push("k", b"y"))
        (new,) = await server.take(1)
        assert new.payload == b"y"
        server.register(new, 1)
        assert (await later).offset == 1


async def test_server_that_does_not_answer_the_hello_is_given_up() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listening:
        url = f"tcp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with Pusher(url, attempts=2, backoff=QUICK, timeout=0.2) as pusher:
            with pytest.raises(PublishUnavailable, match="did not answer"):
                await pusher.push("k", b"x")


async def test_unexpected_frames_of_the_server_are_ignored() -> None:
    async with scripted() as server, Pusher(server.url) as pusher:
        push = asyncio.create_task(pusher.push("k", b"x"))
        (run,) = await server.take(1)
        server.send(Subscribe(1, b"k"), Pong(99), Pushed((12345,), (1,), b"\x00"), Refused(777, 0, Reason.FORBIDDEN, "?"))
        server.register(run, 1)
        assert (await push).offset == 1


def test_client_on_uvloop_receives_all_messages_after_lost_connections(server_with: ServerWith) -> None:
    async def converse(url: str) -> None:
        async with connect(url, backoff=QUICK, **PATIENT) as client:
            stream = await client.subscribe(name)
            for _ in range(3):
                await asyncio.gather(*(client.push(name, [b"x"] * 10) for _ in range(10)))
                client.cut()
            got = 0
            async with asyncio.timeout(SECONDS):
                async for events in stream.batches():
                    got += len(events)
                    if got >= 300:
                        break
            assert got == 300

    name = new_key().decode()
    uvloop.run(converse(TCP.url(server_with(*LONG_HISTORY))))
