"""HTTP connections answer requests in order, whole or in pieces, and bound what a peer can make them do.

Each case runs with a publisher that answers at once and with one that answers later.
"""

import asyncio
import gzip
import itertools
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from enum import Enum

import pytest

from ropewalk.adapters.endpoints import http_connection, shared_port
from ropewalk.adapters.endpoints.admission import ConnectionLimits
from ropewalk.adapters.endpoints.http_connection import HttpConnection
from ropewalk.adapters.endpoints.http_guard import KEYED, KeyGuard
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse
from ropewalk.adapters.endpoints.publish import PublishEndpoint
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.core.stats import Stats
from ropewalk.model.errors import LimitReached, PartitionChanged, Unanswered
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.protocol.publications import PublicationLimits
from ropewalk.testing.clock import ManualClock
from tests.tcp import TIMEOUT, Tcp
from tests.unit.adapters.endpoints.wire import Wire
from tests.unit.adapters.http_server import shared_port as make_port

LIMITS = PublicationLimits(max_batch=3, max_publish_size=100_000)
GOOD = b'{"stream":"chat","data":"1"}'
END = b"GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class How(Enum):
    AT_ONCE = "at once"
    LATER = "later"


class Store:
    """A publisher that returns at once, or with `later` after some steps and when `gate` is open."""

    def __init__(self, later: bool) -> None:
        self.later = later
        self.gate = asyncio.Event()
        self.gate.set()
        self.clear()

    def clear(self) -> None:
        self.registered: list[Publication] = []
        self.orders: list[RemoteDisconnect] = []
        self._offsets = itertools.count(1)

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self.later:
            await asyncio.sleep(0)
            await self.gate.wait()
        for publication in publications:
            match publication.stream:
                case "moved":
                    raise PartitionChanged("moved", publication.partition_key, "k")
                case "silent":
                    raise Unanswered("the store gave no answer")
                case "full":
                    raise LimitReached("no more streams")
        self.registered += publications
        return [
            Receipt(publication.stream, "", 0)
            if publication.transient
            else Receipt(publication.stream, "e1", next(self._offsets), publication.uid == "known")
            for publication in publications
        ]

    async def disconnect(self, order: RemoteDisconnect) -> int:
        self.orders.append(order)
        return 2


class Port:
    """A shared port that listens, its store and its counters."""

    def __init__(self, how: How, key: str, timeout: float, idle_timeout: float) -> None:
        self.stats = Stats()
        self.store = Store(how is How.LATER)
        guard = self.guard = KeyGuard(key, self.stats.refusals)
        endpoint = PublishEndpoint(self.store, guard, LIMITS, self.stats, timeout, instant=how is How.AT_ONCE)
        routes = [*endpoint.routes("/_broadcast"), HttpRoute("GET", "/end", _end), HttpRoute("POST", "/end", _end)]
        self.shared = make_port(routes, self.stats.refusals, ConnectionLimits(idle_timeout=idle_timeout))
        self.port = 0

    @property
    def connections(self) -> set[HttpConnection]:
        return self.shared.http._context.connections

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Tcp]:
        link = Tcp(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            yield link
        finally:
            link.abort()

    async def until_half_closed(self) -> None:
        await until(lambda: any(connection._peer_ended for connection in self.connections))

    async def until_closed(self) -> None:
        await until(lambda: not self.connections)

    async def until_head_is_incomplete(self) -> None:
        await until(lambda: self.shared.head_timeouts._until)

    async def outcome(self, data: bytes) -> tuple[object, ...]:
        """The responses to these bytes, the publications and the counters."""
        self.store.clear()
        self.stats.refusals.clear()
        self.stats.publications_refused = 0
        responses = await exchange(self, data)
        counted = dict(self.stats.refusals), self.stats.publications_refused
        return responses, self.store.registered, self.store.orders, counted


async def _end(request: HttpRequest) -> HttpResponse:
    async for _ in request.body.chunks():
        pass
    return HttpResponse(200, b"end")


@asynccontextmanager
async def listening(how: How, key: str = "", timeout: float = 30.0, idle_timeout: float = 75.0) -> AsyncIterator[Port]:
    port = Port(how, key, timeout, idle_timeout)
    listener = await asyncio.get_running_loop().create_server(port.shared.detector, "127.0.0.1", 0)
    port.port = listener.sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        listener.close()
        await port.shared.http.stop()


def request(body: bytes = GOOD, *headers: str, line: str = "POST /_broadcast HTTP/1.1", host: str = "Host: x") -> bytes:
    lines = [line, host, f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*headers: str) -> bytes:
    head = request(b"", "Transfer-Encoding: chunked", *headers).replace(b"Content-Length: 0\r\n", b"")
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0)


