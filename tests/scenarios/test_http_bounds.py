"""Bounds of the HTTP side: bodies, idle and slow connections, limits on connections and on open files."""

import asyncio
import contextlib
import gzip
import json
import re
import resource
import signal
import socket
import sys
import time
import zlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Error, Hello, Reason, Welcome
from ropewalk.protocol.broky.tables import encode, read
from tests.cable import Cable, cable
from tests.certificates import trusting_context
from tests.clients.credentials import BROADCAST_KEY, SECRET
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer, publish, running_server
from tests.tcp import HEALTH, Tcp, tcp, upgrade_request
from tests.waiting import GROWING_SECONDS, until

EVENTS = b"GET /events?stream=news HTTP/1.1\r\nhost: x\r\n\r\n"


async def counted(server: RunningServer, reason: str) -> float:
    """Refusals for this reason so far."""
    return (await metrics(server)).get(f"refusals_total{{{reason}}}", 0)


async def counted_when(server: RunningServer, reason: str, number: float) -> None:
    """Wait until there were so many refusals for this reason."""
    await metrics_when(server, lambda now: now.get(f"refusals_total{{{reason}}}", 0) == number)


# --- compressed bodies --------------------------------------------------------------------------------------------------

BOMB_SIZE = 1 << 30


def bomb() -> bytes:
    """A gigabyte of zeros, in about a megabyte."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(1 << 24)) for _ in range(BOMB_SIZE >> 24)), packer.flush()])


def seconds_to_inflate(data: bytes) -> float:
    """Of the processor."""
    begun = time.thread_time()
    inflater = zlib.decompressobj(31)
    while data:
        inflater.decompress(data, 1 << 20)
        data = inflater.unconsumed_tail
    return time.thread_time() - begun


async def post(server: RunningServer, path: str, body: bytes, **headers: str) -> int:
    """The status, 0 where the server closed before it could be read."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        try:
            async with http.post(server.url + path, data=body, headers=named) as response:
                return response.status
        except aiohttp.ClientConnectionError:
            return 0


@pytest.mark.tier("all")
async def test_compressed_bodies_without_a_key_are_not_inflated() -> None:
    data = bomb()
    paths = ("/_broadcast", "/api/publish", "/nowhere", "/health", "/cable", "/events", "/")
    floor = await asyncio.to_thread(seconds_to_inflate, data)
    with running_server("--secret", SECRET, "--noauth", "--sse") as server:
        before = await metrics(server)
        statuses = await asyncio.gather(*(post(server, path, data, Content_Encoding="gzip") for path in paths))
        after = await metrics(server)
        assert set(statuses) <= {0, 200, 400, 401, 404, 405, 413}, dict(zip(paths, statuses, strict=True))
    used = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    print(f"{used:.2f} s of the processor for {len(paths)} bodies that take {floor:.2f} s each to inflate")
    assert used < floor


async def test_publisher_with_the_key_may_compress(keyed: RunningServer) -> None:
    body = gzip.compress(json.dumps({"stream": "news", "data": "1"}).encode())
    key = {"Authorization": f"Bearer {BROADCAST_KEY}"}
    before = await metrics(keyed)
    assert await post(keyed, "/_broadcast", body, **key, Content_Encoding="gzip") == 201
    assert await post(keyed, "/_broadcast", b"not gzip", **key, Content_Encoding="gzip") == 422
    assert await post(keyed, "/_broadcast", body, **key, Content_Encoding="br") == 415
    assert await post(keyed, "/_broadcast", gzip.compress(bytes(2 << 20)), **key, Content_Encoding="gzip") == 413
    after = await metrics(keyed)
    assert after["refusals_total{bad_body}"] == before["refusals_total{bad_body}"] + 2
    assert after["refusals_total{body_too_large}"] == before["refusals_total{body_too_large}"] + 1


# --- chunked bodies and bodies that are not read ------------------------------------------------------------------------

CHUNKED = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
FRAMINGS = {
    "one-byte chunks": b"1\r\n \r\n" * 10_000,
    "extensions": (b"1;" + b"a" * 60_000 + b"\r\n \r\n") * 2,
}


async def flood(server: RunningServer, head: bytes, data: bytes, times: int) -> int:
    """Bytes that were sent before the server closed the connection."""
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


