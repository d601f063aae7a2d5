"""SIGHUP replaces all workers of a server under its settings file, and --takeover replaces the server."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from ropewalk.client import Message
from tests.cable import cable
from tests.process_tree import children, store, workers
from tests.scenarios.python_clients import CABLE
from tests.server import START_SECONDS, STOP_SECONDS, publish, running_server
from tests.services import free_port
from tests.waiting import until, until_logged
from tests.worker_clients import one_client_at_each

SETTINGS = """
[server]
workers = {workers}
[limits]
max_message_size = {size}
[journal]
data_dir = "{data_dir}"
"""
REPLACED = "all workers were replaced"


def settings(workers: int | str = 2, size: int = 65536, data_dir: Path | str = "") -> str:
    return SETTINGS.format(workers=workers, size=size, data_dir=data_dir)


async def test_sighup_replaces_all_workers_and_no_session_is_lost(engine: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text(settings())
    flags = [flag for flag in engine if flag not in ("--workers", "2")]  # the file has the number of workers
    with running_server(*flags, "--history_limit", "100000", "--config_path", str(file)) as server:
        former = set(workers(server))
        async with CABLE.client(server) as client:
            subscription = await client.subscribe("s")
            received: list[object] = []

            async def receive() -> None:
                async for message in subscription:
                    received.append(message.data if isinstance(message, Message) else message)

            receiving = asyncio.create_task(receive())
            async with cable(server) as other:
                await other.subscribe("s", history={"since": 1})
                await publish(server, "s", "0")
                await other.messages(1)
                file.write_text(settings(workers=3, size=100_000))
                server.process.send_signal(signal.SIGHUP)
                sent = 1
                async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(force_close=True)) as http:
                    while REPLACED not in server.log():
                        sent += await is_published(http, sent)
                    while not await is_published(http, sent):  # the last one may have been cut off
                        pass
                await other.closed()
                async with cable(server, sid=other.sid) as returned:
                    returned.positions = other.positions
                    history = [frame["message"] for frame in await returned.ask_history("s")]
                    live = [frame["message"] for frame in other.received if frame.get("offset")]
                    assert live + history == list(range(sent + 1))
            await publish(server, "s", '"last"')
            await until(lambda: received and received[-1] == "last")
            assert received == [*range(sent + 1), "last"]
            receiving.cancel()
        assert len(workers(server)) == 3
        assert not former & set(workers(server))


async def is_published(http: aiohttp.ClientSession, number: int) -> bool:
    """A worker that stops replies 503 or closes the connection; the message may be stored nevertheless, once for its uid."""
    message = {"stream": "s", "data": str(number), "uid": f"u{number}"}
    with contextlib.suppress(aiohttp.ClientError):
        async with http.post("/_broadcast", json=message) as response:
            assert response.status in (201, 503), await response.text()
            return response.status == 201
    return False


async def test_second_sighup_during_a_replacement_is_handled_after_it() -> None:
    with running_server("--public", "--workers", "2") as server:
        former = set(workers(server))
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: set(workers(server)) - former)
        server.process.send_signal(signal.SIGHUP)
        await until_logged(server, REPLACED, 2)
        assert sorted(role.number for role in workers(server).values()) == [5, 6]


async def test_sighup_with_invalid_settings_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text(settings())
    with running_server("--public", "--config_path", str(file)) as server:
        before = children(server)
        for wrong, reason in (
            (settings(workers=0), f"{file}: [server] workers wants a number from 1 to 64"),
            (settings(data_dir=tmp_path), "full restart: data_dir"),
            (settings(workers="2\ntcp_port = 65000"), "full restart: tcp_port"),
            (settings() + '[auth]\njwt_secret = "later"\n', "switching JWT on or off needs a restart"),
            (settings() + '[app]\napp = "no_such_module:app"\n', "no_such_module"),
        ):
            file.write_text(wrong)
            seen = len(server.log())
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: "not reloaded" in server.log()[seen:])  # noqa: B023 - it is over before the next round
            assert server.log()[seen:].count(reason) == 1
            assert "settings.toml" not in server.log()[seen:], "the private copy is not a file that operators know"
        assert children(server) == before


async def test_restarted_process_keeps_the_settings_in_force_when_the_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text(settings(data_dir=tmp_path / "data"))
    with running_server("--public", "--config_path", str(file)) as server:
        await publish(server, "s", "1")
        file.write_text(settings(workers=0, data_dir=tmp_path / "elsewhere"))
        for pid in (store(server), next(iter(workers(server)))):
            seen = len(server.log())
            os.kill(pid, signal.SIGKILL)
            await until(lambda: "serves again" in server.log()[seen:])  # noqa: B023 - it is over before the next round
        assert len(workers(server)) == 2
        async with cable(server) as client:
            await client.subscribe("s", history={"since": 1})
            assert [frame["message"] for frame in client.received if frame.get("offset")] == [1]
    assert not (tmp_path / "elsewhere").exists()


# --- takeover ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["1", "2"])
async def test_server_with_invalid_settings_takes_nothing_over(number: str, tmp_path: Path) -> None:
    flags = ("--public", "--workers", number, "--takeover", "--data_dir", str(tmp_path), "--port", str(free_port()))
    with running_server(*flags) as former:
        for wrong in (("--app", "no_such_module:app"), ("--ssl_cert", "no.pem", "--ssl_key", "no.pem")):
            command = [sys.executable, "-m", "ropewalk", "serve", *flags, *wrong]
            failed = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=START_SECONDS, check=False
            )
            assert failed.returncode != 0
            assert "taking over" not in failed.stderr
            await publish(former, "s", "1")


async def test_next_server_takes_over_from_all_processes_of_the_former(engine: tuple[str, ...], tmp_path: Path) -> None:
    flags = (*engine, "--takeover", "--data_dir", str(tmp_path), "--port", str(free_port()))
    with running_server(*flags) as former:
        async with cable(former) as client:
            with running_server(*flags) as later:
                assert former.process.wait(STOP_SECONDS) == 0
                await client.closed()
                async with cable(later, sid=client.sid):
                    assert len(workers(later)) == 2
                async with one_client_at_each(later):
                    pass