async def exchange(port: Port, *pieces: bytes) -> bytes:
    """All responses to these bytes, without their dates."""
    async with port.connection() as link:
        for piece in pieces:
            await link.send(piece)
        return re.sub(rb"Date: [^\r]*", b"Date:", await link.to_the_end())


# --- Responses and counters --------------------------------------------------------------------------------------------

AUTHORIZED = "Authorization: Bearer k3y"


def entry(**fields: object) -> bytes:
    return json.dumps({"stream": "chat", "data": "1", **fields}).encode()


RESPONSES = {
    "one": (request(GOOD, AUTHORIZED), "201"),
    "keep-alive": (request(GOOD, AUTHORIZED, "Connection: keep-alive"), "201"),
    "names in capitals": (request(GOOD, "AUTHORIZATION: bearer k3y", "CONNECTION: Keep-Alive"), "201"),
    "blanks around values": (request(GOOD, "Authorization: \t Bearer k3y \t"), "201"),
    "a batch": (request(b"[%b,%b]" % (GOOD, GOOD), AUTHORIZED), "201"),
    "a transient one among others": (request(b"[%b,%b]" % (GOOD, entry(meta={"transient": True})), AUTHORIZED), "201"),
    "a uid that is known": (request(entry(uid="known"), AUTHORIZED), "201"),
    "an idempotency key": (request(GOOD, AUTHORIZED, "Idempotency-Key: k"), "201"),
    "another partition key": (request(b"[%b,%b]" % (GOOD, entry(stream="moved", partition_key="x")), AUTHORIZED), "409"),
    "a store without an answer": (request(entry(stream="silent"), AUTHORIZED), "503"),
    "a store that is full": (request(entry(stream="full"), AUTHORIZED), "507"),
    "several, one of them refused": (
        request(GOOD, AUTHORIZED) * 2 + request(entry(stream="silent"), AUTHORIZED) * 2,
        "201 201 503 503",
    ),
    "no key": (request(), "401"),
    "a wrong key": (request(GOOD, "Authorization: Bearer k3"), "401"),
    "two keys": (request(GOOD, AUTHORIZED, "Authorization: Bearer other"), "201"),
    "two lengths": (request(GOOD, AUTHORIZED, f"Content-Length: {len(GOOD)}"), "400"),
    "two lengths that differ": (request(GOOD, AUTHORIZED, "Content-Length: 2"), "400"),
    "a length with a sign": (request(GOOD, AUTHORIZED).replace(b"Length: ", b"Length: +"), "400"),
    "a length in a list": (request(GOOD, AUTHORIZED).replace(b"Length: 28", b"Length: 28, 28"), "400"),
    "a length and a transfer encoding": (request(b"0\r\n\r\n", AUTHORIZED, "Transfer-Encoding: chunked"), "400"),
    "two transfer encodings": (chunked(AUTHORIZED, "Transfer-Encoding: gzip"), "400"),
    "a list of transfer encodings": (chunked(AUTHORIZED).replace(b"chunked", b"gzip, chunked"), "400"),
    "a transfer encoding in HTTP/1.0": (chunked(AUTHORIZED, "Connection: keep-alive").replace(b"/1.1", b"/1.0"), "400"),
    "an unknown transfer encoding": (request(GOOD, AUTHORIZED, "Transfer-Encoding: xchunked"), "400"),
    "chunks": (chunked(AUTHORIZED), "201"),
    "a blank before the colon": (request(GOOD, AUTHORIZED).replace(b"Content-Length:", b"Content-Length :"), "400"),
    "a folded line": (request(GOOD, AUTHORIZED + "\r\n more"), "400"),
    "a line without colon": (request(GOOD, AUTHORIZED, "nonsense"), "400"),
    "a bare line feed": (request(GOOD, AUTHORIZED + "\nX: y"), "400"),
    "a NUL": (request(GOOD, AUTHORIZED, "X: \0"), "400"),
    "a header beyond ASCII": (request(GOOD, AUTHORIZED, "Idempotency-Key: \xff"), "422"),
    "a long head": (request(GOOD, AUTHORIZED, "X: " + "." * 8000), "201"),
    "a header that is too long": (request(GOOD, AUTHORIZED, "X: " + "." * 9000), "201"),
    "many headers": (request(GOOD, AUTHORIZED, *(f"X-{number}: y" for number in range(100))), "201"),
    "too many headers": (request(GOOD, AUTHORIZED, *(f"X-{number}: y" for number in range(200))), "431"),
    "absolute form": (request(GOOD, AUTHORIZED, line="POST http://x/_broadcast HTTP/1.1"), "201"),
    "a query": (request(GOOD, AUTHORIZED, line="POST /_broadcast?a=b HTTP/1.1"), "201"),
    "an encoded path": (request(GOOD, AUTHORIZED, line="POST /%5Fbroadcast HTTP/1.1"), "201"),
    "HTTP/1.0": (request(GOOD, AUTHORIZED, line="POST /_broadcast HTTP/1.0"), "201"),
    "HTTP/1.0, kept": (request(GOOD, AUTHORIZED, "Connection: keep-alive", line="POST /_broadcast HTTP/1.0"), "201"),
    "close": (request(GOOD, AUTHORIZED, "Connection: close"), "201"),
    "GET": (request(b"", AUTHORIZED, line="GET /_broadcast HTTP/1.1"), "405"),
    "HEAD": (request(b"", AUTHORIZED, line="HEAD /_broadcast HTTP/1.1"), "405"),
    "PUT": (request(GOOD, AUTHORIZED, line="PUT /_broadcast HTTP/1.1"), "405"),
    "another method": (request(GOOD, AUTHORIZED, line="post /_broadcast HTTP/1.1"), "400"),
    "another path": (request(GOOD, AUTHORIZED, line="POST /_broadcasts HTTP/1.1"), "404"),
    "expectations": (request(GOOD, AUTHORIZED, "Expect: 100-continue"), "201"),
    "gzip": (request(gzip.compress(GOOD, mtime=0), AUTHORIZED, "Content-Encoding: gzip"), "201"),
    "no gzip": (request(GOOD, AUTHORIZED, "Content-Encoding: gzip"), "422"),
    "a large body": (request(GOOD + b" " * 90_000, AUTHORIZED), "201"),
    "a body that is too large": (request(GOOD + b" " * 100_000, AUTHORIZED), "413"),
    "no body": (request(b"", AUTHORIZED), "422"),
    "no length": (request(b"", AUTHORIZED).replace(b"Content-Length: 0\r\n", b""), "422"),
    "no JSON": (request(b"nonsense", AUTHORIZED), "422"),
    "no publication": (request(b"{}", AUTHORIZED), "422"),
    "a batch that is too long": (request(b"[%b]" % b",".join([GOOD] * 4), AUTHORIZED), "422"),
    "a uid that is too long": (request(entry(uid="u" * 300), AUTHORIZED), "422"),
    "an idempotency key that is too long": (request(GOOD, AUTHORIZED, "Idempotency-Key: " + "k" * 300), "422"),
    "two idempotency keys": (request(GOOD, AUTHORIZED, "Idempotency-Key: k", "Idempotency-Key: other"), "400"),
    "an idempotency key twice": (request(GOOD, AUTHORIZED, "Idempotency-Key: k", "idempotency-key: k"), "400"),
    "a disconnect": (request(b'{"command":"disconnect","payload":{"identifier":"1"}}', AUTHORIZED), "201"),
    "an empty line before it": (b"\r\n" + request(GOOD, AUTHORIZED), "201"),
}
"""By case: the bytes that are sent, and the statuses of the responses."""