async def test_body_with_more_framing_than_data_is_refused(keyed: RunningServer) -> None:
    refused = await counted(keyed, "chunks")
    for data in FRAMINGS.values():
        for path in (b"/health", b"/_broadcast", b"/nowhere"):
            await flood(keyed, CHUNKED % path, data, (16 << 20) // len(data))
            refused += 1
            await counted_when(keyed, "chunks", refused)


@pytest.mark.alone
@pytest.mark.tier("all")
async def test_upload_in_small_chunks_is_accepted_and_leaves_processor_time() -> None:
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


async def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    """Chunked and plain bodies, large and small, on one connection."""
    plain = json.dumps({"stream": "pipelined", "data": "a\r\n" * 20_000}).encode()
    lines = b" \r\n" * 60_000 + plain
    requests = (
        CHUNKED % b"/_broadcast" + chunks(plain, 7),
        b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(lines) + lines,
        HEALTH,
        CHUNKED % b"/_broadcast" + chunks(lines, 4096),
    )
    async with tcp(server) as link:
        sending = asyncio.create_task(link.send(b"".join(requests) * 5))
        statuses = [(await link.response())[0] for _ in range(20)]
        await sending
    assert statuses == [201, 201, 200, 201] * 5


async def test_body_of_a_refused_request_is_read_up_to_a_size(server: RunningServer) -> None:
    """A large body does not keep the response from its sender; an endless one ends the connection."""
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    async with tcp(server) as link:
        await link.send(head % (16 << 20) + bytes(16 << 20))
        assert (await link.response())[0] == 404
        await link.send(HEALTH)
        assert (await link.response())[0] == 200
    assert await flood(server, head % (1 << 40), bytes(1 << 20), 1 << 10) < 100 << 20


def expecting(key: str, length: int) -> bytes:
    head = f"POST /_broadcast HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-length: {length}\r\n\r\n".encode()


async def test_expect_100_continue_is_refused_before_the_body_or_continued(keyed: RunningServer) -> None:
    for key, length, status in (("wrong", 40, 401), (BROADCAST_KEY, 10**8, 413), (BROADCAST_KEY, 10**18, 413)):
        async with tcp(keyed) as link:
            await link.send(expecting(key, length))
            assert (await link.response())[0] == status, (key, length)
            assert await link.to_the_end() == b""  # the body might come after all
    body = b'{"stream":"continued","data":"1"}'
    async with tcp(keyed) as link:
        await link.send(expecting(BROADCAST_KEY, len(body)))
        assert await link.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await link.send(body)
        assert (await link.response())[0] == 201


async def test_head_request_with_a_bad_target_is_answered_without_a_body(server: RunningServer) -> None:
    for target in ("*", "no-slash"):
        async with tcp(server) as link:
            await link.send(HEALTH)
            await link.response()
            await link.send(f"HEAD {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            head, _, rest = (await link.to_the_end()).partition(b"\r\n\r\n")
        assert (head.split()[1], rest) == (b"400", b""), target


# --- half-closed connections ---------------------------------------------------------------------------------------------


async def test_request_on_a_half_closed_connection_is_answered(server_with: ServerWith) -> None:
    server = server_with("--public", "--sse")
    published = CHUNKED % b"/_broadcast" + chunks(b'{"stream":"half-closed","data":"1"}', 10)
    for request, status in ((HEALTH, b"200"), (published, b"201"), (HEALTH + published, b"200")):
        async with tcp(server) as link:
            await link.send(request)
            link.end()
            assert (await link.to_the_end()).startswith(b"HTTP/1.1 " + status)
    async with tcp(server) as link:
        await link.send(EVENTS)
        assert b" 200 OK" in await link.head()
        link.end()
        await link.to_the_end()
    await metrics_when(server, lambda now: now["connections"] == 0)


# --- idle connections ---------------------------------------------------------------------------------------------------


def keepalive(seconds: int) -> tuple[str, ...]:
    return ("--public", "--http_keepalive_timeout", f"{seconds}s")


async def test_idle_connection_is_closed_after_its_first_request(server_with: ServerWith) -> None:
    impatient = server_with(*keepalive(GROWING_SECONDS[0]))

    async def wait(rest: bytes) -> None:
        async with tcp(impatient) as link:
            await link.send(HEALTH)
            assert (await link.response())[0] == 200
            await link.send(rest)
            await link.to_the_end()

    before = await counted(impatient, "idle")
    rests = (b"", b"GET /health HTTP/1.1\r\nho", b"\r\n", HEALTH + b"GET /hea")
    await asyncio.gather(*(wait(rest) for rest in rests))
    await counted_when(impatient, "idle", before + len(rests))


async def test_connection_in_use_stays_open_past_the_keepalive_timeout(server_with: ServerWith) -> None:
    for seconds in GROWING_SECONDS:
        statuses, longest_pause = await use_while_another_is_idle(server_with(*keepalive(seconds)))
        if longest_pause < seconds:  # else the connection was idle
            assert set(statuses) == {200}
            return
    pytest.fail("the connection could not be kept in use")


async def use_while_another_is_idle(server: RunningServer) -> tuple[list[int], float]:
    """Statuses of requests until the idle connection is closed, and the longest pause between two of them."""
    statuses: list[int] = []
    longest_pause = 0.0
    async with tcp(server) as link, tcp(server) as idle:
        await idle.send(HEALTH)
        await idle.response()
        closed = asyncio.create_task(idle.to_the_end())
        used = time.monotonic()
        while not closed.done():
            await link.send(HEALTH)
            try:
                statuses.append((await link.response())[0])
            except (asyncio.IncompleteReadError, ConnectionError):
                statuses.append(0)
            now = time.monotonic()
            used, longest_pause = now, max(longest_pause, now - used)
            await asyncio.sleep(0.05)
        return statuses, longest_pause


@pytest.mark.tier("all")
async def test_responses_that_are_not_read_do_not_pile_up() -> None:
    """Requests cost their sender a few bytes, responses cost the server kilobytes."""
    with running_server("--public", "--ws_write_timeout", "1s") as server:
        async with tcp(server) as link:
            flooding = asyncio.create_task(link.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 100_000))
            found = await metrics_when(server, lambda now: now.get("refusals_total{write_timeout}", 0) >= 1)
            await flooding
        assert found["process_resident_memory_bytes"] < 300 << 20  # all responses together are more than a gigabyte


# --- TLS handshakes -----------------------------------------------------------------------------------------------------


@pytest.mark.tier("all")
async def test_tls_handshake_has_a_timeout(tls_server: RunningServer) -> None:
    async def failed() -> float:
        async with aiohttp.ClientSession() as http, http.get(f"{tls_server.url}/metrics", ssl=trusting_context()) as response:
            found = re.search(r'ropewalk_refusals_total{reason="handshake"} (\S+)', await response.text())
            return float(found[1]) if found else 0

    before = await failed()
    async with tcp(tls_server) as silent, tcp(tls_server) as plain:
        await plain.send(HEALTH)
        assert b"200" not in await plain.to_the_end()
        assert await silent.to_the_end() == b""
    assert await failed() == before + 2


# --- limits on connections ----------------------------------------------------------------------------------------------


@pytest.fixture
def small(server_with: ServerWith) -> RunningServer:
    """With places for three clients."""
    return server_with("--public", "--sse", "--max_conn", "3")


@contextlib.asynccontextmanager
async def crowd(server: RunningServer, size: int) -> AsyncIterator[list[Cable]]:
    await metrics_when(server, lambda now: now["connections"] == 0)
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(cable(server)) for _ in range(size)]


