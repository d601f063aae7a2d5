"""What one WebSocket client can make the server keep, handle or wait for is bounded, and what is refused is counted."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from ropewalk.adapters.endpoints.websocket import KERNEL_BUFFER
from tests.cable import cable, identifier
from tests.metrics import metrics, metrics_when
from tests.server import publish, running_server
from tests.tcp import CONTINUATION, PING, TEXT, Tcp, client_frame, tcp, upgrade_request

LARGE = "." * 60_000
EMPTY_FRAGMENT = client_frame(b"", CONTINUATION, fin=False)
SUBSCRIBE = client_frame(json.dumps({"command": "subscribe", "identifier": identifier("s")}).encode())
PENDING = 1 << 20


# --- fragments ------------------------------------------------------------------------------------------------------------


async def test_a_message_in_endless_fragments_is_refused_and_nothing_after_it_is_handled() -> None:
    with running_server("--public") as server:
        async with tcp(server, upgraded=True) as link, cable(server) as neighbour:
            await link.send(
                client_frame(b"{", TEXT, fin=False) + EMPTY_FRAGMENT * 200_000 + client_frame(b'{"command":"ping"}')
            )
            assert await link.close_code() == 1009
            await neighbour.quiet()
            found = await metrics(server)
            assert found["refusals_total{fragments}"] == 1
            assert found["commands_total"] == 1  # the neighbour's own


async def test_fragments_are_bounded_before_anybody_is_known() -> None:
    """The application never answers, so that the session does not open."""
    with running_server("--rpc_host", "http://127.0.0.1:9/", "--rpc_command_timeout", "60000") as server:
        async with tcp(server) as link:
            await link.send(upgrade_request() + client_frame(b"{", TEXT, fin=False))
            await link.head()
            await link.send(EMPTY_FRAGMENT * 2000)
            await metrics_when(server, lambda now: now["refusals_total{fragments}"] == 1 and now["connections"] == 0)


async def test_a_client_that_does_not_wait_for_the_handshake_may_send_little_ahead() -> None:
    with running_server("--public") as server:
        async with tcp(server) as link:
            await link.send(upgrade_request() + EMPTY_FRAGMENT * 1000)
            assert (await link.response())[0] == 400
        async with tcp(server) as link:
            await link.send(upgrade_request() + client_frame(b'{"command":"ping"}') * 100)
            await link.head()
            await link.frame_with(b"pong")


async def test_a_message_in_a_thousand_fragments_is_a_message() -> None:
    message = b'{"command":"ping"}' + b" " * 982
    with running_server("--public") as server:
        async with tcp(server, upgraded=True) as link:
            for place in range(len(message)):
                last = place == len(message) - 1
                await link.send(client_frame(message[place : place + 1], CONTINUATION if place else TEXT, fin=last))
            assert await link.frame() == (TEXT, b'{"type":"pong"}')


# --- pings of the client ------------------------------------------------------------------------------------------------------


async def test_pings_are_answered_with_what_they_carried() -> None:
    with running_server("--public", "--ping_interval", "0") as server:
        async with tcp(server, upgraded=True) as link:
            for payload in (b"", b"hello", b"." * 125):
                await link.send(client_frame(payload, PING))
                assert await link.frame() == (0xA, payload)


async def test_of_pings_that_come_together_the_newest_is_answered() -> None:
    with running_server("--public", "--ping_interval", "0") as server:
        async with tcp(server, upgraded=True) as link:
            await link.send(b"".join(client_frame(b"%d" % number, PING) for number in range(5)))
            answered = -1
            while answered < 4:
                opcode, payload = await link.frame()
                assert (opcode, int(payload) > answered) == (0xA, True)
                answered = int(payload)


async def test_pings_of_a_client_that_does_not_read_make_the_server_keep_nothing() -> None:
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
                await asyncio.wait([sending], timeout=0.1)
            sending.cancel()
            link.abort()


async def test_the_kernel_holds_little_of_what_a_client_sends_faster_than_it_is_handled() -> None:
    flood = client_frame(b'{"command":"ping","more":"%b"}' % (b"." * 5000)) * 200  # a megabyte
    with running_server("--public", "--ping_interval", "0") as server:
        async with tcp(server, upgraded=True) as link, cable(server) as neighbour:
            sending = asyncio.create_task(_send_all(link, flood, 40))
            handled = 0.0
            while handled < 800:
                await neighbour.quiet()
                assert _unread(server.port) <= 2 * KERNEL_BUFFER  # the kernel doubles what it is told
                handled = (await metrics(server))["commands_total"]
            sending.cancel()
            link.abort()


def _unread(port: int) -> int:
    """Bytes that the kernel has for connections to this port and that were not read, of the one with the most."""
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


@pytest.mark.parametrize("interval", ["0", "3600"])
async def test_a_client_that_takes_nothing_is_closed_however_rarely_it_is_pinged(interval: str) -> None:
    flags = ("--ws_write_timeout", "1s", "--ws_max_pending_size", str(256 << 20), "--history_limit", "0")
    with running_server("--public", *flags) as server:
        reader, writer = await asyncio.open_connection(sock=_connected(server.port, 8192))
        link = Tcp(reader, writer)
        await link.send(upgrade_request(f"/cable?pi={interval}"))
        await link.send(SUBSCRIBE)
        await metrics_when(server, lambda now: now["subscriptions"] == 1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # an asyncio.Transport
        while (await metrics(server))["outbox_bytes"] == 0:
            await publish(server, "s", LARGE)
        for _ in range(5):
            await publish(server, "s", LARGE)
        found = await metrics_when(server, lambda now: now["refusals_total{write_timeout}"] == 1)
        assert found["slow_disconnects_total"] == 0
        await metrics_when(server, lambda now: now["connections"] == 0 and now["outbox_bytes"] == 0)
        writer.close()


@pytest.mark.alone
async def test_a_slow_but_steady_reader_gets_everything() -> None:
    """It takes several times the write timeout for what waits, and never catches up before the end."""
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


# --- what a connection may ask for --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", ["9" * 400, "-" + "9" * 400, "9" * 5000, "", "%00", "1e400", "\u0661"])
async def test_no_ping_interval_breaks_a_connection(interval: str) -> None:
    with running_server("--public") as server:
        async with cable(server, params={"pi": interval}) as client:
            await client.quiet()
        await metrics_when(server, lambda now: now["connections"] == 0)
        assert "Traceback" not in server.log()