@pytest.mark.parametrize("how", How)
async def test_requests_get_the_documented_status(how: How, subtests: pytest.Subtests) -> None:
    async with listening(how, "k3y") as port:
        for case, (data, statuses) in RESPONSES.items():
            with subtests.test(case=case):
                port.store.clear()
                responses = await exchange(port, data + END)
                found = " ".join(status.decode() for status in re.findall(rb"HTTP/1\.1 (\d+)", responses))
                assert found in (statuses, f"{statuses} 200")  # END may come too late to be answered
                created = statuses.split().count("201")
                assert bool(port.store.registered or port.store.orders) == bool(created)


@pytest.mark.parametrize("how", How)
async def test_two_idempotency_keys_are_refused_and_nothing_is_published(how: How, subtests: pytest.Subtests) -> None:
    for second in ("other", "k", ""):
        with subtests.test(second=second):
            async with listening(how) as port, port.connection() as link:
                await link.send(request(GOOD, "Idempotency-Key: k", f"idempotency-key: {second}"))
                assert await link.response() == (400, b'{"error":"the header Idempotency-Key may be given once"}')
                assert port.store.registered == []
                assert port.stats.publications_refused == 1
                await link.send(request(GOOD, "Idempotency-Key: k"))
                assert (await link.response())[0] == 201


STATUS_OF_VERSION = {"": b"400", " HTTP/0.9": b"400", " HTTP/2.0": b"505", " HTTP/3.0": b"400"}


