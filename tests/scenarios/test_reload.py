"""SIGHUP: what can be reloaded is, the rest is named, what is wrong is said, and the process lives on whatever comes."""

import asyncio
import shutil
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.cable import Cable, cable, kind
from tests.clients.credentials import token
from tests.metrics import metrics
from tests.server import RunningServer, running_server

FIXTURES = Path(__file__).parents[1] / "fixtures"
TIMEOUT = 15.0
FORMER, LATER = "former secret of more than thirty-two bytes", "later secret of more than thirty-two bytes"

PUBLIC_KEY = r"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"  # no secret: who has it can only check

SETTINGS = """
[auth]
secret = "{secret}"
public_streams = true

[broadcast]
broadcast_key = "{key}"

[broker]
history_limit = {limit}

[logging]
log_level = "{level}"

[limits]
max_conn = {max_conn}
max_message_size = {max_message_size}

[[streams]]
pattern = "ruled/*"
history_limit = {ruled}
"""
BEFORE = {
    "secret": FORMER,
    "key": "k1",
    "limit": 100,
    "level": "info",
    "max_conn": 100,
    "ruled": 10,
    "max_message_size": 65536,
}


class Reloaded:
    """A server and its settings file."""

    def __init__(self, server: RunningServer, file: Path) -> None:
        self.server = server
        self._file = file

    async def change(self, word: str = "settings reloaded", **values: object) -> None:
        """Write other values, send the signal, and wait until the log says `word` once more."""
        self._file.write_text(SETTINGS.format(**{**BEFORE, **values}))
        await self.hang_up(word)

    async def hang_up(self, word: str) -> None:
        before = self.server.log().count(word)
        self.server.process.send_signal(signal.SIGHUP)
        await until(lambda: self.server.log().count(word) > before)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.fixture
def reloaded(tmp_path: Path) -> Iterator[Reloaded]:
    file = tmp_path / "ropewalk.toml"
    file.write_text(SETTINGS.format(**BEFORE))
    with running_server("--config_path", str(file)) as server:
        yield Reloaded(server, file)
        assert server.process.poll() is None
        assert "Traceback" not in server.log(), server.log()


async def published(server: RunningServer, key: str, stream: str = "news", data: str = "1") -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/_broadcast", json={"stream": stream, "data": data}, headers=headers) as response,
    ):
        return response.status


async def connects(server: RunningServer, jid: str) -> bool:
    client = await Cable.connect(server.cable, params={"jid": jid})
    try:
        return kind(await client.next()) == "welcome"
    finally:
        await client.close()


async def test_keys_are_replaced_also_for_connections_that_are_open(reloaded: Reloaded) -> None:
    server = reloaded.server
    assert await published(server, "k1") == 201
    assert await connects(server, token(secret=FORMER))
    async with aiohttp.ClientSession(headers={"Authorization": "Bearer k1"}) as kept:
        async with kept.post(f"{server.url}/_broadcast", json={"stream": "news", "data": "1"}) as response:
            assert response.status == 201
        await reloaded.change(secret=LATER, key="k2")
        async with kept.post(f"{server.url}/_broadcast", json={"stream": "news", "data": "1"}) as response:
            assert response.status == 401
    assert await published(server, "k2") == 201
    assert await connects(server, token(secret=LATER))
    assert not await connects(server, token(secret=FORMER))
    for secret in (FORMER, LATER, "k1", "k2"):
        assert secret not in server.log().replace("kept", "")


async def test_who_is_connected_stays_connected(reloaded: Reloaded) -> None:
    async with cable(reloaded.server, params={"jid": token(secret=FORMER)}) as client:
        await client.subscribe("news")
        await reloaded.change(secret=LATER)
        assert await published(reloaded.server, "k1") == 201
        assert await client.messages(1) == [1]