async def refused(server: RunningServer) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
        await Cable.connect(server.cable)


async def test_full_server_serves_operators_publishers_and_its_clients(small: RunningServer) -> None:
    before = await counted(small, "connections")
    async with crowd(small, 3) as clients, aiohttp.ClientSession() as http:
        await refused(small)
        async with http.get(f"{small.url}/events?stream=full") as response:
            assert response.status == 503
        for path in ("/health", "/health/live", "/health/ready", "/metrics"):
            async with http.get(small.url + path) as response:
                assert response.status == 200, path
        await clients[0].subscribe("full")
        await publish(small, "full", "hello")
        assert await clients[0].messages(1) == ["hello"]
        assert await counted(small, "connections") == before + 2
        await until(lambda: re.search(r"warn ropewalk\.node: refused .* connections=", small.log()), "a line in the log")
        await clients[0].close()
        await metrics_when(small, lambda now: now["connections"] == 2)
        async with cable(small) as late:
            for client in (late, *clients[1:]):
                await client.quiet()


async def test_event_streams_and_late_upgrades_count_as_clients(small: RunningServer) -> None:
    async with crowd(small, 2), aiohttp.ClientSession() as http, tcp(small) as link:
        await link.send(HEALTH)
        assert (await link.response())[0] == 200
        async with http.get(f"{small.url}/events?stream=news") as events:
            await events.content.readline()
            await refused(small)
            await link.send(upgrade_request())
            assert (await link.response())[0] == 503
        await metrics_when(small, lambda now: now["connections"] == 2)
        async with cable(small) as client:
            await client.quiet()


@pytest.fixture
def narrow(server_with: ServerWith) -> RunningServer:
    """With places for five HTTP connections."""
    return server_with("--public", "--max_conn", "2", "--max_http_conn", "5")


