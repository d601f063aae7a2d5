"""Bounds on one WebSocket client: fragments, pings, unread data and write timeouts. Refusals are counted."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from ropewalk.adapters.endpoints.websocket import KERNEL_BUFFER
from tests.cable import cable, identifier
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer, publish, running_server
from tests.tcp import CONTINUATION, PING, PONG, TEXT, Tcp, client_frame, tcp, upgrade_request

LARGE = "." * 60_000
EMPTY_FRAGMENT = client_frame(b"", CONTINUATION, fin=False)
SUBSCRIBE = client_frame(json.dumps({"command": "subscribe", "identifier": identifier("s")}).encode())
PENDING = 1 << 20


@pytest.fixture
def without_pings(server_with: ServerWith) -> RunningServer:
    return server_with("--public", "--ping_interval", "0")


# --- fragments ------------------------------------------------------------------------------------------------------------


async def test_message_in_endless_fragments_is_refused_with_all_that_follows(server: RunningServer) -> None:
    before = await metrics(server)
    async with tcp(server, upgraded=True) as link, cable(server) as neighbour:
        await link.send(client_frame(b"{", TEXT, fin=False) + EMPTY_FRAGMENT * 200_000 + client_frame(b'{"command":"ping"}'))
        assert await link.close_code() == 1009
        await neighbour.quiet()
        after = await metrics(server)
    assert after["refusals_total{fragments}"] == before["refusals_total{fragments}"] + 1
    assert after["commands_total"] == before["commands_total"] + 1  # of the neighbour


async def test_fragments_are_bounded_before_authentication() -> None:
    """The application does not answer, so that the session does not open."""
    with running_server("--rpc_host", "http://127.0.0.1:9/", "--rpc_command_timeout", "60000") as server:
        async with tcp(server) as link:
            await link.send(upgrade_request() + client_frame(b"{", TEXT, fin=False))
            await link.head()
            await link.send(EMPTY_FRAGMENT * 2000)
            await metrics_when(server, lambda now: now["refusals_total{fragments}"] == 1 and now["connections"] == 0)
        server.kill()  # it would wait for the application


async def test_frames_before_the_handshake_ends_are_bounded(server: RunningServer) -> None:
    async with tcp(server) as link:
        await link.send(upgrade_request() + EMPTY_FRAGMENT * 1000)
        assert (await link.response())[0] == 400
    async with tcp(server) as link:
        await link.send(upgrade_request() + client_frame(b'{"command":"ping"}') * 100)
        await link.head()
        await link.frame_with(b"pong")


async def test_message_in_a_thousand_fragments_is_accepted(without_pings: RunningServer) -> None:
    message = b'{"command":"ping"}' + b" " * 982
    async with tcp(without_pings, upgraded=True) as link:
        for place in range(len(message)):
            last = place == len(message) - 1
            await link.send(client_frame(message[place : place + 1], CONTINUATION if place else TEXT, fin=last))
        assert await link.frame() == (TEXT, b'{"type":"pong"}')


# --- pings of the client ------------------------------------------------------------------------------------------------------


async def test_ping_is_answered_with_its_payload(without_pings: RunningServer) -> None:
    async with tcp(without_pings, upgraded=True) as link:
        for payload in (b"", b"hello", b"." * 125):
            await link.send(client_frame(payload, PING))
            assert await link.frame() == (PONG, payload)


async def test_newest_of_many_pings_is_answered(without_pings: RunningServer) -> None:
    async with tcp(without_pings, upgraded=True) as link:
        await link.send(b"".join(client_frame(b"%d" % number, PING) for number in range(5)))
        answered = -1
        while answered < 4:
            opcode, payload = await link.frame()
            assert (opcode, int(payload) > answered) == (PONG, True)
            answered = int(payload)


@pytest.mark.tier("all")
async def test_pings_of_a_client_that_does_not_read_take_no_memory() -> None:
    flood = client_frame(b"." * 125, PING) * 8000  # a megabyte
    with running_server("--public", "--ping_interval", "0") as server:
        async with tcp(server, upgraded=True) as link, cable(server) as neighbour:
            before = (await metrics(server))["process_resident_memory_bytes"]
            sending = asyncio.create_task(_send_all(link, flood, 40))
            for _ in range(10):
                await neighbour.quiet()
                found = await metrics(server)
                assert found["outbox_bytes"] <= PENDING
                assert found["process_resident_memory_bytes"] - before < 16 << 20
                await asyncio.wait([sending], timeout=0.1)  # samples of the load; nothing depends on the time
            sending.cancel()
            link.abort()


@pytest.mark.tier("all")
async def test_receive_buffer_of_a_fast_sender_stays_small() -> None:
    flood = client_frame(b'{"command":"ping","more":"%b"}' % (b"." * 5000)) * 200  # a megabyte
    with running_server("--public", "--ping_interval", "0") as server:
        async with tcp(server, upgraded=True) as link, cable(server) as neighbour:
            sending = asyncio.create_task(_send_all(link, flood, 40))
            handled = 0.0
            while handled < 800:
                await neighbour.quiet()
                assert _unread(server.port) <= 2 * KERNEL_BUFFER  # the kernel doubles the value
                handled = (await metrics(server))["commands_total"]
            sending.cancel()
            link.abort()


def _unread(port: int) -> int:
    """Bytes in the kernel's receive buffer of the connection to this port that has most."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return max(int(fields[4].split(":")[1], 16) for fields in lines if fields[1].endswith(f":{port:04X}"))