@pytest.mark.parametrize("how", How)
async def test_other_http_versions_are_refused(how: How, subtests: pytest.Subtests) -> None:
    async with listening(how) as port:
        for method, (version, status) in itertools.product(("POST", "HEAD"), STATUS_OF_VERSION.items()):
            with subtests.test(method=method, version=version):
                port.store.clear()
                bad = request(GOOD, line=f"{method} /_broadcast{version}")
                async with port.connection() as first, port.connection() as second:
                    await second.send(request())
                    await second.response()
                    for link in (first, second):
                        await link.send(bad)
                        assert re.findall(rb"HTTP/1\.[01] (\d+)", await link.to_the_end()) == [status]
                assert len(port.store.registered) == 1


# --- Split requests --------------------------------------------------------------------------------------------------


class PlainWire(Wire):
    """A connection over it receives the pieces of a request separately."""

    async def until_answered(self) -> None:
        await until(lambda: b"HTTP/1.1 " in self.written)

    async def offsets(self, responses: int) -> list[int]:
        """The offsets in so many responses."""
        await until(lambda: self.written.count(b"HTTP/1.1 ") == responses and self.written.endswith(b"}"))
        return [int(offset) for offset in re.findall(rb'"offset":(\d+)', self.written)]


def opened(port: Port) -> PlainWire:
    """A connection that has published once."""
    wire, detector = PlainWire(), port.shared.detector()
    wire.protocol = detector
    detector.connection_made(wire)
    wire.receive(request())
    return wire


@pytest.mark.parametrize("how", How)
async def test_request_may_be_split_anywhere(how: How) -> None:
    data, before = request(), len(request())
    async with listening(how) as port:
        wire = opened(port)
        await wire.offsets(1)
        for place in range(1, before):
            wire.receive(data[:place], data[place:])
            assert await wire.offsets(place + 1) == list(range(1, place + 2))


@pytest.mark.parametrize("how", How)
async def test_request_may_arrive_byte_by_byte(how: How) -> None:
    data = request() + request(b"[%b,%b]" % (GOOD, GOOD)) + request()
    async with listening(how) as port:
        wire = opened(port)
        await wire.offsets(1)
        wire.receive(*(data[place : place + 1] for place in range(len(data))))
        assert await wire.offsets(4) == [1, 2, 3, 4, 5]


async def test_request_with_an_expectation_may_be_split_anywhere() -> None:
    data = request(GOOD, "Expect: 100-continue")
    async with listening(How.AT_ONCE) as port:
        for place in range(1, len(data)):
            wire = opened(port)
            wire.receive(data[:place])
            for _ in range(5):
                await asyncio.sleep(0)
            wire.receive(data[place:])
            await until(lambda wire=wire: wire.written.count(b" 201 Created") == 2)  # type: ignore[misc]
            assert (b" 100 Continue" in wire.written) == (place == len(data) - len(GOOD))


# --- Pipelined requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", How)
async def test_pipelined_requests_are_answered_in_order(how: How) -> None:
    number = 1000
    bodies = [entry(uid=f"u{index}", data=str(index)) for index in range(number)]
    async with listening(how) as port:
        answers = await exchange(port, b"".join(request(body) for body in bodies) + END)
        assert re.findall(rb'"offset":(\d+)', answers) == [b"%d" % (index + 1) for index in range(number)]
        assert [publication.payload for publication in port.store.registered] == [b"%d" % index for index in range(number)]


