"""SIGHUP: settings are reloaded or named as needing a restart, errors are logged, and the process never ends."""

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.cable import Cable, cable, kind
from tests.certificates import CERTIFICATE, KEY, RENEWED_CERTIFICATE, RENEWED_KEY, trusting_context
from tests.clients.credentials import token
from tests.metrics import metrics, metrics_when
from tests.server import RunningServer, running_server
from tests.waiting import until

TIMEOUT = 60.0
FORMER, LATER = "former secret of more than thirty-two bytes", "later secret of more than thirty-two bytes"

PUBLIC_KEY = r"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"  # not a secret: it only verifies

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
    """A server and its settings file. `log` is what the server wrote since the test began."""

    def __init__(self, server: RunningServer, file: Path) -> None:
        self.server = server
        self._file = file
        self._begin = len(server.log())

    def log(self) -> str:
        return self.server.log()[self._begin :]

    async def change(self, word: str = "settings reloaded", **values: object) -> None:
        """Write other values, send the signal, and wait until the log has `word` once more."""
        self._file.write_text(SETTINGS.format(**{**BEFORE, **values}))
        await self.hang_up(word)

    async def hang_up(self, word: str) -> None:
        before = self.server.log().count(word)
        self.server.process.send_signal(signal.SIGHUP)
        await until(lambda: self.server.log().count(word) > before, f"the log has {word!r}")


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "ropewalk.toml"


@pytest.fixture(scope="module")
def server(settings_file: Path) -> Iterator[RunningServer]:
    settings_file.write_text(SETTINGS.format(**BEFORE))
    with running_server("--config_path", str(settings_file)) as server:
        yield server
        assert server.process.poll() is None


@pytest.fixture
async def reloaded(server: RunningServer, settings_file: Path) -> AsyncIterator[Reloaded]:
    """With the settings of `BEFORE` at the beginning of each test."""
    yield Reloaded(server, settings_file)
    await Reloaded(server, settings_file).change()


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


async def test_new_keys_hold_for_open_connections_too(reloaded: Reloaded) -> None:
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
        assert secret not in reloaded.log().replace("kept", "")


async def test_connected_client_stays_connected(reloaded: Reloaded) -> None:
    async with cable(reloaded.server, params={"jid": token(secret=FORMER)}) as client:
        await client.subscribe("news")
        await reloaded.change(secret=LATER)
        assert await published(reloaded.server, "k1") == 201
        assert await client.messages(1) == [1]


async def test_new_rules_hold_for_existing_and_new_streams(reloaded: Reloaded) -> None:
    server = reloaded.server
    others = (await metrics(server))["history_messages"]
    for number in range(5):
        assert await published(server, "k1", "ruled/1", str(number)) == 201
    assert (await metrics(server))["history_messages"] == others + 5
    await reloaded.change(ruled=2)
    await metrics_when(server, lambda now: now["history_messages"] == others + 2)
    for number in range(5):
        assert await published(server, "k1", "ruled/2", str(number)) == 201
    assert (await metrics(server))["history_messages"] == others + 4
    assert "changed=streams" in reloaded.log()


async def test_log_level_and_connection_limit_are_reloaded(reloaded: Reloaded) -> None:
    jid = {"jid": token(secret=FORMER)}
    assert " debug " not in reloaded.log()
    await reloaded.change(level="debug", max_conn=1)
    async with cable(reloaded.server, params=jid):
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await Cable.connect(reloaded.server.cable, params=jid)
    await until(lambda: " debug " in reloaded.log())


async def test_settings_that_need_a_restart_are_logged(reloaded: Reloaded) -> None:
    await reloaded.change("need a restart", max_message_size=1000)
    assert "settings=max_message_size" in reloaded.log()


async def test_invalid_or_missing_settings_change_nothing(reloaded: Reloaded, settings_file: Path) -> None:
    for wrong in ({"level": "loud"}, {"limit": '"many"'}, {"secret": "none"}, {"secret": PUBLIC_KEY}):
        await reloaded.change("settings not reloaded", key="k2", **wrong)
        assert await published(reloaded.server, "k1") == 201, wrong
        assert await published(reloaded.server, "k2") == 401, wrong
    settings_file.unlink()
    await reloaded.hang_up("settings not reloaded")
    assert await published(reloaded.server, "k1") == 201
    await reloaded.change(key="k2")
    assert await published(reloaded.server, "k2") == 201


async def test_renewed_certificate_is_used_and_an_invalid_one_is_not(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    shutil.copy(CERTIFICATE, cert)
    shutil.copy(KEY, key)
    former, renewed = trusting_context(), trusting_context(RENEWED_CERTIFICATE)
    with running_server("--public", "--ssl_cert", str(cert), "--ssl_key", str(key)) as server:
        running = Reloaded(server, tmp_path / "unused")
        async with cable(server, ssl=former) as client:
            shutil.copy(RENEWED_CERTIFICATE, cert)
            shutil.copy(RENEWED_KEY, key)
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


@pytest.mark.tier("all")
async def test_sighup_does_not_end_a_server_that_starts(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--takeover")
    with running_server(*flags, "--shutdown_delay", "10m", "--shutdown_timeout", "20m") as former:
        command = (sys.executable, "-m", "ropewalk", "serve", *flags, "--port", str(former.port), "--config_path=")
        starting = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(TIMEOUT):
                await logged(starting, b"taking over")
                starting.send_signal(signal.SIGHUP)
                await logged(starting, b"not reloaded while")
                former.process.kill()
                await logged(starting, b"took over")
        finally:
            starting.kill()
            await starting.wait()


async def logged(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stderr is not None
    while line not in (read := await process.stderr.readline()):
        assert read, "the process ended"


async def test_sighup_does_not_end_a_demo(tmp_path: Path) -> None:
    with running_server("--demo", "--data_dir", str(tmp_path)) as server:
        for _ in range(3):
            server.process.send_signal(signal.SIGHUP)
        await until(lambda: "settings reloaded" in server.log())
        assert (await metrics(server))["connections"] == 0
        assert server.stop() == 0