async def _send_all(link: Tcp, data: bytes, times: int) -> None:
    for _ in range(times):
        await link.send(data)


# --- timeouts -----------------------------------------------------------------------------------------------------------------


def _connected(port: int, window: int) -> socket.socket:
    """With a small window, so that what the kernels hold between the two is little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    return sock


async def test_client_that_reads_nothing_is_closed_by_the_write_timeout() -> None:
    flags = ("--ws_write_timeout", "1s", "--ws_max_pending_size", str(256 << 20), "--history_limit", "0")
    with running_server("--public", *flags) as server:
        for number, interval in enumerate(("0", "3600"), 1):  # however rarely it is pinged
            reader, writer = await asyncio.open_connection(sock=_connected(server.port, 8192))
            link = Tcp(reader, writer)
            await link.send(upgrade_request(f"/cable?pi={interval}"))
            await link.send(SUBSCRIBE)
            await metrics_when(server, lambda now: now["subscriptions"] == 1)
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # an asyncio.Transport
            while (found := await metrics(server))["outbox_bytes"] < 5 * len(LARGE):
                assert found["subscriptions"] == 1, "closed before it was behind"
                await publish(server, "s", LARGE)
            found = await metrics_when(server, lambda now: now["refusals_total{write_timeout}"] == number)  # noqa: B023
            assert found["slow_disconnects_total"] == 0
            await metrics_when(server, lambda now: now["connections"] == 0 and now["outbox_bytes"] == 0)
            writer.close()


@pytest.mark.alone
@pytest.mark.tier("all")
async def test_slow_but_steady_reader_is_not_closed_by_the_write_timeout() -> None:
    """It takes several times the write timeout for the pending messages, and catches up only at the end."""
    flags = ("--ws_write_timeout", "500ms", "--ws_max_pending_size", str(256 << 20), "--ping_interval", "1s")
    with running_server("--public", *flags) as server:
        loop = asyncio.get_running_loop()
        sock = _connected(server.port, 65_536)
        await loop.sock_sendall(sock, upgrade_request() + SUBSCRIBE)
        await metrics_when(server, lambda now: now["subscriptions"] == 1)
        sent = 0
        while (await metrics(server))["outbox_bytes"] < 1 << 20:
            await publish(server, "s", LARGE)
            sent += len(LARGE)
        received, began = 0, loop.time()
        while received < sent:
            await asyncio.sleep(0.05)  # the reader's pace
            chunk = await loop.sock_recv(sock, 65_536)
            assert chunk, (received, sent, server.log())
            received += len(chunk)
        assert loop.time() - began > 2  # several times the timeout, or the test shows nothing
        assert (await metrics(server))["refusals_total{write_timeout}"] == 0
        sock.close()


# --- parameters of a connection -----------------------------------------------------------------------------------------------


async def test_invalid_ping_interval_does_not_break_the_connection(server: RunningServer) -> None:
    for interval in ("9" * 400, "-" + "9" * 400, "9" * 5000, "", "%00", "1e400", "\u0661"):
        async with cable(server, params={"pi": interval}) as client:
            await client.quiet()
    await metrics_when(server, lambda now: now["connections"] == 0)
