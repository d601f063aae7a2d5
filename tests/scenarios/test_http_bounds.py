"""What strangers may do to the HTTP side: send bodies nobody asked for, connect and say nothing, not read, fill all places."""

import asyncio
import contextlib
import gzip
import json
import re
import resource
import signal
import socket
import ssl
import sys
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Error, Hello, Reason, Welcome
from ropewalk.protocol.broky.tables import encode, read
from tests.cable import Cable, cable
from tests.clients.credentials import BROADCAST_KEY, SECRET
from tests.metrics import metrics, metrics_when
from tests.server import RunningServer, publish, running_server
from tests.tcp import Tcp, tcp, upgrade_request

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"

TIMEOUT = 15.0

# --- compressed bodies --------------------------------------------------------------------------------------------------

BOMB_SIZE = 1 << 30


def bomb() -> bytes:
    """A gigabyte of zeros, in about a megabyte."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(1 << 24)) for _ in range(BOMB_SIZE >> 24)), packer.flush()])


def seconds_to_inflate(data: bytes) -> float:
    begun = time.perf_counter()
    inflater = zlib.decompressobj(31)
    while data:
        inflater.decompress(data, 1 << 20)
        data = inflater.unconsumed_tail
    return time.perf_counter() - begun


async def worst_ping(client: Cable, until: "asyncio.Future[list[int]]") -> float:
    """The longest time to an answer while `until` is not done."""
    worst = 0.0
    while not until.done():
        begun = time.perf_counter()
        await client.send(command="ping")
        await client.until("pong")
        worst = max(worst, time.perf_counter() - begun)
    return worst


async def post(server: RunningServer, path: str, body: bytes, **headers: str) -> int:
    """The status, 0 where the server closed before it could be read."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        try:
            async with http.post(server.url + path, data=body, headers=named) as response:
                return response.status
        except aiohttp.ClientConnectionError:
            return 0


@pytest.mark.alone
async def test_compressed_bodies_of_strangers_stall_nobody() -> None:
    data = bomb()
    paths = ("/_broadcast", "/api/publish", "/nowhere", "/health", "/cable", "/events", "/")
    floor = await asyncio.to_thread(seconds_to_inflate, data)
    with running_server("--secret", SECRET, "--noauth", "--sse") as server:
        async with cable(server) as client:
            attack = asyncio.gather(*(post(server, path, data, Content_Encoding="gzip") for path in paths))
            worst = await worst_ping(client, attack)
            statuses = dict(zip(paths, await attack, strict=True))
        assert set(statuses.values()) <= {0, 200, 400, 401, 404, 405, 413}, statuses
    print(f"worst ping {worst:.4f} s while {len(paths)} bodies arrive that take {floor:.2f} s each to inflate")
    assert worst < floor / 4


async def test_a_publisher_with_the_key_may_compress() -> None:
    body = gzip.compress(json.dumps({"stream": "news", "data": "1"}).encode())
    key = {"Authorization": f"Bearer {BROADCAST_KEY}"}
    with running_server("--secret", SECRET) as server:
        assert await post(server, "/_broadcast", body, **key, Content_Encoding="gzip") == 201
        assert await post(server, "/_broadcast", b"not gzip", **key, Content_Encoding="gzip") == 422
        assert await post(server, "/_broadcast", body, **key, Content_Encoding="br") == 415
        assert await post(server, "/_broadcast", gzip.compress(bytes(2 << 20)), **key, Content_Encoding="gzip") == 413
        counted = await metrics(server)
        assert counted["refusals_total{bad_body}"] == 2
        assert counted["refusals_total{body_too_large}"] == 1


# --- chunked bodies and bodies that nobody reads ------------------------------------------------------------------------

CHUNKED = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
FRAMINGS = {
    "one-byte chunks": b"1\r\n \r\n" * 10_000,
    "extensions": (b"1;" + b"a" * 60_000 + b"\r\n \r\n") * 2,
}


async def flood(server: RunningServer, head: bytes, data: bytes, times: int) -> int:
    """How many bytes could be sent before the server closed the connection."""
    async with tcp(server) as link:
        await link.send(head)
        for sent in range(times):
            if link.lost:
                return sent * len(data)
            await link.send(data)
    return times * len(data)


