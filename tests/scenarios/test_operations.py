"""What whoever runs the server relies on: health, a graceful end, TLS, one port for everything, logs without secrets."""

import asyncio
import json
import re
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk import __version__
from ropewalk.client import Unreachable, connect
from tests.cable import Cable, Closed, cable, identifier, kind
from tests.clients.credentials import BROADCAST_KEY, SECRET, token
from tests.metrics import metrics, metrics_when
from tests.server import RunningServer, publish, running_server
from tests.tcp import Tcp, client_frame, tcp, upgrade_request

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"  # for 127.0.0.1, good for nothing else
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
STOP_SECONDS = 20


async def health(link: Tcp) -> tuple[int, dict[str, object]]:
    await link.send(HEALTH)
    status, body = await link.response()
    return status, json.loads(body)


async def exit_code(server: RunningServer) -> int:
    return await asyncio.to_thread(server.process.wait, STOP_SECONDS)


# --- the end --------------------------------------------------------------------------------------------------------


async def test_a_graceful_end_tells_every_client_to_come_back_and_exits_well() -> None:
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
        assert "Traceback" not in server.log(), server.log()


async def test_clients_are_sent_away_one_after_another_and_served_until_then() -> None:
    with running_server("--public", "--shutdown_spread", "2s") as server:
        clients = [await Cable.connect(server.cable) for _ in range(100)]
        for client in clients:
            await client.welcomed()
            await client.subscribe("news")
        first_told = asyncio.Event()

        async def stay(client: Cable) -> list[str]:
            kinds: list[str] = []
            try:
                while True:
                    kinds.append(kind(await client.next()))
                    if kinds[-1] == "disconnect":
                        first_told.set()
            except Closed:
                await client.close()
                return kinds

        async with aiohttp.ClientSession() as http:  # new connections are not taken any more, this one is kept alive
            async with http.get(f"{server.url}/health") as response:
                assert response.status == 200
            staying = [asyncio.create_task(stay(client)) for client in clients]
            server.process.send_signal(signal.SIGTERM)
            await first_told.wait()
            async with http.post(f"{server.url}/_broadcast", json={"stream": "news", "data": "late"}) as response:
                assert response.status == 201
            stories = await asyncio.gather(*staying)
        assert all(story[-1] == "disconnect" for story in stories)
        told_later = [story for story in stories if story == ["message", "disconnect"]]
        assert told_later
        assert len(told_later) < len(stories)
        assert await exit_code(server) == 0


async def test_health_is_bad_while_the_server_says_goodbye() -> None:
    with running_server("--public", "--shutdown_spread", "2s") as server:
        clients = [await Cable.connect(server.cable) for _ in range(100)]
        async with tcp(server) as link:
            assert await health(link) == (200, {"status": "ok"})
            server.process.send_signal(signal.SIGTERM)
            await clients[0].until("disconnect")
            assert await health(link) == (503, {"status": "down", "reasons": ["shutting down"]})
        await asyncio.gather(*(client.cut() for client in clients))
        assert await exit_code(server) == 0


async def test_a_second_signal_means_now() -> None:
    with running_server("--public", "--shutdown_delay", "60s") as server:
        server.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_SECONDS):
            while "shutting down" not in server.log():
                await asyncio.sleep(0.02)
            while server.process.poll() is None:  # one that comes right after the first counts as the same
                server.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.1)
        assert server.process.returncode == 1


# --- one port, with and without TLS -----------------------------------------------------------------------------------


async def test_tls_carries_websocket_and_http_on_the_same_port() -> None:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    with running_server("--public", "--sse", "--ssl_cert", str(CERTIFICATE), "--ssl_key", str(KEY)) as server:
        assert server.url.startswith("https://")
        async with cable(server, ssl=trust) as client, aiohttp.ClientSession() as http:
            await client.subscribe("news")
            async with http.get(f"{server.url}/events?stream=news", ssl=trust) as events:
                message = {"stream": "news", "data": json.dumps("." * 500_000)}  # more than one write takes
                async with http.post(f"{server.url}/_broadcast", json=message, ssl=trust) as response:
                    assert response.status == 201
                assert await client.messages(1) == ["." * 500_000]
                received = b""
                while b"." * 500_000 not in received:
                    received += await events.content.readany()
        async with tcp(server, tls=trust) as link:
            assert (await health(link))[0] == 200
            await link.upgrade()
            await link.send(client_frame(b'{"command":"ping"}'))
            assert await link.frame() == (1, b'{"type":"pong"}')
        with pytest.raises(aiohttp.ClientConnectionError):
            await Cable.connect(server.cable.replace("wss", "ws"))


async def test_an_upgrade_may_come_later_on_a_connection_that_was_kept_alive() -> None:
    with running_server("--public") as server:
        async with tcp(server) as link:
            assert (await health(link))[0] == 200
            await link.upgrade()
            await link.send(client_frame(json.dumps({"command": "subscribe", "identifier": identifier("news")}).encode()))
            assert b"confirm_subscription" in (await link.frame())[1]
            await publish(server, "news", "hello")
            assert b"hello" in (await link.frame())[1]
        await metrics_when(server, lambda now: now["sessions"] == 0)
        assert "Traceback" not in server.log(), server.log()


