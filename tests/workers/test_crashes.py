"""A server of several processes whose processes are killed or hang: they are replaced, and the others go on."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.cable import cable
from tests.process_tree import children, directory, is_running, store, workers
from tests.server import RunningServer, clean_environ, publish, running_server
from tests.services import free_port
from tests.waiting import publish_when_available, until, until_logged
from tests.worker_clients import one_client_at_each


@pytest.fixture(scope="module")
def server(engine: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(*engine, "--data_dir", str(tmp_path_factory.mktemp("journal"))) as server:
        yield server


async def test_killed_worker_is_replaced_and_the_others_go_on(server: RunningServer) -> None:
    logged = len(server.log())
    async with one_client_at_each(server) as clients:
        (killed, lost), (other, client) = clients.items()
        await client.subscribe("killed")
        os.kill(killed, signal.SIGKILL)
        await lost.closed()
        await until(lambda: not is_running(killed))  # so it no longer listens
        await publish(server, "killed", "1")
        assert await client.messages(1) == [1]
        await until(lambda: re.search(r"worker \d serves again", server.log()[logged:]))
        assert killed not in workers(server)
        assert other in workers(server)
    async with one_client_at_each(server) as clients:
        assert other in clients
    assert "SIGKILL" in server.log()[logged:]


async def test_worker_ended_by_a_signal_is_replaced_with_advice_in_the_log(server: RunningServer) -> None:
    logged = len(server.log())
    pid = next(iter(workers(server)))
    os.kill(pid, signal.SIGTERM)
    await until(lambda: "serves again" in server.log()[logged:])
    [warning] = [line for line in server.log()[logged:].splitlines() if "starting it again" in line]
    assert " warn ropewalk.supervisor: " in warning, warning
    assert "send the signal to its supervisor" in warning
    assert f"supervisor={server.process.pid}" in warning
    assert pid not in workers(server)


async def test_killed_store_process_is_replaced(server: RunningServer, engine: tuple[str, ...]) -> None:
    logged = len(server.log())
    former, before = store(server), set(workers(server))
    async with aiohttp.ClientSession(server.url) as http, cable(server) as client:

        async def journal_status() -> int:
            async with http.get("/journal") as response:
                await response.json()
                return response.status

        await client.subscribe("store")
        assert await journal_status() == 200
        os.kill(former, signal.SIGKILL)
        await until(lambda: not is_running(former))
        if "redis" in engine:  # which takes publications meanwhile
            await publish(server, "store", "1")
            assert await client.messages(1) == [1]
        await until(lambda: "store serves again" in server.log()[logged:])
        assert await journal_status() == 200
        await publish_when_available(server, "store", "2", "2")
        assert await client.messages(1) == [2]
    assert store(server) != former
    assert set(workers(server)) == before


async def test_all_processes_end_when_the_supervisor_is_killed(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        processes, place = list(children(server)), directory(server)
        assert (len(processes), place.is_dir()) == (3, True)
        server.process.kill()
        await until(lambda: not any(map(is_running, processes)))
        assert not place.exists()
        assert "stopped process=store" in server.log()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker notices the end of its supervisor only while it runs")
async def test_hanging_worker_ends_when_the_supervisor_is_killed(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        processes = list(children(server))
        for worker in workers(server):
            os.kill(worker, signal.SIGSTOP)
        server.process.kill()
        await until(lambda: not any(map(is_running, processes)))


async def test_server_can_be_started_again_right_after_its_supervisor_was_killed(tmp_path: Path) -> None:
    port = str(free_port())
    flags = ("--public", "--workers", "2", "--port", port, "--data_dir", str(tmp_path))
    with running_server(*flags) as server:
        first = await publish(server, "again", "1")
        server.process.kill()
        server.process.wait()
        with running_server(*flags) as successor:
            second = await publish(successor, "again", "2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)


WATCHED_CLOSELY = """
import sys
from ropewalk.app import supervisor
from ropewalk.cli.main import main
supervisor.LOOK_SECONDS = 2.0
sys.exit(main())
"""
"""A server that kills a worker after 12 seconds without an answer, not after 30."""


async def test_worker_that_hangs_is_killed_and_replaced_and_its_clients_resume() -> None:
    program = (sys.executable, "-c", WATCHED_CLOSELY)
    with running_server(
        "--public", "--workers", "2", inherited=None, allow_tracebacks=False, program=program, **clean_environ()
    ) as server:
        async with one_client_at_each(server) as clients:
            (hanging, lost), (other, client) = clients.items()
            for each in (lost, client):
                await each.subscribe("s")
            await publish(server, "s", "1")
            assert await lost.messages(1) == await client.messages(1) == [1]
            os.kill(hanging, signal.SIGSTOP)
            await until_logged(server, "hangs; killing it")
            await lost.closed()
            await until(lambda: re.search(r"worker \d serves again", server.log()))
            assert hanging not in workers(server)
            assert other in workers(server)
            await publish(server, "s", "2")
            assert await client.messages(1) == [2]
            async with cable(server, sid=lost.sid) as returned:
                returned.positions = lost.positions
                assert [frame["message"] for frame in await returned.ask_history("s")] == [2]
        assert server.log().count("hangs; killing it") == 1