async def test_many_pipelined_requests_take_turns_with_other_connections() -> None:
    data, most = request(), -(-http_connection.SLICE_BYTES // len(request()))
    async with listening(How.AT_ONCE) as port:
        wires = [opened(port) for _ in range(3)]
        for wire in wires:
            wire.receive(data * (5 * most))
            assert not wire.reads
        counts = [len(port.store.registered)]
        assert counts[0] <= len(wires) * (1 + most)
        while counts[-1] < len(wires) * (1 + 5 * most):
            await asyncio.sleep(0)
            counts.append(len(port.store.registered))
        assert max(after - before for before, after in itertools.pairwise(counts)) <= most
        assert all(wire.reads for wire in wires)


async def test_waiting_requests_of_a_lost_connection_are_dropped() -> None:
    async with listening(How.AT_ONCE) as port:
        wire = opened(port)
        wire.receive(request() * 1000)
        registered = len(port.store.registered)
        assert isinstance(wire.protocol, asyncio.Protocol)
        wire.protocol.connection_lost(None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(port.store.registered) == registered < 1001


@pytest.mark.parametrize("how", How)
async def test_pipelined_requests_of_both_kinds_are_answered_in_order(how: How) -> None:
    get = request(b"", line="GET /end HTTP/1.1")
    async with listening(how) as port:
        answers = await exchange(port, (request() + get) * 20 + request() + END)
        found = re.findall(rb'"offset":(\d+)|\r\n\r\n(end)', answers)
        assert found == [pair for index in range(21) for pair in ((b"%d" % (index + 1), b""), (b"", b"end"))]


@pytest.mark.parametrize("how", How)
async def test_malformed_request_is_refused_after_the_response_before_it(how: How) -> None:
    async with listening(how) as port:
        answers = await exchange(port, request() + b"nonsense\r\n\r\n" + END)
        assert re.findall(rb"HTTP/1\.\d (\d+)", answers) == [b"201", b"400"]


BEFORE_MALFORMED = {
    "a request with a task": (request(b"", line="GET /end HTTP/1.1"), 1),
    "requests with tasks": (request(b"", line="GET /end HTTP/1.1") * 30, 30),
    "a body": (request(b"x" * 1000, line="POST /end HTTP/1.1"), 1),
    "chunks": (chunked() * 3, 3),
    "all kinds": ((request() + request(b"x", line="POST /end HTTP/1.1") + chunked()) * 3, 9),
    "a field beyond ASCII": (request(b"", "X: \xff", line="GET /end HTTP/1.1") * 2, 2),
}
MALFORMED = {
    "no request": b"nonsense\r\n\r\n",
    "no head": b"GET /end HTTP/1.1\r\nnonsense\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("how", How)
async def test_requests_before_a_malformed_one_are_answered_first(how: How, subtests: pytest.Subtests) -> None:
    async with listening(how) as port:
        rows = itertools.product(BEFORE_MALFORMED.items(), MALFORMED.items(), (b"", request(), chunked()))
        for (case, (data, number)), (kind, malformed), first in rows:
            with subtests.test(case=case, kind=kind, first=first):
                async with port.connection() as link:
                    if first:
                        await link.send(first)
                        await link.response()
                    await link.send(data + malformed)
                    statuses = re.findall(rb"HTTP/1\.\d (\d+)", await link.to_the_end())
                assert [status[:1] for status in statuses] == [b"2"] * number + [b"4"]


@pytest.mark.parametrize("how", How)
async def test_requests_after_connection_close_are_not_answered(how: How) -> None:
    async with listening(how) as port:
        for last in ("Connection: close", "Connection: Close, TE"):
            port.store.clear()
            responses = await exchange(port, request() + request(GOOD, last) + request() + END)
            assert re.findall(rb"HTTP/1\.1 (\d+)", responses)[:2] == [b"201", b"201"]
            assert len(port.store.registered) == 2


@pytest.mark.parametrize("how", How)
async def test_request_with_a_malformed_body_is_refused_after_the_responses_before_it(how: How) -> None:
    bad = chunked().replace(b"\r\n\r\n1c\r\n", b"\r\n\r\nnonsense\r\n")
    async with listening(how) as port:
        for before, number in ((b"", 0), (request() + request(b"", line="GET /end HTTP/1.1"), 2)):
            statuses = re.findall(rb"HTTP/1\.\d (\d+)", await exchange(port, before + bad))
            assert [status[:1] for status in statuses] == [b"2"] * number + [b"4"]


@pytest.mark.parametrize("how", How)
async def test_incomplete_head_behind_a_request_times_out(how: How, loop_clock: ManualClock) -> None:
    async with listening(how) as port, port.connection() as link:
        await link.send(chunked() + b"GET /end HTTP/1.1\r\nHo")
        assert (await link.response())[0] == 201
        await port.until_head_is_incomplete()
        loop_clock.advance(shared_port.HEAD_TIMEOUT)
        assert await link.to_the_end() == b""
        assert port.stats.refusals == {"head_timeout": 1}


async def test_requests_during_a_publish_are_held_and_reading_pauses() -> None:
    async with listening(How.LATER) as port:
        wire = opened(port)
        await wire.offsets(1)
        port.store.gate.clear()
        wire.receive(request())
        assert wire.reads
        wire.receive(request(), request(b"", line="GET /end HTTP/1.1"), request())
        assert not wire.reads
        port.store.gate.set()
        await until(lambda: wire.written.count(b"HTTP/1.1 ") == 5)
        assert re.findall(rb'"offset":(\d+)|\r\n\r\n(end)', wire.written) == [
            *((b"%d" % offset, b"") for offset in (1, 2, 3)),
            (b"", b"end"),
            (b"4", b""),
        ]
        assert wire.reads


@pytest.mark.parametrize("how", How)
async def test_requests_wait_while_the_peer_does_not_read(how: How) -> None:
    async with listening(how) as port, port.connection() as link:
        await link.send(request())
        await link.response()
        (connection,) = port.connections
        connection.pause_writing()
        await link.send(request())
        await until(lambda: connection._parser.queue)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(port.store.registered) == 1
        connection.resume_writing()
        assert (await link.response())[0] == 201


@pytest.mark.parametrize("how", How)
async def test_heads_count_one_by_one_in_a_long_pipeline(how: How) -> None:
    """Requests that end within the slices in which the next ones begin: none of their heads is long."""
    number = 600
    async with listening(how) as port:
        answers = await exchange(port, request(GOOD, "X: " + "." * 700) * number + END)
        assert len(re.findall(rb"HTTP/1.1 201", answers)) == number


async def test_begun_head_behind_each_request_has_a_timeout_of_its_own(loop_clock: ManualClock) -> None:
    data = request()
    async with listening(How.AT_ONCE) as port:
        wire = opened(port)
        wire.receive(data[:20])
        for number in range(2, 12):
            loop_clock.advance(shared_port.HEAD_TIMEOUT / 4)
            wire.receive(data[20:] + data[:20])
            assert await wire.offsets(number) == list(range(1, number + 1))
        assert not wire.closed
        loop_clock.advance(shared_port.HEAD_TIMEOUT)
        await until(lambda: wire.closed)
        assert port.stats.refusals == {"head_timeout": 1}


async def test_connection_that_sends_empty_lines_only_times_out(loop_clock: ManualClock) -> None:
    async with listening(How.AT_ONCE) as port, port.connection() as link:
        await link.send(b"\r\n\r\n" * 8)
        await until(lambda: port.connections)
        loop_clock.advance(shared_port.HEAD_TIMEOUT)
        assert await link.to_the_end() == b""
        assert port.stats.refusals == {"head_timeout": 1}


# --- Half-closed connections -----------------------------------------------------------------------------------------

GET = request(b"", line="GET /end HTTP/1.1")
CHUNKED_POST = chunked()
HALF_CLOSED = {
    "plain": (request(), [b"201"]),
    "with a task": (GET, [b"200"]),
    "chunked": (CHUNKED_POST, [b"201"]),
    "several": (request() + GET + request() + CHUNKED_POST + GET, [b"201", b"200", b"201", b"201", b"200"]),
    "many": (GET * 100, [b"200"] * 100),
    "half a head behind one": (CHUNKED_POST + b"POST /_bro", [b"201"]),
}


@pytest.mark.parametrize("how", How)
async def test_half_closed_connection_gets_its_responses_and_is_closed(how: How, subtests: pytest.Subtests) -> None:
    for case, (data, expected) in HALF_CLOSED.items():
        with subtests.test(case=case):
            async with listening(how) as port:
                port.store.later = how is not How.AT_ONCE
                port.store.gate.clear()
                async with port.connection() as link:
                    await link.send(data)
                    link.end()
                    if port.store.later and case in ("plain", "chunked"):  # it has ended before there is a response
                        await port.until_half_closed()
                    port.store.gate.set()
                    assert re.findall(rb"HTTP/1\.1 (\d+)", await link.to_the_end()) == expected
                await port.until_closed()
                assert port.stats.refusals == {}


@pytest.mark.parametrize("how", How)
async def test_half_closed_connection_without_a_whole_request_is_closed(how: How, subtests: pytest.Subtests) -> None:
    for data in (b"", request()[:-5], request()[:30], CHUNKED_POST[:-3]):
        with subtests.test(data=data):
            async with listening(how) as port, port.connection() as link:
                await link.send(request())
                await link.response()
                await link.send(data)
                link.end()
                assert b" 201 " not in await link.to_the_end()
                await port.until_closed()
                assert len(port.store.registered) == 1


# --- Lost connections and timeouts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", How)
@pytest.mark.parametrize("steps", [0, 10], ids=["before the handler starts", "while the handler reads"])
async def test_connection_lost_in_a_body_is_counted(how: How, steps: int) -> None:
    held = KEYED.held
    async with listening(how) as port:
        wire = opened(port)
        await wire.offsets(1)
        wire.receive(request()[:-5])
        for _ in range(steps):
            await asyncio.sleep(0)
        assert isinstance(wire.protocol, asyncio.Protocol)
        wire.protocol.connection_lost(None)
        await until(lambda: port.stats.publications_refused == 1)
        assert port.stats.refusals == {"bad_body": 1}
    assert KEYED.held == held


@pytest.mark.parametrize("how", How)
async def test_incomplete_body_is_answered_with_408(how: How, loop_clock: ManualClock) -> None:
    held = KEYED.held
    async with listening(how, timeout=2.0) as port, port.connection() as link:
        await link.send(request())
        await link.response()
        await link.send(request()[:-5])
        response = asyncio.create_task(link.response())
        while not response.done():
            loop_clock.advance(1.0)
            for _ in range(20):
                await asyncio.sleep(0)
        assert (await response)[0] == 408
        await link.to_the_end()
        assert port.stats.refusals == {"body_timeout": 1}
    assert KEYED.held == held


INCOMPLETE_HEADS = [b"POST /_bro", b"GET /end HTTP/1.1\r\nHo", request(GOOD, "Expect: 100-continue")[: -len(GOOD) - 2]]


@pytest.mark.parametrize("how", How)
async def test_idle_connection_is_closed_and_counted(how: How, subtests: pytest.Subtests, loop_clock: ManualClock) -> None:
    idle_timeout = shared_port.HEAD_TIMEOUT / 2
    for begin in (b"", *INCOMPLETE_HEADS[:2]):
        with subtests.test(begin=begin):
            async with listening(how, idle_timeout=idle_timeout) as port, port.connection() as link:
                await link.send(request())
                await link.response()
                await link.send(begin)
                if begin:
                    await port.until_head_is_incomplete()
                loop_clock.advance(idle_timeout + 0.1)
                assert await link.to_the_end() == b""
                assert port.stats.refusals == {"idle": 1}


@pytest.mark.parametrize("how", How)
async def test_idle_timeout_starts_again_with_every_request(how: How, loop_clock: ManualClock) -> None:
    async with listening(how, idle_timeout=60.0) as port, port.connection() as link:
        for _ in range(5):
            await link.send(request())
            assert (await link.response())[0] == 201
            loop_clock.advance(40.0)
        loop_clock.advance(21.0)
        assert await link.to_the_end() == b""
        assert port.stats.refusals == {"idle": 1}


@pytest.mark.parametrize("how", How)
async def test_incomplete_head_times_out_before_the_connection_is_idle(
    how: How, subtests: pytest.Subtests, loop_clock: ManualClock
) -> None:
    first = (request(), request(b"", line="GET /end HTTP/1.1"), b"\r\n" + request())
    for before, begin in itertools.product(first, INCOMPLETE_HEADS):
        with subtests.test(before=before, begin=begin):
            async with listening(how) as port, port.connection() as link:
                await link.send(before)
                await link.response()
                await link.send(begin)
                await port.until_head_is_incomplete()
                loop_clock.advance(shared_port.HEAD_TIMEOUT)
                assert await link.to_the_end() == b""
                assert port.stats.refusals == {"head_timeout": 1}


@pytest.mark.parametrize("how", How)
async def test_head_timeout_runs_from_the_first_piece_to_the_last(how: How, loop_clock: ManualClock) -> None:
    for other in (request(), request(b"", line="GET /end HTTP/1.1")):
        async with listening(how) as port:
            wire = opened(port)
            await wire.offsets(1)
            awaited = port.shared.head_timeouts._until
            for _ in range(2):
                assert not awaited
                wire.writes.clear()
                wire.receive(other[:3])
                begun = dict(awaited)
                assert len(begun) == 1
                loop_clock.advance(0.001)
                wire.receive(other[3:10], other[10:20])
                assert awaited == begun
                wire.receive(other[20:])
                assert not awaited
                await wire.until_answered()
            wire.receive(other[:3])
            assert isinstance(wire.protocol, asyncio.Protocol)
            wire.protocol.connection_lost(None)
            assert not awaited


async def test_incomplete_head_waits_while_a_request_before_it_is_answered(loop_clock: ManualClock) -> None:
    async with listening(How.LATER) as port:
        port.store.gate.clear()
        async with port.connection() as link:
            await link.send(request())
            await until(lambda: port.connections)
            (connection,) = port.connections
            await link.send(b"POST /_bro")
            await until(lambda: connection._unparsed)
            loop_clock.advance(shared_port.HEAD_TIMEOUT)
            port.store.gate.set()
            assert (await link.response())[0] == 201
            await port.until_head_is_incomplete()
            loop_clock.advance(shared_port.HEAD_TIMEOUT)
            assert await link.to_the_end() == b""
        assert port.stats.refusals == {"head_timeout": 1}


async def test_stopping_server_waits_for_the_publish_and_answers() -> None:
    async with listening(How.LATER) as port, port.connection() as link:
        port.store.gate.clear()
        await link.send(request())
        await until(lambda: any(connection._task for connection in port.connections))
        stopping = asyncio.create_task(port.shared.http.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        port.store.gate.set()
        assert b" 201 Created" in await link.to_the_end()
        await stopping
        assert len(port.store.registered) == 1


@pytest.mark.parametrize("how", How)
async def test_every_request_is_logged(how: How, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "ropewalk.http"):
        async with listening(how) as port:
            await exchange(port, request() + request(entry(stream="silent")) + END)
    lines = [record.__dict__ for record in caplog.records if record.msg == "request"]
    seen = [(line["method"], line["path"], line["status"], line["remote"]) for line in lines]
    assert seen == [
        ("POST", "/_broadcast", 201, "127.0.0.1"),
        ("POST", "/_broadcast", 503, "127.0.0.1"),
        ("GET", "/end", 200, "127.0.0.1"),
    ]


# --- Chunked bodies --------------------------------------------------------------------------------------------------

CHUNKED_HEAD = b"POST /end HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_small_chunks_of_many_connections_are_parsed_in_turns() -> None:
    port, wires = make_port([HttpRoute("POST", "/end", _end)]), [Wire() for _ in range(12)]
    for wire in wires:
        detector = port.detector()
        detector.connection_made(wire)
        detector.data_received(CHUNKED_HEAD)
    connections = [wire.protocol for wire in wires if isinstance(wire.protocol, HttpConnection)]
    bodies = [connection._parser.newest.body for connection in connections if connection._parser.newest is not None]
    assert len(bodies) == len(wires)
    for wire in wires:
        wire.receive(b"1\r\n \r\n" * 5000)
        assert not wire.reads
    most = http_connection.SLICE_BYTES // len(b"1\r\n \r\n") + 1
    parsed = [[body.received for body in bodies]]
    assert max(parsed[0]) <= most
    while sum(parsed[-1]) < 60_000:
        await asyncio.sleep(0)
        parsed.append([body.received for body in bodies])
    for before, after in itertools.pairwise(parsed):
        assert sum(after) - sum(before) <= most
    for wire in wires:
        wire.receive(b"0\r\n\r\n")
    await until(lambda: all(b" 200 OK" in wire.written for wire in wires))
    await port.http.stop()


async def test_body_waits_for_its_handler_and_then_arrives_whole() -> None:
    gate, sizes = asyncio.Event(), []

    async def late(request: HttpRequest) -> HttpResponse:
        await gate.wait()
        sizes.append(sum([len(chunk) async for chunk in request.body.chunks()]))
        return HttpResponse()

    port, wire = make_port([HttpRoute("POST", "/end", late)]), Wire()
    detector = port.detector()
    detector.connection_made(wire)
    detector.data_received(CHUNKED_HEAD)
    connection = wire.protocol
    assert isinstance(connection, HttpConnection)
    piece = b"10\r\n" + b" " * 16 + b"\r\n"
    number = 2 * http_connection.BODY_HIGH_WATER // 16
    wire.receive(piece * number)
    for _ in range(2000):
        await asyncio.sleep(0)
    newest = connection._parser.newest
    assert newest is not None
    assert newest.body.received <= http_connection.BODY_HIGH_WATER + http_connection.SLICE_BYTES
    assert not wire.reads
    gate.set()
    wire.receive(b"0\r\n\r\n")
    await until(lambda: sizes)
    assert sizes == [16 * number]
    await until(lambda: wire.reads)
    await port.http.stop()


# --- Heads that are repeated -------------------------------------------------------------------------------------------


async def test_new_key_holds_for_a_connection_that_repeats_its_head() -> None:
    async with listening(How.AT_ONCE, "k3y") as port, port.connection() as link:
        for _ in range(3):
            await link.send(request(GOOD, AUTHORIZED))
            assert (await link.response())[0] == 201
        port.guard.key = "other"
        await link.send(request(GOOD, AUTHORIZED))
        assert (await link.response())[0] == 401
        assert len(port.store.registered) == 3


@pytest.mark.parametrize("how", How)
async def test_repeated_head_with_another_body_is_answered_for_that_body(how: How) -> None:
    first, second = entry(data="1"), entry(data="2")
    assert len(first) == len(second)
    async with listening(how) as port, port.connection() as link:
        for body in (first, second, b"x" * len(first), first):
            await link.send(request(body))
            assert (await link.response())[0] == (422 if body.startswith(b"x") else 201)
        await link.send(request(second) * 2 + request(first + b" ") + b"nonsense\r\n\r\n")
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", await link.to_the_end())
        assert statuses == [b"201", b"201", b"201", b"400"]
        assert [each.payload for each in port.store.registered] == [b"1", b"2", b"1", b"2", b"2", b"1"]
