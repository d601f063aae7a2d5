"""Servers behind proxies: the address and scheme of the client, from headers or the PROXY protocol of trusted proxies only.

The configurations of nginx, haproxy and Caddy are those of docs/how-to/deploy.md, with the ports and certificates of the test.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ropewalk.client import connect
from tests.certificates import CERTIFICATE, KEY, trusting_context
from tests.docs.pages import ROOT, blocks
from tests.prerequisites import proxy_path
from tests.scenarios.python_clients import PATIENT
from tests.server import RunningServer, publish, running_server
from tests.services import free_port
from tests.tcp import HEALTH, Tcp, client_frame, tcp, upgrade_request

PAGE = ROOT / "docs" / "how-to" / "deploy.md"
CLIENT = "127.0.0.2"  # on Linux all of 127.0.0.0/8 is this machine
TIMEOUT = 60.0

WHERE = """
from ropewalk import App, Channel, Connection

app = App()


@app.on_connect
async def connect(connection: Connection) -> None:
    connection.identify(id=1)


@app.channel
class WhereChannel(Channel):
    async def subscribed(self) -> None:
        self.transmit({"remote": self.connection.remote, "url": self.connection.url})
        self.stream_from("news")
"""
SUBSCRIBE = json.dumps({"command": "subscribe", "identifier": '{"channel":"WhereChannel"}'})


@contextlib.contextmanager
def observing(directory: Path, *flags: str) -> Iterator[RunningServer]:
    """A server whose channel sends its clients their address and URL."""
    (directory / "where.py").write_text(WHERE)
    with running_server(
        "--app", "where:app", "--app_dir", str(directory), "--sse", "--broadcast_key", "none", *flags
    ) as server:
        yield server


@contextlib.asynccontextmanager
async def http(local: str = "127.0.0.1") -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(local_addr=(local, 0), ssl=trusting_context())
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:
        yield session


async def over_websocket(url: str, headers: dict[str, str], local: str = "127.0.0.1") -> dict[str, Any]:
    async with http(local) as session, session.ws_connect(f"{url}/cable", headers=headers) as ws:
        await ws.send_str(SUBSCRIBE)
        seen: dict[str, Any] = await _seen(ws)
        return seen


async def _seen(ws: aiohttp.ClientWebSocketResponse) -> Any:
    while "message" not in (frame := await ws.receive_json()) or frame.get("type"):
        pass
    return frame["message"]


async def over_sse(url: str, headers: dict[str, str], local: str = "127.0.0.1") -> dict[str, Any]:
    async with http(local) as session, session.get(f"{url}/events?channel=WhereChannel", headers=headers) as events:
        async for line in events.content:
            if line.startswith(b"data: ") and b'"remote"' in line:
                seen: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return seen
    raise AssertionError("the stream ended")


async def over_late_upgrade(url: str, headers: dict[str, str], local: str = "127.0.0.1") -> dict[str, Any]:
    host, _, port = url.rpartition("//")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(local, 0))
    link = Tcp(reader, writer)
    await link.send(HEALTH)
    assert (await link.response())[0] == 200
    head = upgrade_request(**{name.lower().replace("-", "_"): value for name, value in headers.items()})
    seen = await _seen_by_frames(link, head)
    writer.close()
    return seen


async def _seen_by_frames(link: Tcp, head: bytes) -> dict[str, Any]:
    await link.send(head)
    assert (await link.response())[0] == 101
    await link.send(client_frame(SUBSCRIBE.encode()))
    while "remote" not in (message := json.loads((await link.frame())[1]).get("message") or {}):
        pass
    seen: dict[str, Any] = message
    return seen


WAYS: dict[str, Callable[..., Any]] = {"websocket": over_websocket, "sse": over_sse, "late upgrade": over_late_upgrade}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with observing(tmp_path_factory.mktemp("app"), "--trusted_proxies", "127.0.0.1,10.0.0.0/8") as server:
        yield server


async def test_headers_of_a_trusted_proxy_give_address_and_scheme(server: RunningServer) -> None:
    headers = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9, 10.1.2.3", "X-Forwarded-Proto": "https"}
    for name, way in WAYS.items():
        seen = await way(server.url, headers)
        assert (seen["remote"], seen["url"].partition(":")[0]) == ("203.0.113.9", "https"), name


async def test_headers_of_other_clients_are_ignored(server: RunningServer) -> None:
    headers = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
    for name, way in WAYS.items():
        seen = await way(server.url, headers, CLIENT)
        assert (seen["remote"], seen["url"].partition(":")[0]) == (CLIENT, "http"), name


# --- the PROXY protocol -------------------------------------------------------------------------------------------------

V1 = b"PROXY TCP4 203.0.113.9 127.0.0.1 5000 80\r\n"
V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes([203, 0, 113, 9, 127, 0, 0, 1, 0, 1, 0, 2])


async def test_proxy_header_gives_the_address_and_is_required_of_trusted_proxies(tmp_path: Path) -> None:
    with observing(tmp_path, "--trusted_proxies", "127.0.0.1", "--proxy_protocol") as server:
        for header in (V1, V2):
            async with tcp(server) as link:
                await link.send(header)
                assert (await _seen_by_frames(link, upgrade_request()))["remote"] == "203.0.113.9"
            async with tcp(server) as link:  # and on a connection that begins as HTTP
                await link.send(header + HEALTH)
                assert (await link.response())[0] == 200
                assert (await _seen_by_frames(link, upgrade_request()))["remote"] == "203.0.113.9"
        async with tcp(server) as link:
            await link.send(upgrade_request())
            assert (await link.response())[0] == 400
        assert (await over_websocket(server.url, {}, CLIENT))["remote"] == CLIENT  # not a proxy: no header


# --- listening addresses-------------------------------------------------------------------------------------------------


async def test_unix_socket_serves_all_protocols_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ropewalk.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with observing(tmp_path, "--host", f"unix:{path}", "--trusted_proxies", "unix") as server:
        assert server.url == f"unix:{path}"
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
            async with session.get("http://unix/health") as response:
                assert response.status == 200
            async with session.ws_connect("http://unix/cable", headers={"X-Forwarded-For": "203.0.113.9"}) as ws:
                await ws.send_str(SUBSCRIBE)
                assert (await _seen(ws))["remote"] == "203.0.113.9"
        with pytest.raises(AssertionError, match="another process does"), running_server("--public", "--host", f"unix:{path}"):
            pass
        assert server.stop() == 0
    assert not path.exists()


async def test_address_of_all_families_serves_ipv4_and_ipv6() -> None:
    with running_server("--public", "--host", "::") as server:
        for host in ("127.0.0.1", "[::1]"):
            async with connect(f"http://{host}:{server.port}", **PATIENT) as client:
                await client.publish("news", host)


# --- the proxies of the page --------------------------------------------------------------------------------------------


def snippet(language: str) -> str:
    [found] = [block.text for block in blocks(PAGE) if block.language == language]
    return found


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, f"the page does not contain {old!r}"
        text = text.replace(old, new)
    return text


def nginx(directory: Path, port: int, upstream: int) -> list[str]:
    site = replaced(
        snippet("nginx"),
        ("server 127.0.0.1:8080;", f"server 127.0.0.1:{upstream};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/ssl/live.example.com/fullchain.pem", CERTIFICATE),
        ("/etc/ssl/live.example.com/privkey.pem", KEY),
    )
    temporary = "".join(
        f"{kind}_temp_path {directory}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    process = f"daemon off;\npid {directory}/nginx.pid;\nerror_log stderr;\nevents {{}}\n"
    (directory / "nginx.conf").write_text(f"{process}http {{\naccess_log off;\n{temporary}{site}}}\n")
    return ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]


def haproxy(directory: Path, port: int, upstream: int) -> list[str]:
    (directory / "both.pem").write_text(Path(CERTIFICATE).read_text() + Path(KEY).read_text())
    text = replaced(
        snippet("haproxy"),
        ("bind :443 ssl crt /etc/ssl/live.example.com/both.pem", f"bind 127.0.0.1:{port} ssl crt {directory}/both.pem"),
        ("127.0.0.1:8080", f"127.0.0.1:{upstream}"),
    )
    (directory / "haproxy.cfg").write_text(text)
    return ["haproxy", "-db", "-f", str(directory / "haproxy.cfg")]


def haproxy_with_header(directory: Path, port: int, upstream: int) -> list[str]:
    """The variant on the page: the PROXY protocol instead of an HTTP header."""
    command = haproxy(directory, port, upstream)
    file = Path(command[-1])
    file.write_text(replaced(file.read_text(), ("    option forwardfor\n", ""), ("check inter", "send-proxy-v2 check inter")))
    return command


def caddy(directory: Path, port: int, upstream: int) -> list[str]:
    site = replaced(
        snippet("caddy"),
        ("live.example.com {", f"https://127.0.0.1:{port} {{\n    tls {CERTIFICATE} {KEY}"),
        ("127.0.0.1:8080", f"127.0.0.1:{upstream}"),
    )
    # Without the last of these its shutdown waits for open connections.
    words = ("admin off", "auto_https disable_redirects", f"storage file_system {directory}/store", "grace_period 1s")
    options = "".join(["{\n", *(f"    {line}\n" for line in words), "}\n"])
    (directory / "Caddyfile").write_text(options + site)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(directory / "Caddyfile")]


@contextlib.asynccontextmanager
async def proxied(make: Callable[[Path, int, int], list[str]], server: RunningServer, directory: Path) -> AsyncIterator[str]:
    port = free_port()
    command = make(directory, port, server.port)
    with (directory / "proxy.log").open("wb") as log:
        proxy = subprocess.Popen([proxy_path(command[0]), *command[1:]], stdout=log, stderr=log, cwd=directory)
    try:
        async with asyncio.timeout(TIMEOUT):
            while await _status(port) not in (200, 401):
                assert proxy.poll() is None, (directory / "proxy.log").read_text()
                await asyncio.sleep(0.05)
        yield f"https://127.0.0.1:{port}"
    finally:
        proxy.terminate()
        await asyncio.to_thread(proxy.wait, TIMEOUT)


async def _status(port: int) -> int:
    """Of an event stream: 503 while haproxy has not checked its server yet."""
    try:
        async with http() as session, session.get(f"https://127.0.0.1:{port}/events?channel=WhereChannel") as response:
            return response.status
    except aiohttp.ClientConnectionError:
        return 0


@pytest.mark.tier("all")
@pytest.mark.parametrize(
    ("make", "flags"),
    [
        pytest.param(nginx, (), marks=pytest.mark.needs_nginx),
        pytest.param(haproxy, (), marks=pytest.mark.needs_haproxy),
        pytest.param(haproxy_with_header, ("--proxy_protocol",), marks=pytest.mark.needs_haproxy),
        pytest.param(caddy, (), marks=pytest.mark.needs_caddy),
    ],
)
async def test_documented_proxy_passes_on_address_scheme_and_messages(
    make: Callable[[Path, int, int], list[str]], flags: tuple[str, ...], tmp_path: Path
) -> None:
    with observing(tmp_path, "--trusted_proxies", "127.0.0.1", *flags) as server:
        async with proxied(make, server, tmp_path) as url:
            forged = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "http"}
            for way in (over_websocket, over_sse):
                seen = await way(url, forged, CLIENT)
                assert (seen["remote"], seen["url"].partition(":")[0]) == (CLIENT, "https")
            await _delivered(server, url, flags)
            async with http() as session, session.get(f"{url}/api/streams") as response:
                assert response.status == 404


async def _delivered(server: RunningServer, url: str, flags: tuple[str, ...]) -> None:
    async with (
        http(CLIENT) as session,
        session.ws_connect(f"{url}/cable") as ws,
        session.get(f"{url}/events?channel=WhereChannel") as events,
    ):
        await ws.send_str(SUBSCRIBE)
        await _seen(ws)
        async for line in events.content:
            if b'"remote"' in line:
                break
        if flags:  # the server takes connections of this address with a PROXY header only
            async with http(CLIENT) as direct:
                await direct.post(f"{server.url}/_broadcast", json={"stream": "news", "data": '"hello"'})
        else:
            await publish(server, "news", '"hello"')
        assert await _seen(ws) == "hello"
        async for line in events.content:
            if b"hello" in line:
                break
