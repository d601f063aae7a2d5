"""Signals that end a server of several processes: the workers end first, then the store, then the supervisor."""

import asyncio
import os
import signal

import pytest

from ropewalk.app.process_end import ECHO_SECONDS
from tests.cable import cable
from tests.process_tree import children, directory, is_running
from tests.server import STOP_SECONDS, RunningServer, running_server
from tests.waiting import until, until_logged

TWO_WORKERS = ("--public", "--workers", "2")


def store_ended_last(server: RunningServer) -> bool:
    log = server.log()
    return log.rindex("stopped process=store") > log.rindex('stopped process="worker')


async def test_signal_ends_workers_and_then_the_store(engine: tuple[str, ...]) -> None:
    number = signal.SIGINT if "redis" in engine else signal.SIGTERM
    with running_server(*engine) as server:
        processes, place = list(children(server)), directory(server)
        async with cable(server) as client:
            server.process.send_signal(number)
            assert (await client.expect("disconnect"))["reconnect"] is True
        assert server.process.wait(STOP_SECONDS) == 0
        assert not any(map(is_running, processes))
        assert not place.exists()
        assert store_ended_last(server)


async def test_signal_to_all_processes_at_once_ends_them_in_order() -> None:
    """As systemd sends it by default. The processes are paused meanwhile, so that none ends before all have the signal."""
    with running_server(*TWO_WORKERS, "--shutdown_delay", "300ms") as server:
        pids = (server.process.pid, *children(server))
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
        assert server.process.wait(STOP_SECONDS) == 0
        assert store_ended_last(server)
        assert "starting it again" not in server.log()


async def test_second_signal_ends_the_server_at_once() -> None:
    with running_server(*TWO_WORKERS, "--shutdown_delay", "1h", "--shutdown_timeout", "2h") as server:
        processes, place = list(children(server)), directory(server)
        server.process.send_signal(signal.SIGTERM)
        await until_logged(server, "shutting down", 2)
        await asyncio.sleep(ECHO_SECONDS + 0.1)  # an earlier signal would count as the first one
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_SECONDS) == 1
        await until(lambda: not any(map(is_running, processes)))
        assert not place.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_signal_that_arrives_twice_at_once_counts_as_one(workers: str) -> None:
    """As a terminal sends it to a process group in which a parent passes it on. The system merges two signals of the same kind,
    so these are of two kinds. The process is paused meanwhile, so that both arrive at once."""
    with running_server("--public", "--shutdown_delay", "300ms", "--workers", workers) as server:
        async with cable(server) as client:
            for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
                server.process.send_signal(number)
            assert (await client.expect("disconnect"))["reconnect"] is True
        assert server.process.wait(STOP_SECONDS) == 0
