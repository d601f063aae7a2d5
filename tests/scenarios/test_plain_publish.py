"""Publishers that keep their connection: over TCP, TLS and Unix sockets, before an upgrade, and with a new key."""

import asyncio
import json
import signal
from pathlib import Path

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
from tests.cable import cable
from tests.certificates import trusting_context
from tests.metrics import metrics
from tests.server import RunningServer, running_server
from tests.tcp import HEALTH, Tcp, tcp
from tests.waiting import until

STREAM = "alternating"


def publish_request(data: str, path: str = "/_broadcast", *headers: str) -> bytes:
    body = json.dumps({"stream": STREAM, "data": data}).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def publish_and_read(link: Tcp) -> None:
    """Requests one at a time, and then all of them pipelined."""
    requests = [publish_request("1"), HEALTH, publish_request("2", "/api/publish"), HEALTH, publish_request("3")]
    for request in requests:
        await link.send(request)
        assert (await link.response())[0] in (200, 201)
    await link.send(b"".join(requests))
    assert [(await link.response())[0] for _ in requests] == [201, 200, 201, 200, 201]


async def test_publishing_and_reading_alternate_on_one_connection(server: RunningServer) -> None:
    before = (await metrics(server))["publications_total"]
    async with tcp(server) as link, cable(server) as client:
        await client.subscribe(STREAM)
        await publish_and_read(link)
        assert await client.messages(6) == [1, 2, 3, 1, 2, 3]
        assert (await metrics(server))["publications_total"] == before + 6
        await link.upgrade()


async def test_publishing_and_reading_alternate_over_tls(tls_server: RunningServer) -> None:
    async with tcp(tls_server, tls=trusting_context()) as link:
        await publish_and_read(link)


async def test_publishing_and_reading_alternate_over_a_unix_socket_with_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server("--public", "--host", f"unix:{path}", "--data_dir", str(tmp_path / "data"), "--durability", "journal"):
        reader, writer = await asyncio.open_unix_connection(path)
        await publish_and_read(Tcp(reader, writer))
        writer.close()
        await writer.wait_closed()


async def test_new_key_holds_for_connections_that_used_the_old_one(tmp_path: Path) -> None:
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
            await until(lambda: "settings reloaded" in server.log(), "a line in the log")
            await link.send(publish_request("1", "/_broadcast", bearer("old")))
            assert (await link.response())[0] == 401
            await link.send(publish_request("1", "/_broadcast", bearer("new")))
            assert (await link.response())[0] == 201