def chunks(body: bytes, size: int) -> bytes:
    parts = (body[begin : begin + size] for begin in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("path", [b"/health", b"/_broadcast", b"/nowhere"])
async def test_a_body_with_more_framing_than_body_is_refused(framing: str, path: bytes) -> None:
    data = FRAMINGS[framing]
    with running_server("--secret", SECRET) as server:
        await flood(server, CHUNKED % path, data, (16 << 20) // len(data))
        counted = await metrics_when(server, lambda now: now.get("refusals_total{chunks}", 0) >= 1)
        assert counted["refusals_total{chunks}"] == 1
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.alone
async def test_small_chunks_take_their_time_and_not_the_processor() -> None:
    """A sender that means well and writes a few bytes at a time gets through, whole, and leaves time to others."""
    payload = "a line\r\n" * 50_000
    body = json.dumps({"stream": "news", "data": payload}).encode()

    async def upload(server: RunningServer) -> int:
        async with tcp(server) as link:
            await link.send(CHUNKED % b"/_broadcast" + chunks(body, 8))
            return (await link.response())[0]

    with running_server("--public") as server:
        async with cable(server) as client:
            await client.subscribe("news")
            before, begun = await metrics(server), time.perf_counter()
            assert set(await asyncio.gather(upload(server), upload(server))) == {201}
            elapsed, after = time.perf_counter() - begun, await metrics(server)
            assert await client.messages(2) == [payload] * 2
    used = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    print(f"{used:.2f} s of the processor in {elapsed:.2f} s")
    assert used < elapsed / 2


async def test_requests_behind_each_other_are_all_answered_whatever_their_bodies() -> None:
    """What is parsed in pieces stays in order: chunked and plain bodies, large and small, on one connection."""
    plain = json.dumps({"stream": "news", "data": "a\r\n" * 20_000}).encode()
    lines = b" \r\n" * 60_000 + plain
    requests = (
        CHUNKED % b"/_broadcast" + chunks(plain, 7),
        b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(lines) + lines,
        HEALTH,
        CHUNKED % b"/_broadcast" + chunks(lines, 4096),
    )
    with running_server("--public") as server:
        async with tcp(server) as link:
            sending = asyncio.create_task(link.send(b"".join(requests) * 5))
            statuses = [(await link.response())[0] for _ in range(20)]
            await sending
        assert statuses == [201, 201, 200, 201] * 5


async def test_a_body_that_nobody_reads_is_taken_up_to_a_size() -> None:
    """A refused sender gets its answer, also one whose body is large; one that never stops is not read for ever."""
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    with running_server("--public") as server:
        async with tcp(server) as link:
            await link.send(head % (16 << 20) + bytes(16 << 20))
            assert (await link.response())[0] == 404
            await link.send(HEALTH)
            assert (await link.response())[0] == 200
        assert await flood(server, head % (1 << 40), bytes(1 << 20), 1 << 10) < 100 << 20


def expecting(key: str, length: int) -> bytes:
    head = f"POST /_broadcast HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("key", "length", "status"),
    [("wrong", 40, 401), (BROADCAST_KEY, 10**8, 413), (BROADCAST_KEY, 10**18, 413)],
    ids=["wrong key", "too large", "much too large"],
)
async def test_a_body_that_would_be_refused_is_not_asked_for(key: str, length: int, status: int) -> None:
    with running_server("--secret", SECRET) as server:
        async with tcp(server) as link:
            await link.send(expecting(key, length))
            assert (await link.response())[0] == status
            assert await link.to_the_end() == b""  # nobody could tell whether the body comes after all


async def test_a_body_that_may_come_is_asked_for() -> None:
    body = b'{"stream":"a","data":"1"}'
    with running_server("--secret", SECRET) as server:
        async with tcp(server) as link:
            await link.send(expecting(BROADCAST_KEY, len(body)))
            assert await link.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await link.send(body)
            assert (await link.response())[0] == 201


@pytest.mark.parametrize("target", ["*", "no-slash"])
async def test_a_head_of_a_bad_target_is_answered_without_a_body(target: str) -> None:
    with running_server("--public") as server:
        async with tcp(server) as link:
            await link.send(HEALTH)
            await link.response()
            await link.send(f"HEAD {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head, _, rest = (await link.to_the_end()).partition(b"\r\n\r\n")
        assert head.split()[1] == b"400"
        assert rest == b""


# --- senders that end their side ----------------------------------------------------------------------------------------


async def test_who_ends_their_side_behind_a_request_is_answered() -> None:
    published = CHUNKED % b"/_broadcast" + chunks(b'{"stream":"news","data":"1"}', 10)
    with running_server("--public", "--sse") as server:
        for request, status in ((HEALTH, b"200"), (published, b"201"), (HEALTH + published, b"200")):
            async with tcp(server) as link:
                await link.send(request)
                link.end()
                assert (await link.to_the_end()).startswith(b"HTTP/1.1 " + status)
        async with tcp(server) as link:
            await link.send(b"GET /events?stream=news HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 200 OK" in await link.head()
            link.end()
            await link.to_the_end()
        await metrics_when(server, lambda now: now["connections"] == 0)


# --- idle connections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [b"", b"GET /health HTTP/1.1\r\nho", b"\r\n", HEALTH + b"GET /hea"])
async def test_a_connection_that_was_used_once_and_no_more_is_closed(half: bytes) -> None:
    with running_server("--public", ROPEWALK_HTTP_KEEPALIVE_TIMEOUT="500ms") as server:
        async with tcp(server) as link:
            await link.send(HEALTH)
            assert (await link.response())[0] == 200
            await link.send(half)
            await link.to_the_end()
        await metrics_when(server, lambda now: now.get("refusals_total{idle}", 0) >= 1)


async def test_a_connection_that_is_used_stays_open_past_the_timeout() -> None:
    with running_server("--public", "--http_keepalive_timeout", "300ms") as server:
        async with tcp(server) as link, tcp(server) as idle:
            await idle.send(HEALTH)
            await idle.response()
            closed = asyncio.create_task(idle.to_the_end())
            while not closed.done():
                await link.send(HEALTH)
                assert (await link.response())[0] == 200
                await asyncio.sleep(0.05)


async def test_answers_that_are_not_read_do_not_pile_up() -> None:
    """Requests cost their sender a few bytes, answers cost us kilobytes."""
    with running_server("--public", "--ws_write_timeout", "1s") as server:
        async with tcp(server) as link:
            flood = asyncio.create_task(link.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 100_000))
            counted = await metrics_when(server, lambda now: now.get("refusals_total{write_timeout}", 0) >= 1)
            await flood
        assert counted["process_resident_memory_bytes"] < 300 << 20  # unread, all answers would be more than a gigabyte


# --- TLS handshakes -----------------------------------------------------------------------------------------------------


async def test_a_tls_handshake_that_is_not_made_is_not_waited_for_for_ever() -> None:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    with running_server("--public", "--ssl_cert", str(CERTIFICATE), "--ssl_key", str(KEY)) as server:
        async with tcp(server) as silent, tcp(server) as plain:
            await plain.send(HEALTH)
            assert b"200" not in await plain.to_the_end()
            assert await silent.to_the_end() == b""
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics", ssl=trust) as response:
            page = await response.text()
        assert 'ropewalk_refusals_total{reason="handshake"} 2.0' in page
        assert "Traceback" not in server.log(), server.log()


# --- places -------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def crowd(server: RunningServer, size: int) -> AsyncIterator[list[Cable]]:
    clients = [await Cable.connect(server.cable) for _ in range(size)]
    try:
        for client in clients:
            await client.welcomed()
        yield clients
    finally:
        for client in clients:
            await client.close()


async def test_a_server_full_of_clients_still_answers_its_operators_and_publishers() -> None:
    with running_server("--public", "--sse", "--max_conn", "3") as server:
        async with crowd(server, 3) as clients, aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await Cable.connect(server.cable)
            async with http.get(f"{server.url}/events?stream=news") as refused:
                assert refused.status == 503
            for path in ("/health", "/health/live", "/health/ready", "/metrics"):
                async with http.get(server.url + path) as response:
                    assert response.status == 200, path
            await clients[0].subscribe("news")
            await publish(server, "news", "hello")
            assert await clients[0].messages(1) == ["hello"]
            counted = await metrics(server)
            assert counted["refusals_total{connections}"] == 2
            async with asyncio.timeout(TIMEOUT):
                while not re.search(r"warn ropewalk\.node: refused .* connections=", server.log()):
                    await asyncio.sleep(0.05)


async def test_event_streams_count_as_clients() -> None:
    with running_server("--public", "--sse", "--max_conn", "1") as server:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{server.url}/events?stream=news") as events:
                await events.content.readline()
                with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                    await Cable.connect(server.cable)
            await metrics_when(server, lambda now: now["connections"] == 0)
            async with cable(server) as client:
                await client.quiet()


async def test_an_upgrade_on_a_kept_connection_is_refused_at_the_bound_too() -> None:
    with running_server("--public", "--max_conn", "1") as server:
        async with cable(server), tcp(server) as link:
            await link.send(HEALTH)
            assert (await link.response())[0] == 200
            with pytest.raises(AssertionError):
                await link.upgrade()


async def test_health_is_answered_while_strangers_hold_all_http_places() -> None:
    with running_server("--public", "--max_http_conn", "5") as server:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(5):
                link = await stack.enter_async_context(tcp(server))
                await link.send(HEALTH)
                await link.response()
            async with tcp(server) as check:
                await check.send(HEALTH)
                assert (await check.response())[0] == 200
                await check.to_the_end()  # it is not kept open for long then


async def test_connections_that_say_nothing_do_not_use_up_the_places_of_clients() -> None:
    with running_server("--public", "--max_conn", "2", "--max_http_conn", "2") as server:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(50):
                await stack.enter_async_context(tcp(server))
            async with cable(server) as client:
                await client.quiet()
            await publish(server, "news", "hello")


# --- memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/publish", "/_broadcast"])
async def test_bodies_that_are_cut_off_leave_nothing_behind(path: str) -> None:
    begin = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {1 << 20}\r\n\r\n".encode() + bytes(1_000_000)
    with running_server("--public") as server:
        before = (await metrics(server))["process_resident_memory_bytes"]
        for number in range(1, 31):
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(10):
                    await (await stack.enter_async_context(tcp(server))).send(begin)
            await metrics_when(server, lambda now: now["refusals_total{bad_body}"] == number * 10)  # noqa: B023  # called at once
        after = (await metrics(server))["process_resident_memory_bytes"]
    assert after - before < 100 << 20  # kept, they would be three times as much


# --- open files ---------------------------------------------------------------------------------------------------------


async def test_a_limit_of_open_files_below_max_conn_is_said_at_the_start() -> None:
    with running_server("--public", "--max_conn", "1000000000") as server:
        assert "fewer connections fit under the limit of open files" in server.log()
        assert "max_conn=1000000000" in server.log()


async def test_when_files_run_out_newcomers_are_refused_and_counted_and_operators_come_in() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with running_server("--public") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, hard))
        async with contextlib.AsyncExitStack() as stack:
            crowded = [await stack.enter_async_context(tcp(server)) for _ in range(100)]
            for link in crowded[:40]:
                await link.send(HEALTH)
            async with asyncio.timeout(30):
                while not re.search(r"warn ropewalk\.node: refused .* descriptors=", server.log()):
                    await asyncio.sleep(0.05)
        counted = await metrics_when(server, lambda now: now["refusals_total{descriptors}"] > 0)
        assert counted["process_max_fds"] == 64
        assert "Traceback" not in server.log(), server.log()


