"""Operating a server: health, graceful shutdown, TLS, one port for all protocols, origins, and logs without secrets."""

import asyncio
import contextlib
import json
import re
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from ropewalk import __version__
from ropewalk.app.process_end import ECHO_SECONDS
from ropewalk.client import Unreachable, connect
from ropewalk.engine.node import DRAIN_STEP
from tests.cable import Cable, Closed, cable, identifier, kind
from tests.certificates import trusting_context
from tests.clients.credentials import BROADCAST_KEY, SECRET, token
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import WORKERS, ServerWith
from tests.server import RunningServer, publish, running_server
from tests.tcp import HEALTH, Tcp, client_frame, tcp, upgrade_request
from tests.waiting import until

STOP_SECONDS = 60
CROWDS = (40, 400, 800)
"""Numbers of clients. More take longer to disconnect one by one. The first number that is enough for a request on this machine
is used."""


async def health(link: Tcp) -> tuple[int, dict[str, object]]:
    await link.send(HEALTH)
    status, body = await link.response()
    return status, json.loads(body)


async def exit_code(server: RunningServer) -> int:
    return await asyncio.to_thread(server.process.wait, STOP_SECONDS)


# --- shutdown -------------------------------------------------------------------------------------------------------


async def test_graceful_shutdown_asks_clients_to_reconnect_and_exits_with_0() -> None:
    with running_server("--public", "--sse") as server:
        async with cable(server) as client, aiohttp.ClientSession() as http:
            await client.subscribe("news")
            async with http.get(f"{server.url}/events?stream=news") as events:
                server.process.send_signal(signal.SIGTERM)
                assert (await client.expect("disconnect"))["reason"] == "server_restart"
                assert client.received[-1]["reconnect"] is True
                assert await client.closed() == (1001, "Server restart")
                assert b'"reason":"server_restart"' in await events.content.read()
        assert await exit_code(server) == 0


async def test_clients_are_disconnected_one_by_one_and_served_until_then() -> None:
    for count in CROWDS:
        if await crowd_is_served_until_disconnected(count):
            return
    pytest.fail("no request was sent before all clients were disconnected")


async def crowd_is_served_until_disconnected(count: int) -> bool:
    """False if the server may have disconnected all clients before the requests of the test."""
    with running_server("--public", "--shutdown_spread", "60s", "--shutdown_timeout", "120s") as server:
        clients = [await Cable.connect(server.cable) for _ in range(count)]
        for client in clients:
            await client.welcomed()
            await client.subscribe("news")
        first_disconnect = asyncio.Event()

        async def stay(client: Cable) -> list[str]:
            kinds: list[str] = []
            try:
                while True:
                    kinds.append(kind(await client.next()))
                    if kinds[-1] == "disconnect":
                        first_disconnect.set()
            except Closed:
                await client.close()
                return kinds

        # Connections that are open already: the server accepts no others during its shutdown.
        async with aiohttp.ClientSession() as http, tcp(server) as link:
            async with http.get(f"{server.url}/health") as response:
                assert response.status == 200
            assert await health(link) == (200, {"status": "ok"})
            staying = [asyncio.create_task(stay(client)) for client in clients]
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await first_disconnect.wait()
            published, found = 0, None
            with contextlib.suppress(aiohttp.ClientError, OSError, EOFError):  # the server has ended
                async with http.post(f"{server.url}/_broadcast", json={"stream": "news", "data": "late"}) as response:
                    published = response.status
                found = await health(link)
            in_time = time.monotonic() - begun < (count - 1) * DRAIN_STEP
            received = await asyncio.gather(*staying)
        if not in_time:
            return False
        assert published == 201
        assert found == (503, {"status": "down", "reasons": ["shutting down"]})
        assert all(kinds[-1] == "disconnect" for kinds in received)
        assert 0 < received.count(["message", "disconnect"]) < len(received)
        assert await exit_code(server) == 0
    return True


async def test_second_signal_ends_the_server_at_once() -> None:
    with running_server("--public", "--shutdown_delay", "10m") as server:
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: "shutting down" in server.log(), "a line in the log")
        await asyncio.sleep(2 * ECHO_SECONDS)  # a signal right after the first counts as the same
        server.process.send_signal(signal.SIGTERM)
        assert await exit_code(server) == 1