async def test_rules_hold_for_streams_that_exist_and_for_new_ones(reloaded: Reloaded) -> None:
    server = reloaded.server
    for number in range(5):
        assert await published(server, "k1", "ruled/1", str(number)) == 201
    assert (await metrics(server))["history_messages"] == 5
    await reloaded.change(ruled=2)
    async with asyncio.timeout(TIMEOUT):
        while (await metrics(server))["history_messages"] != 2:
            await asyncio.sleep(0.02)
    for number in range(5):
        assert await published(server, "k1", "ruled/2", str(number)) == 201
    assert (await metrics(server))["history_messages"] == 4
    assert "changed=streams" in server.log()


async def test_the_log_level_and_the_bound_on_connections_change(reloaded: Reloaded) -> None:
    jid = {"jid": token(secret=FORMER)}
    assert " debug " not in reloaded.server.log()
    await reloaded.change(level="debug", max_conn=1)
    async with cable(reloaded.server, params=jid):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await Cable.connect(reloaded.server.cable, params=jid)
    await until(lambda: " debug " in reloaded.server.log())


async def test_what_needs_a_restart_is_named(reloaded: Reloaded) -> None:
    await reloaded.change("need a restart", max_message_size=1000)
    assert "settings=max_message_size" in reloaded.server.log()


@pytest.mark.parametrize(
    "wrong",
    [{"level": "loud"}, {"limit": '"many"'}, {"secret": "none"}, {"secret": PUBLIC_KEY}],
)
async def test_settings_that_cannot_be_used_leave_the_old_ones_in_force(reloaded: Reloaded, wrong: dict[str, object]) -> None:
    await reloaded.change("settings not reloaded", key="k2", **wrong)
    assert await published(reloaded.server, "k1") == 201
    assert await published(reloaded.server, "k2") == 401
    await reloaded.change(key="k2")
    assert await published(reloaded.server, "k2") == 201


async def test_a_settings_file_that_is_gone_is_said(reloaded: Reloaded, tmp_path: Path) -> None:
    (tmp_path / "ropewalk.toml").unlink()
    await reloaded.hang_up("settings not reloaded")
    assert await published(reloaded.server, "k1") == 201


async def test_a_renewed_certificate_is_used_for_new_connections_and_a_broken_one_is_not(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(name: str) -> None:
        shutil.copy(FIXTURES / f"{name}_cert.pem", cert)
        shutil.copy(FIXTURES / f"{name}_key.pem", key)

    install("tls")
    former, renewed = (ssl.create_default_context(cafile=str(FIXTURES / f"{name}_cert.pem")) for name in ("tls", "tls_renewed"))
    with running_server("--public", "--ssl_cert", str(cert), "--ssl_key", str(key)) as server:
        running = Reloaded(server, tmp_path / "unused")
        async with cable(server, ssl=former) as client:
            install("tls_renewed")
            await running.hang_up("settings reloaded")
            async with cable(server, ssl=renewed) as other:
                await other.quiet()
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await Cable.connect(server.cable, ssl=former)
            key.write_text("no key")
            await running.hang_up("settings not reloaded")
            async with cable(server, ssl=renewed) as other:
                await other.quiet()
            await client.quiet()


async def test_hanging_up_does_not_end_a_server_that_is_starting(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--takeover")
    with running_server(*flags, "--shutdown_delay", "2s") as former:
        command = (sys.executable, "-m", "ropewalk", "serve", *flags, "--port", str(former.port), "--config_path=")
        starting = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert starting.stderr is not None
        try:
            async with asyncio.timeout(TIMEOUT):
                for signalled, said in ((None, b"taking over"), (signal.SIGHUP, b"not reloaded while"), (None, b"took over")):
                    if signalled:
                        starting.send_signal(signalled)
                    while said not in await starting.stderr.readline():
                        assert starting.returncode is None
        finally:
            starting.kill()
            await starting.wait()


async def test_hanging_up_does_not_end_a_demo(tmp_path: Path) -> None:
    with running_server("--demo", "--data_dir", str(tmp_path)) as server:
        for _ in range(3):
            server.process.send_signal(signal.SIGHUP)
        await until(lambda: "settings reloaded" in server.log())
        assert (await metrics(server))["connections"] == 0
        assert server.stop() == 0
