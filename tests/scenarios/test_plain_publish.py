"""Publishers on one kept connection to a running server: over TCP, TLS and Unix sockets, before an upgrade, with new keys."""

import asyncio
import json
import signal
import ssl
from pathlib import Path

import pytest

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
from tests.cable import cable
from tests.metrics import metrics
from tests.server import running_server
from tests.tcp import Tcp, tcp

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def publish_request(data: str, path: str = "/_broadcast", *headers: str) -> bytes:
    body = json.dumps({"stream": "news", "data": data}).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def publish_and_read(link: Tcp) -> None:
    """Publishing and reading take turns, one at a time and then all of it behind each other."""
    requests = [publish_request("1"), HEALTH, publish_request("2", "/api/publish"), HEALTH, publish_request("3")]
    for request in requests:
        await link.send(request)
        assert (await link.response())[0] in (200, 201)
    await link.send(b"".join(requests))
    assert [(await link.response())[0] for _ in requests] == [201, 200, 201, 200, 201]


@pytest.mark.parametrize("flags", [(), ("--data_dir",)], ids=["memory", "journal"])
async def test_publishing_and_reading_take_turns_on_one_connection(flags: tuple[str, ...], tmp_path: Path) -> None:
    durable = (*flags, str(tmp_path), "--durability", "journal") if flags else ()
    with running_server("--public", *durable) as server:
        async with tcp(server) as link, cable(server) as client:
            await client.subscribe("news")
            await publish_and_read(link)
            assert await client.messages(6) == [1, 2, 3, 1, 2, 3]
        assert (await metrics(server))["publications_total"] == 6


async def test_publishing_and_reading_take_turns_over_tls() -> None:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    with running_server("--public", "--ssl_cert", str(CERTIFICATE), "--ssl_key", str(KEY)) as server:
        async with tcp(server, tls=trust) as link:
            await publish_and_read(link)


async def test_publishing_and_reading_take_turns_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server("--public", "--host", f"unix:{path}"):
        reader, writer = await asyncio.open_unix_connection(path)
        await publish_and_read(Tcp(reader, writer))
        writer.close()
        await writer.wait_closed()


async def test_a_connection_that_has_published_may_become_a_websocket() -> None:
    with running_server("--public") as server:
        async with tcp(server) as link:
            await publish_and_read(link)
            await link.upgrade()


async def test_a_new_key_counts_on_connections_that_have_used_the_old_one(tmp_path: Path) -> None:
    config = tmp_path / "ropewalk.toml"

    def bearer(secret: str) -> str:
        return f"Authorization: Bearer {derive(secret, BROADCAST_PHRASE)}"

    config.write_text('[auth]\nsecret = "old"\n')
    with running_server("--config_path", str(config)) as server:
        async with tcp(server) as link:
            for _ in range(2):
                await link.send(publish_request("1", "/_broadcast", bearer("old")))
                assert (await link.response())[0] == 201
            config.write_text('[auth]\nsecret = "new"\n')
            server.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(15):
                while "settings reloaded" not in server.log():
                    await asyncio.sleep(0.02)
            await link.send(publish_request("1", "/_broadcast", bearer("old")))
            assert (await link.response())[0] == 401
            await link.send(publish_request("1", "/_broadcast", bearer("new")))
            assert (await link.response())[0] == 201
