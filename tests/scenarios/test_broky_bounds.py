"""Limits of Broky clients: what one client can make the server store, handle or wait for. Refusals are counted, and clients
within the limits are not affected."""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
from ropewalk.protocol.broky.frames import (
    Error,
    Gap,
    Hello,
    History,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Welcome,
)
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, answered_refs, client, close, new_key, one_by_one, stranger
from tests.cable import Cable, cable
from tests.certificates import trusting_context
from tests.clients.credentials import SECRET
from tests.metrics import metrics, metrics_when
from tests.process_tree import peak_memory
from tests.scenarios.shared_servers import SLOW_COMMANDS, ServerWith
from tests.server import RunningServer, running_server

PUBLISHING = derive(SECRET, BROADCAST_PHRASE)
LARGE = bytes(60_000)
MANY = 400  # large messages: more than the kernel's buffers of a loopback connection and the outbox hold together
SILENT_READERS = 3  # clients that do not read
FLOOD_BYTES = 40 << 20  # bytes that each of them pushes at most
MAX_GROWTH_BYTES = 12 << 20  # bytes by which they may make the server grow
TIMEOUT = 60.0


@pytest.fixture(scope="module", params=["alone", pytest.param("workers with a journal", marks=pytest.mark.tier("all"))])
def server(request: pytest.FixtureRequest, server_with: ServerWith) -> RunningServer:
    """One that registers a push before it reads the next frame, and one where that takes a while."""
    return server_with("--public", *(("--workers", "2", "--data_dir", "data") if request.param != "alone" else ()))


async def offsets(broky: BrokyClient, count: int) -> list[int]:
    """Of the next messages, which may come in any number of runs."""
    found: list[int] = []
    while len(found) < count:
        run = await broky.expect(Run)
        found += range(run.offset, run.offset + run.count)
    return found


# --- repeated, split and last frames --------------------------------------------------------------------