# --- one port, with and without TLS -----------------------------------------------------------------------------------


async def test_tls_carries_websocket_and_http_on_the_same_port(tls_server: RunningServer) -> None:
    assert tls_server.url.startswith("https://")
    async with cable(tls_server, ssl=trusting_context()) as client, aiohttp.ClientSession() as http:
        await client.subscribe("same port")
        async with http.get(f"{tls_server.url}/events?stream=same%20port", ssl=trusting_context()) as events:
            message = {"stream": "same port", "data": json.dumps("." * 500_000)}  # more than one write takes
            async with http.post(f"{tls_server.url}/_broadcast", json=message, ssl=trusting_context()) as response:
                assert response.status == 201
            assert await client.messages(1) == ["." * 500_000]
            received = b""
            while b"." * 500_000 not in received:
                received += await events.content.readany()
    async with tcp(tls_server, tls=trusting_context()) as link:
        assert (await health(link))[0] == 200
        await link.upgrade()
        await link.send(client_frame(b'{"command":"ping"}'))
        await link.frame_with(b'{"type":"pong"}')
    with pytest.raises(aiohttp.ClientConnectionError):
        await Cable.connect(tls_server.cable.replace("wss", "ws"))


async def test_kept_connection_may_be_upgraded(server: RunningServer) -> None:
    async with tcp(server) as link:
        assert (await health(link))[0] == 200
        await link.upgrade()
        await link.send(client_frame(json.dumps({"command": "subscribe", "identifier": identifier("upgraded")}).encode()))
        await link.frame_with(b"confirm_subscription")
        await publish(server, "upgraded", "hello")
        await link.frame_with(b"hello")
    await metrics_when(server, lambda now: now["connections"] == 0)


async def test_bad_upgrade_of_a_kept_connection_is_refused_and_takes_no_place(server_with: ServerWith) -> None:
    server = server_with("--public", "--sse", "--max_conn", "3")
    for wrong, status in ((upgrade_request(sec_websocket_key=None), 400), (upgrade_request(path="/nowhere"), 404)):
        for _ in range(5):  # more than there are places
            async with tcp(server) as link:
                assert (await health(link))[0] == 200
                await link.send(wrong)
                assert (await link.response())[0] == status


# --- origins, presets, metrics ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def choosy(server_with: ServerWith) -> RunningServer:
    return server_with("--public", "--sse", "--presets=broker", "--allowed_origins", "example.com,*.example.org")


async def test_page_of_another_origin_is_refused(choosy: RunningServer) -> None:
    refused = (await metrics(choosy))["refusals_total{origin}"]
    for origin in ("https://evil.example", "https://example.com.evil.example", "nonsense"):
        headers = {"Origin": origin}
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await Cable.connect(choosy.cable, headers=headers)
        async with aiohttp.ClientSession() as http, http.get(f"{choosy.url}/events?stream=news", headers=headers) as response:
            assert response.status == 403, origin
        refused += 2
        assert (await metrics(choosy))["refusals_total{origin}"] == refused, origin


async def test_page_of_an_allowed_origin_is_served(choosy: RunningServer) -> None:
    for origin in ("https://example.com", "https://EXAMPLE.com", "http://a.example.org"):
        async with cable(choosy, headers={"Origin": origin}) as client:
            await client.quiet()


async def test_client_without_an_origin_is_served_unless_one_is_required(choosy: RunningServer) -> None:
    async with cable(choosy) as client:
        await client.quiet()
    with running_server("--public", "--allowed_origins", "example.com", "--require_origin") as strict:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await Cable.connect(strict.cable)
        with pytest.raises(Unreachable, match="--allowed_origins"):
            async with connect(strict.url):
                pass


async def test_preset_is_logged_with_its_choice_and_reason(choosy: RunningServer) -> None:
    chosen = "preset broker: neither Redis nor NATS is configured; so --broadcast_adapter=http --broker=memory"
    assert choosy.log().count(chosen) == 1


async def test_metrics_name_the_version(choosy: RunningServer) -> None:
    builds = [name for name in await metrics(choosy) if name.startswith("build_info")]
    assert [f"{{{__version__}}}" in name for name in builds] == [True]