async def test_health_is_answered_while_all_http_places_are_taken(narrow: RunningServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            link = await stack.enter_async_context(tcp(narrow))
            await link.send(HEALTH)
            await link.response()
        async with tcp(narrow) as check:
            await check.send(HEALTH)
            assert (await check.response())[0] == 200
            await check.to_the_end()  # the server does not keep it open


async def test_silent_connections_do_not_take_the_places_of_clients(narrow: RunningServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(50):
            await stack.enter_async_context(tcp(narrow))
        async with cable(narrow) as client:
            await client.quiet()
        await publish(narrow, "news", "hello")


# --- memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.tier("all")
async def test_bodies_that_are_cut_off_leave_no_memory_behind() -> None:
    with running_server("--public") as server:
        for path in ("/api/publish", "/_broadcast"):
            begin = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {1 << 20}\r\n\r\n".encode() + bytes(1_000_000)
            before = await metrics(server)
            bad = before.get("refusals_total{bad_body}", 0)
            for _ in range(30):
                async with contextlib.AsyncExitStack() as stack:
                    for _ in range(10):
                        await (await stack.enter_async_context(tcp(server))).send(begin)
                bad += 10
                await counted_when(server, "bad_body", bad)
            grown = (await metrics(server))["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
            assert grown < 100 << 20, path  # all bodies together are three times as much


# --- open files ---------------------------------------------------------------------------------------------------------


async def test_clients_beyond_the_open_files_are_refused_and_the_limit_is_logged() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with running_server("--public", "--max_conn", "1000000000") as server:
        assert "the limit of open files permits fewer connections" in server.log()
        assert "max_conn=1000000000" in server.log()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, hard))
        async with contextlib.AsyncExitStack() as stack:
            links = [await stack.enter_async_context(tcp(server)) for _ in range(100)]
            for link in links[:40]:
                await link.send(HEALTH)
            await until(lambda: re.search(r"warn ropewalk\.node: refused .* descriptors=", server.log()), "a line in the log")
        found = await metrics_when(server, lambda now: now["refusals_total{descriptors}"] > 0)
        assert found["process_max_fds"] == 64


def program_with_files(most: int) -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit -n {most}; exec "$0" -m ropewalk "$@"', sys.executable)


@pytest.mark.parametrize("files", [64, pytest.param(400, marks=pytest.mark.tier("all"))])
async def test_as_many_clients_are_admitted_as_the_open_files_allow(files: int) -> None:
    with running_server("--public", "--sse", program=program_with_files(files)) as server:
        logged = re.search(r"connections=(\d+)", server.log())
        assert logged is not None
        room = int(logged[1])
        assert room < files
        for kind in ("websocket", "sse", "tcp"):
            before = await counted(server, "descriptors")
            async with contextlib.AsyncExitStack() as stack:
                entered = 0
                for _ in range(room + 20):
                    link = await stack.enter_async_context(tcp(server))
                    entered += await let_in(link, kind)
                assert entered == room, kind
                for _ in range(3):
                    async with tcp(server) as operator:
                        await operator.send(HEALTH)
                        assert (await operator.response())[0] == 200
                assert await counted(server, "descriptors") >= before + 20
            await metrics_when(server, lambda now: now["connections"] == 0)


async def let_in(link: Tcp, kind: str) -> bool:
    """Whether the server admits it as a client of this kind. If not, the server sends an error."""
    if kind == "tcp":
        await link.send(encode(Hello()))
        body = read(await link.some())
        assert isinstance(body, Welcome) or (isinstance(body, Error) and body.reason is Reason.OVERFLOW)
        return isinstance(body, Welcome)
    await link.send(upgrade_request() if kind == "websocket" else EVENTS)
    status = int((await link.head()).split()[1])
    assert status in (101, 200, 503)
    return status != 503


@pytest.mark.tier("all")
async def test_connections_beyond_the_open_files_do_not_end_the_others() -> None:
    """They come all at once, so that the server drops some before the event loop has made their transports."""
    with running_server("--public", program=program_with_files(256)) as server:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(12):  # so that few places are left for others
                known = await stack.enter_async_context(tcp(server))
                await known.send(HEALTH)
                assert (await known.response())[0] == 200
            server.process.send_signal(signal.SIGSTOP)
            for _ in range(400):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            server.process.send_signal(signal.SIGCONT)
            found = await metrics_when(server, lambda now: now["refusals_total{descriptors}"] > 300)
            assert found["refusals_total{head_timeout}"] == 0
        await metrics_when(server, lambda now: now["connections"] == 0)