async def test_repeated_subscription_is_answered_under_its_own_ref(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as broky:
        broky.send(build_run(stream, [b"1", b"2", b"3"], ref=9))
        epoch = (await broky.expect(Pushed)).epochs[1:]
        asked = (Subscribe(2, stream, history=True), Subscribe(3, stream, epoch=epoch, offset=1))
        broky.send(Subscribe(1, stream), *asked, Ping(4))
        assert await broky.expect(Subscribed) == Subscribed(1, epoch, 3)
        assert (await broky.expect(Subscribed)).ref == 2
        assert await offsets(broky, 3) == [1, 2, 3]
        assert (await broky.expect(Subscribed)).ref == 3
        assert (await broky.expect(Pong)).ref == 4
        broky.send(Subscribe(5, b""), Subscribe(6, b""))
        assert [refused.ref for refused in await broky.some(Refused, 2)] == [5, 6]


async def test_repeated_ref_is_answered_again(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as broky:
        broky.send(*[build_run(stream, [b"%d" % number], ref=7) for number in range(1, 4)], Ping(7))
        answers, _ = await broky.until(Pong)
        assert answered_refs(answers) == [7, 7, 7]
        assert [offset for answer in answers if isinstance(answer, Pushed) for offset in answer.offsets] == [1, 2, 3]


async def test_conversation_in_single_bytes_is_answered(server: RunningServer) -> None:
    stream = new_key()
    frames = [encode(Hello()), encode(Subscribe(1, stream)), encode_run(build_run(stream, [b"x"], ref=2)), encode(Ping(3))]
    async with stranger(server) as broky:
        for byte in b"".join(frames):
            broky.writer.write(bytes([byte]))
            await broky.writer.drain()
            await asyncio.sleep(0)
        got: list[object] = []
        while not {Welcome, Subscribed, Pushed, Pong} <= {type(each) for each in got}:
            got.append(await broky.receive())


async def test_pushes_before_the_end_of_a_half_closed_connection_are_answered(server: RunningServer) -> None:
    """2500 are more than one batch, so that some are pending when the end comes."""
    for runs in (1, 2500):
        stream = new_key()
        async with client(server) as broky:
            broky.send(*[build_run(stream, [b"x"], ref=ref) for ref in range(1, runs + 1)])
            broky.writer.write_eof()
            assert answered_refs(await broky.rest()) == list(range(1, runs + 1))


# --- limits ---------------------------------------------------------------------------------------------------------------


async def test_connection_beyond_max_conn_is_refused_over_every_protocol() -> None:
    with running_server("--secret", SECRET, "--public_streams", "--noauth", "--max_conn", "3") as running:
        async with client(running) as subscriber, client(running, PUBLISHING) as producer, cable(running):
            await metrics_when(running, lambda now: now["connections"] == 3)
            async with stranger(running) as late:
                late.send(Hello())
                error = await late.ended()
                assert (error.reason, error.reconnect) == (Reason.OVERFLOW, True)
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await Cable.connect(running.cable)
            assert (await metrics(running))["refusals_total{connections}"] == 2
            await subscriber.subscribe(b"k")
            producer.send(build_run(b"k", [b"x"]))
            assert (await subscriber.expect(Run)).payload == b"x"
        await metrics_when(running, lambda now: now["connections"] == 0 and now["connections_closed_total"] == 3)
        async with client(running):
            pass


async def test_long_names_and_too_many_subscriptions_are_refused_and_counted() -> None:
    with running_server("--public", "--max_stream_name", "20", "--tcp_max_subscriptions", "2") as running:
        async with client(running) as broky:
            broky.send(build_run(b"k" * 21, [b"x"], ref=1), build_run(b"k" * 20, [b"x"], ref=2))
            answers = {type(body): body for body in (await broky.receive(), await broky.receive())}
            assert set(answers) == {Refused, Pushed}
            keys = (b"k" * 21, b"k" * 20, b"b", b"c", b"b")
            broky.send(*[Subscribe(ref, each) for ref, each in enumerate(keys, start=1)])
            got = [await broky.receive() for _ in range(5)]
            assert [(type(each), getattr(each, "ref", 0)) for each in got] == [
                *((Refused, 1), (Subscribed, 2), (Subscribed, 3), (Refused, 4), (Subscribed, 5))
            ]
            refused = [(each.reason, each.text) for each in got if isinstance(each, Refused)]
            too_long = "the stream name is longer than 20 bytes"
            assert refused == [(Reason.MALFORMED, too_long), (Reason.OVERFLOW, "more than 2 subscriptions in one session")]
            broky.send(Unsubscribe(0, b"b"), Subscribe(6, b"c"))
            assert (await broky.expect(Subscribed)).ref == 6
            broky.send(Unsubscribe(0, b"c"), Subscribe(7, b""), History(8, b""), History(9, b"k" * 21))
            empty = "the stream name must be a string that is not empty"
            for ref, text in ((7, empty), (8, empty), (9, too_long)):
                refusal = await broky.expect(Refused)
                assert (refusal.ref, refusal.reason, refusal.text) == (ref, Reason.MALFORMED, text)
            found = await metrics(running)
            assert (found["refusals_total{subscriptions}"], found["publications_refused_total"]) == (1, 1)


async def test_commands_beyond_the_rate_are_delayed_and_a_long_backlog_ends_the_connection(server_with: ServerWith) -> None:
    running = server_with(*SLOW_COMMANDS)
    before = (await metrics(running)).get("refusals_total{backlog}", 0)
    keys = [new_key() for _ in range(30)]
    async with client(running) as patient, client(running) as hasty:
        patient.send(*[Subscribe(ref, key) for ref, key in enumerate(keys, 1)])
        assert [each.ref for each in await patient.some(Subscribed, 30)] == list(range(1, 31))
        hasty.send(*map(Ping, range(1, 1000)))
        pongs, error = await hasty.until(Error)
        assert error.reason is Reason.OVERFLOW
        assert 0 < len(pongs) < 999
        assert {type(pong) for pong in pongs} == {Pong}
        assert (await metrics(running))["refusals_total{backlog}"] == before + 1
        patient.send(*[build_run(keys[0], [b"x"], ref=ref) for ref in range(1, 1000)])  # pushes are not commands
        delivered = 0
        while delivered < 999:
            body = await patient.receive()
            delivered += body.count if isinstance(body, Run) else 0


async def test_malformed_too_big_and_late_frames_are_refused_and_counted(server: RunningServer) -> None:
    before = await metrics(server)
    async with client(server) as bad, client(server) as big, stranger(server) as silent:
        silent.writer.write(encode(Hello())[:-1])
        bad.writer.write(bytes(4))
        big.writer.write((5 << 20).to_bytes(4, "little"))
        assert (await bad.ended()).reason is Reason.MALFORMED
        assert (await big.ended()).reason is Reason.TOO_BIG
        assert (await silent.ended()).reason is Reason.NOT_READY
    reasons = [f"refusals_total{{{reason}}}" for reason in ("bad_frame", "message_too_big", "head_timeout")]
    await metrics_when(server, lambda now: all(now[reason] > before.get(reason, 0) for reason in reasons))


# --- slow readers ------------------------------------------------------------------------------------------------


async def narrow(server: RunningServer, window: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a small receive buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    return await asyncio.open_connection(sock=sock, limit=window)


@asynccontextmanager
async def unread(server: RunningServer, hello: Hello, *frames: bytes) -> AsyncIterator[asyncio.StreamWriter]:
    """A client that sends frames and does not read."""
    reader, writer = await narrow(server, 8192)
    try:
        writer.write(encode(hello))
        await reader.read(1000)  # the welcome
        for each in frames:
            writer.write(each)
        yield writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.tier("all")
@pytest.mark.parametrize("token", ["", PUBLISHING], ids=["sessions", "producers"])
async def test_producers_that_do_not_read_their_answers_are_closed_within_a_memory_limit(token: str) -> None:
    """Every push is refused, which is the longest answer that it can have."""
    flood = encode_run(build_run(b"", [b""], ref=1)) * 2000
    access = ("--secret", SECRET) if token else ("--public",)
    with running_server(*access, "--ws_write_timeout", "2s") as running:
        async with client(running, token) as neighbour:
            neighbour.send(build_run(b"k", [b"x"], ref=1))
            assert (await neighbour.expect(Pushed)).refs == (1,)
            before = peak_memory(running)

            async def attack(number: int) -> None:
                written = 0
                async with unread(running, Hello(token=token.encode())) as writer:
                    while not writer.is_closing() and written < FLOOD_BYTES:
                        writer.write(flood)
                        written += len(flood)
                        try:
                            await writer.drain()
                        except ConnectionError:
                            break

            async with asyncio.timeout(TIMEOUT):
                await asyncio.gather(*map(attack, range(SILENT_READERS)))
            assert peak_memory(running) - before < MAX_GROWTH_BYTES
            neighbour.send(build_run(b"k", [b"x"], ref=2))
            assert (await neighbour.expect(Pushed)).refs == (2,)
            found = await metrics_when(running, lambda now: now["connections"] == 1)
            assert found["refusals_total{write_timeout}"] == SILENT_READERS


@pytest.mark.tier("all")
async def test_slow_subscriber_of_a_dropping_stream_gets_gaps_and_the_newest_messages(tmp_path: Path) -> None:
    settings = tmp_path / "ropewalk.toml"
    settings.write_text('[[streams]]\npattern = "ticker"\nslow_consumer = "drop"\n')
    flags = ("--config_path", str(settings), "--ws_max_pending_size", "300000", "--history_limit", "1000")
    with running_server("--public", *flags) as running:
        async with client(running) as slow, client(running) as producer:
            begun = await slow.subscribe(b"ticker")
            slow.pause_reading()
            for number in range(1, MANY + 1):
                producer.send(build_run(b"ticker", [LARGE], ref=number))
                assert (await producer.expect(Pushed)).refs == (number,)
            slow.resume_reading()
            at, gaps = begun.offset, 0
            while at < MANY:
                match await slow.receive():
                    case Run(offset=offset, count=count):
                        assert offset == at + 1
                        at += count
                    case Gap(reason=Reason.SLOW, last=last):
                        assert at < last < MANY
                        at, gaps = last, gaps + 1
                    case other:
                        raise AssertionError(other)
            assert gaps > 0
            found = await metrics(running)
            assert found["gaps_total{dropped}"] == gaps
            assert found["outbox_drops_total"] > 0


@pytest.mark.tier("all")
@pytest.mark.parametrize("streams", [[b"a"], [b"a", b"b"]], ids=["one stream", "two streams"])
async def test_subscriber_that_pauses_gets_every_message_and_answer_in_order(streams: list[bytes]) -> None:
    """Messages of all sizes fill the kernel's buffers at any byte, and answers come in between."""
    turns, each = 4, 600
    sizes = [1, 100, 10_000, 40_000]
    expected = [bytes([turn]) * sizes[(turn + number) % len(sizes)] for turn in range(turns) for number in range(each)]
    got: dict[bytes, list[Run]] = {stream: [] for stream in streams}
    answered: list[int] = []

    async def read(slow: BrokyClient, until: Callable[[], bool]) -> None:
        while not until():
            match await slow.receive():
                case Run() as run:
                    got[run.key] += one_by_one(run)
                case Pong(ref):
                    answered.append(ref)
                case other:
                    raise AssertionError(other)

    with running_server("--public", "--history_limit", "1000", "--ws_max_pending_size", "64MiB") as running:
        async with client(running) as producer:
            slow = BrokyClient(*await narrow(running, 65536))
            slow.send(Hello())
            await slow.expect(Welcome)
            for stream in streams:
                await slow.subscribe(stream)
            for number, payload in enumerate(expected):
                if number % each == 0:
                    slow.pause_reading()
                if number % each == each / 2:
                    slow.resume_reading()
                for stream in streams:
                    producer.send(build_run(stream, [payload], ref=1))
                    await producer.expect(Pushed)
                if number % 10 == 0:
                    slow.send(Ping(number))
                if number % each >= each / 2:
                    before = len(got[streams[0]])
                    await read(slow, lambda: len(got[streams[0]]) > before)  # noqa: B023  # called at once
            await read(slow, lambda: all(len(runs) == len(expected) for runs in got.values()))
            await read(slow, lambda: len(answered) == len(expected) / 10)
            await close(slow.writer)
    for runs in got.values():
        assert [run.offset for run in runs] == list(range(1, len(expected) + 1))
        assert [split_payloads(run)[0] for run in runs] == expected
    assert answered == sorted(answered)


# --- TLS ----------------------------------------------------------------------------------------------------


async def test_garbage_inside_tls_ends_the_connection_and_does_not_affect_other_clients(tls_server: RunningServer) -> None:
    context = trusting_context()

    def spoil(port: int) -> None:
        with (
            socket.create_connection(("127.0.0.1", port)) as sock,
            context.wrap_socket(sock, server_hostname="127.0.0.1") as inside,
        ):
            inside.settimeout(TIMEOUT)
            inside.sendall(encode(Hello()))
            assert inside.recv(1000)
            os.write(inside.fileno(), random.Random(20261116).randbytes(5000))
            try:
                while inside.recv(1000):
                    pass
            except OSError:  # an alert, or the end
                pass

    stream = new_key()
    async with client(tls_server, tls=context) as neighbour:
        await neighbour.subscribe(stream)
        await asyncio.gather(*(asyncio.to_thread(spoil, tls_server.port) for _ in range(5)))
        neighbour.send(build_run(stream, [b"x"]))
        assert (await neighbour.expect(Run)).payload == b"x"