# --- logs and errors at the start ---------------------------------------------------------------------------------------


async def test_logs_are_json_lines_without_secrets() -> None:
    flags = ("--secret", SECRET, "--log_format", "json", "--debug", "--public_streams")
    with running_server(*flags) as server:
        good = token()
        async with cable(server, params={"jid": good}) as client:
            sid = client.sid
            await client.subscribe("news")
            await publish(server, "news", "hello", key=BROADCAST_KEY)
            await client.messages(1)
            await client.send_raw("nonsense")
            assert (await client.closed())[0] == 1007
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health", params={"jid": good}) as answer:
            assert answer.status == 200
        bad = token(secret="wrong secret of more than thirty-two bytes")
        async with cable(server, welcome=False, params={"jid": bad}) as client:
            assert (await client.expect("disconnect"))["reason"] == "unauthorized"
        assert server.stop() == 0
        log = server.log()
        lines = [json.loads(line) for line in log.splitlines() if not line.startswith("ropewalk listening on")]
        messages = {line["message"] for line in lines}
        assert {"malformed frame", "refused", "shutting down", "stopped", "in", "out", "registered", "request"} <= messages
        assert any(line["message"] == "registered" and "hello" in line["data"] for line in lines)
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        for secret in (SECRET, BROADCAST_KEY, good, bad, sid):
            assert secret not in log


async def test_refusals_are_logged_as_a_sum_and_at_debug_level_one_by_one() -> None:
    with running_server("--secret", SECRET) as usual, running_server("--secret", SECRET, "--log_level", "debug") as verbose:
        for server in (usual, verbose):
            for _ in range(3):
                async with cable(server, welcome=False, params={"jid": "no token"}) as client:
                    assert (await client.expect("disconnect"))["reason"] == "unauthorized"
            await publish(server, "news", "a payload", key=BROADCAST_KEY)
            server.stop()
            assert re.search(r"info ropewalk.node: refused in the last \d+ s .*auth=\d", server.log())
            assert "a payload" not in server.log()
        assert usual.log().count("ropewalk.session: refused") == 0
        assert verbose.log().count("ropewalk.session: refused") == 3


@pytest.mark.parametrize("flags", [(), pytest.param(WORKERS, marks=pytest.mark.tier("all"))], ids=["alone", "workers"])
def test_application_without_allowed_origins_is_warned_about(flags: tuple[str, ...]) -> None:
    application = ("--rpc_host", "http://127.0.0.1:1/rpc", *flags)
    with running_server(*application) as careless, running_server(*application, "--allowed_origins", "x.test") as careful:
        assert "set --allowed_origins" in careless.log()
        assert "set --allowed_origins" not in careful.log()
    with running_server(*application, "--allowed_origins", "*") as careless:
        assert "set --allowed_origins" in careless.log()


@pytest.mark.parametrize("flags", [(), pytest.param(WORKERS, marks=pytest.mark.tier("all"))], ids=["alone", "workers"])
def test_endpoints_without_a_key_are_warned_about(flags: tuple[str, ...], tmp_path: Path) -> None:
    warnings = {
        "--api_secret": "the REST API needs no key: anyone may publish, read streams and disconnect users",
        "--broadcast_key": "publishing over HTTP needs no key",
        "--journal_token": "the journal needs no key: anyone may read it and write to it",
    }
    options = ("--secret", "s" * 32, "--data_dir", str(tmp_path), *flags)
    for opened in warnings:
        with running_server(*options, opened, "none") as server:
            log = server.log()
        assert [flag for flag, warning in warnings.items() if f"warn ropewalk.server: {warning}" in log] == [opened]


def test_invalid_setting_ends_the_start_with_its_error() -> None:
    """Errors that are found while the settings are read, checked together, and used. tests/unit/app has all of them."""
    for flags, error in (
        (("--max_message_size", "0"), "--max_message_size wants more than 0"),
        (("--pubsub=redis",), "--pubsub=redis connects nodes"),
        (("--rpc_host", "ftp://app.test/rpc"), "--rpc_host"),
    ):
        with pytest.raises(AssertionError, match=error), running_server("--noauth", *flags):
            pass