@pytest.mark.parametrize(
    ("wrong", "status"), [(upgrade_request(sec_websocket_key=None), 400), (upgrade_request(path="/nowhere"), 404)]
)
async def test_a_bad_upgrade_on_a_kept_connection_is_refused_too(wrong: bytes, status: int) -> None:
    with running_server("--public", "--max_conn", "3") as server:
        for _ in range(5):  # and does not count as a connection for ever
            async with tcp(server) as link:
                assert (await health(link))[0] == 200
                await link.send(wrong)
                assert (await link.response())[0] == status
        assert "Traceback" not in server.log(), server.log()


# --- who may come, what is written down ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def choosy() -> Iterator[RunningServer]:
    with running_server("--public", "--sse", "--allowed_origins", "example.com,*.example.org") as server:
        yield server


@pytest.mark.parametrize("origin", ["https://evil.example", "https://example.com.evil.example", "nonsense"])
async def test_pages_of_other_origins_are_refused(choosy: RunningServer, origin: str) -> None:
    before = await metrics(choosy)
    assert "refusals_total{origin}" in before
    headers = {"Origin": origin}
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await Cable.connect(choosy.cable, headers=headers)
    async with aiohttp.ClientSession() as http, http.get(f"{choosy.url}/events?stream=news", headers=headers) as response:
        assert response.status == 403
    assert (await metrics(choosy))["refusals_total{origin}"] == before["refusals_total{origin}"] + 2


async def test_programs_tell_no_origin_and_are_served_unless_one_is_required(choosy: RunningServer) -> None:
    async with cable(choosy) as client:
        await client.quiet()
    with running_server("--public", "--allowed_origins", "example.com", "--require_origin") as strict:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await Cable.connect(strict.cable)
        with pytest.raises(Unreachable, match="--allowed_origins"):
            async with connect(strict.url):
                pass


@pytest.mark.parametrize("origin", ["https://example.com", "https://EXAMPLE.com", "http://a.example.org"])
async def test_pages_of_allowed_origins_are_served(choosy: RunningServer, origin: str) -> None:
    async with cable(choosy, headers={"Origin": origin}) as client:
        await client.quiet()


async def test_logs_are_json_lines_without_a_secret() -> None:
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
        told = {line["message"] for line in lines}
        assert {"malformed frame", "refused", "shutting down", "stopped", "in", "out", "registered", "request"} <= told
        assert any(line["message"] == "registered" and "hello" in line["data"] for line in lines)
        assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
        for secret in (SECRET, BROADCAST_KEY, good, bad, sid):
            assert secret not in log


async def test_refusals_are_summed_up_at_the_usual_level_and_told_one_by_one_at_debug_level_without_payloads() -> None:
    with running_server("--secret", SECRET) as usual, running_server("--secret", SECRET, "--log_level", "debug") as telling:
        for server in (usual, telling):
            for _ in range(3):
                async with cable(server, welcome=False, params={"jid": "no token"}) as client:
                    assert (await client.expect("disconnect"))["reason"] == "unauthorized"
            await publish(server, "news", "a payload", key=BROADCAST_KEY)
            server.stop()
            assert re.search(r"info ropewalk.node: refused in the last \d+ s .*auth=\d", server.log())
            assert "a payload" not in server.log()
        assert usual.log().count("ropewalk.session: refused") == 0
        assert telling.log().count("ropewalk.session: refused") == 3


@pytest.mark.parametrize("workers", ["1", "2"])
def test_cookies_for_an_application_without_a_word_about_origins_are_warned_of(workers: str) -> None:
    application = ("--rpc_host", "http://127.0.0.1:1/rpc", "--workers", workers)
    with running_server(*application) as careless, running_server(*application, "--allowed_origins", "x.test") as careful:
        assert "set --allowed_origins" in careless.log()
        assert "set --allowed_origins" not in careful.log()


def test_a_preset_says_what_it_chose_and_why() -> None:
    with running_server("--public", "--presets=broker") as server:
        chosen = "preset broker: neither Redis nor NATS is configured; so --broadcast_adapter=http --broker=memory"
        assert server.log().count(chosen) == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--max_message_size", "0"), "--max_message_size wants more than 0"),
        (("--rpc_host", "ftp://app.test/rpc"), "--rpc_host"),
        (("--allowed_origins", "https://example.com"), "leave the scheme away"),
        (("--jwt_param=",), "--jwt_param wants a name"),
        (("--pubsub=redis",), "--pubsub=redis joins several nodes"),
        (("--broadcaster=redis", "--redis_url=http://example.com"), "--redis_url wants redis://"),
    ],
)
def test_a_value_that_can_never_work_is_refused_at_the_start(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(AssertionError, match=said), running_server("--noauth", *flags):
        pass


async def test_the_metrics_say_which_build_runs(choosy: RunningServer) -> None:
    builds = [name for name in await metrics(choosy) if name.startswith("build_info")]
    assert [f"{{{__version__}}}" in name for name in builds] == [True]
