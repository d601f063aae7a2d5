"""Connections by user and by address: limits and rates, over WebSocket, SSE and TCP alike."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ropewalk.adapters.apps.authenticators import issue_token
from ropewalk.client import connect
from ropewalk.core.backoff import Backoff
from ropewalk.protocol.broky.frames import Hello, Reason, Welcome
from tests.broky_client import BrokyClient, client, stranger
from tests.cable import Cable, cable
from tests.metrics import metrics, metrics_when
from tests.server import RunningServer, running_server
from tests.tcp import Tcp, upgrade_request
from tests.waiting import until

SECRET = "a secret that is long enough for HMAC"
ALICE, BOB = (issue_token(SECRET, f'{{"user":"{name}"}}') for name in ("alice", "bob"))
PROXY = "127.0.0.2"  # on Linux all of 127.0.0.0/8 is this machine
HOME, OFFICE = "203.0.113.1", "2001:db8::1"


async def refused_over_websocket(client: Cable) -> None:
    frame = await client.expect("disconnect")
    assert frame == {"type": "disconnect", "reason": "too_many_connections", "reconnect": True}
    assert await client.closed() == (1013, "Too many connections")


async def test_user_has_limited_connections_over_every_protocol() -> None:
    with running_server("--secret", SECRET, "--public_streams", "--sse", "--max_conn_per_user", "3") as server:
        events = f"{server.url}/events?stream=news&jid="
        async with (
            cable(server, params={"jid": ALICE}),
            client(server, ALICE),
            aiohttp.ClientSession() as http,
            http.get(events + ALICE) as stream,
        ):
            assert stream.status == 200
            async with cable(server, welcome=False, params={"jid": ALICE}) as late:
                await refused_over_websocket(late)
            async with http.get(events + ALICE) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "5")
                assert await response.json() == {"error": "too many connections"}
            async with stranger(server) as broky:
                broky.send(Hello(token=ALICE.encode()))
                error = await broky.ended()
                assert (error.reason, error.reconnect) == (Reason.OVERFLOW, True)
            assert (await metrics(server))["refusals_total{user_connections}"] == 3
            async with cable(server, params={"jid": BOB}), client(server, BOB):
                pass
        await metrics_when(server, lambda now: now["connections"] == 0)
        async with cable(server, params={"jid": ALICE}) as back:
            await back.quiet()


async def test_python_client_warns_of_a_refusal_and_connects_later(caplog: pytest.LogCaptureFixture) -> None:
    with running_server("--secret", SECRET, "--public_streams", "--max_conn_per_user", "1") as server:
        async with cable(server, params={"jid": ALICE}):
            late = connect(server.url, ALICE, backoff=Backoff(first=0.02, cap=0.2))
            connecting = asyncio.create_task(late.__aenter__())
            await until(lambda: "not connected, retrying: too_many_connections" in caplog.messages, "a warning")
        client = await connecting
        await client.subscribe("news")
        await late.__aexit__(None, None, None)


async def test_anonymous_clients_share_no_limit_by_user() -> None:
    with running_server("--public", "--max_conn_per_user", "1") as server:
        async with cable(server) as one, cable(server) as other:
            await one.quiet()
            await other.quiet()


# --- by address -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connection_from(server: RunningServer, address: str) -> AsyncIterator[Tcp]:
    """Through a proxy that tells the address of its client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(PROXY, 0))
    family, local = ("TCP6", "::1") if ":" in address else ("TCP4", "127.0.0.1")
    writer.write(f"PROXY {family} {address} {local} 50000 8080\r\n".encode())
    link = Tcp(reader, writer)
    try:
        yield link
    finally:
        link.abort()


@contextlib.asynccontextmanager
async def websocket_from(server: RunningServer, address: str) -> AsyncIterator[Tcp]:
    async with connection_from(server, address) as link:
        await link.send(upgrade_request(protocol="actioncable-v1-ext-json"))
        assert (await link.response())[0] == 101
        yield link


@contextlib.asynccontextmanager
async def broky_from(server: RunningServer, address: str) -> AsyncIterator[BrokyClient]:
    async with connection_from(server, address) as link:
        broky = BrokyClient(link._reader, link._writer)
        broky.send(Hello())
        yield broky


async def status_of_events_from(link: Tcp) -> int:
    await link.send(b"GET /events?stream=news HTTP/1.1\r\nHost: x\r\n\r\n")
    return int((await link.head()).split()[1])


def behind_a_proxy(*flags: str) -> contextlib.AbstractContextManager[RunningServer]:
    return running_server("--public", "--sse", "--trusted_proxies", PROXY, "--proxy_protocol", *flags)


async def test_address_has_limited_connections_over_every_protocol() -> None:
    with behind_a_proxy("--max_conn_per_address", "3") as server:
        async with (
            websocket_from(server, HOME) as websocket,
            broky_from(server, HOME) as broky,
            connection_from(server, HOME) as events,
        ):
            await websocket.frame_with(b"welcome")
            await broky.expect(Welcome)
            assert await status_of_events_from(events) == 200
            async with websocket_from(server, HOME) as late:
                await late.frame_with(b'"reason":"too_many_connections","reconnect":true')
                assert await late.close_code() == 1013
            async with connection_from(server, HOME) as late:
                assert await status_of_events_from(late) == 429
            async with broky_from(server, HOME) as refused:
                assert (await refused.ended()).reason == Reason.OVERFLOW
            assert (await metrics(server))["refusals_total{address_connections}"] == 3
            async with websocket_from(server, OFFICE) as other:
                await other.frame_with(b"welcome")
        await metrics_when(server, lambda now: now["connections"] == 0)
        async with websocket_from(server, HOME) as back:
            await back.frame_with(b"welcome")


async def test_address_that_connects_too_fast_is_refused_and_loopback_is_not() -> None:
    with behind_a_proxy("--conn_rate_per_address", "1") as server:
        answers = []
        while b"too_many_connections" not in answers:
            async with websocket_from(server, HOME) as link:
                _, frame = await link.frame()
                answers.append(b"welcome" if b"welcome" in frame else b"too_many_connections")
        assert len(answers) > 10
        assert (await metrics(server))["refusals_total{address_rate}"] == 1
        for _ in range(20):
            async with cable(server):
                pass