def program_with_files(most: int) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit -n {most}; exec "$0" -m ropewalk "$@"', sys.executable)


@pytest.mark.parametrize("files", [64, 400])
@pytest.mark.parametrize("kind", ["websocket", "sse", "tcp"])
async def test_more_clients_than_there_are_files_for_are_refused_and_operators_are_answered(kind: str, files: int) -> None:
    with running_server("--public", "--sse", program=program_with_files(files)) as server:
        told = re.search(r"connections=(\d+)", server.log())
        assert told is not None
        room = int(told[1])
        assert room < files
        async with contextlib.AsyncExitStack() as crowd:
            entered = 0
            for _ in range(room + 20):
                link = await crowd.enter_async_context(tcp(server))
                entered += await let_in(link, kind)
            assert entered == room
            for _ in range(3):
                async with tcp(server) as operator:
                    await operator.send(HEALTH)
                    assert (await operator.response())[0] == 200
            assert (await metrics(server))["refusals_total{descriptors}"] >= 20
        assert "Traceback" not in server.log(), server.log()


async def let_in(link: Tcp, kind: str) -> bool:
    """Whether it is welcomed as a client of this kind; what is not is told so."""
    if kind == "tcp":
        await link.send(encode(Hello()))
        body = read(await link.some())
        assert isinstance(body, Welcome) or (isinstance(body, Error) and body.reason is Reason.OVERFLOW)
        return isinstance(body, Welcome)
    await link.send(upgrade_request() if kind == "websocket" else b"GET /events?stream=a HTTP/1.1\r\nhost: x\r\n\r\n")
    status = int((await link.head()).split()[1])
    assert status in (101, 200, 503)
    return status != 503


async def test_a_crowd_for_which_there_are_no_files_ends_nobody_but_itself() -> None:
    """It comes all at once, so that some are dropped before the event loop has made their transports."""
    with running_server("--public", program=program_with_files(256)) as server:
        async with contextlib.AsyncExitStack() as crowd:
            for _ in range(12):  # so that few places are left for others
                known = await crowd.enter_async_context(tcp(server))
                await known.send(HEALTH)
                assert (await known.response())[0] == 200
            server.process.send_signal(signal.SIGSTOP)
            for _ in range(400):
                crowd.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            server.process.send_signal(signal.SIGCONT)
            counted = await metrics_when(server, lambda now: now["refusals_total{descriptors}"] > 300)
            assert counted["refusals_total{head_timeout}"] == 0
        await metrics_when(server, lambda now: now["connections"] == 0)
        assert "Traceback" not in server.log(), server.log()
