"""`--embed_nats`: a nats-server that lives and dies with its node, alone and as a cluster of three."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk.client import Message, Stream, connect
from tests.cable import cable
from tests.server import RunningServer, publish, running_server
from tests.services import free_port, nats_server

SECONDS = 60
FLAGS = ("--public", "--broker", "nats", "--embed_nats")


def alone(home: Path) -> tuple[str, ...]:
    return (*FLAGS, "--enats_addr", "nats://127.0.0.1:0", "--enats_store_dir", str(home))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_nats_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "nats-server"
    except OSError:
        return False


def nats_server_of(server: RunningServer) -> int:
    [found] = [pid for pid in children_of(server.process.pid) if is_nats_server(pid)]
    return found


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


async def data_of(stream: Stream) -> object:
    """Of the next message; nothing else may come."""
    message = await anext(stream)
    assert isinstance(message, Message)
    return message.data


async def published(server: RunningServer, stream: str, data: str, uid: str) -> dict[str, object]:
    """Sent again until it is registered."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await publish(server, stream, data, uid=uid)
        except AssertionError:
            assert time.monotonic() < deadline, server.log()
            await asyncio.sleep(0.2)


async def test_a_node_with_a_nats_server_of_its_own_keeps_everything_over_a_restart(tmp_path: Path) -> None:
    with running_server(*alone(tmp_path)) as server:
        first = await published(server, "news", "1", "u1")
        pid = nats_server_of(server)
        assert server.stop() == 0
        assert not is_nats_server(pid)
    with running_server(*alone(tmp_path)) as server:
        assert (await published(server, "news", "2", "u2"))["epoch"] == first["epoch"]
        async with cable(server) as client:
            await client.subscribe("news", history={"since": 1})
            assert [frame["message"] for frame in client.received if "message" in frame and "offset" in frame] == [1, 2]


async def test_a_nats_server_that_is_killed_is_started_again_and_clients_go_on(tmp_path: Path) -> None:
    with running_server(*alone(tmp_path)) as server:
        async with connect(server.url) as client:
            stream = await client.subscribe("news")
            first = await published(server, "news", "1", "u1")
            killed = nats_server_of(server)
            os.kill(killed, signal.SIGKILL)
            second = await published(server, "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)
            assert nats_server_of(server) != killed
            async with asyncio.timeout(SECONDS):
                assert [await data_of(stream), await data_of(stream)] == [1, 2]


async def test_no_nats_server_is_left_behind_by_a_node_that_is_killed(tmp_path: Path) -> None:
    with running_server(*alone(tmp_path)) as server:
        pid = nats_server_of(server)
        server.kill()
        wait_for(lambda: not is_nats_server(pid), "nats-server outlives its node")


def test_a_nats_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    command = [sys.executable, "-m", "ropewalk", "serve", "--port", "0", *alone(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode != 0
    assert "the nats-server of --embed_nats does not start" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_where_another_server_answers_is_refused(tmp_path: Path) -> None:
    with nats_server() as other:
        flags = ("--embed_nats", "--enats_addr", other.url, "--enats_store_dir", str(tmp_path))
        command = [sys.executable, "-m", "ropewalk", "serve", "--port", "0", "--public", "--broker", "nats", *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 2
    assert "another server answers: give another port by --enats_addr" in ended.stderr


@contextlib.contextmanager
def three_nodes(home: Path) -> Iterator[list[RunningServer]]:
    ports = [free_port() for _ in range(3)]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    with contextlib.ExitStack() as stack:

        def start(number: int) -> RunningServer:
            flags = (
                *alone(home / str(number)),
                *("--enats_cluster", f"nats://127.0.0.1:{ports[number]}", "--enats_cluster_routes", routes),
                *("--nats_replicas", "3", "--nats_shards", "2", "--node_id", f"node{number}"),
            )
            return stack.enter_context(running_server(*flags))

        # None of them is ready before two are there, so they are started at the same time.
        with ThreadPoolExecutor() as threads:
            nodes = list(threads.map(start, range(3)))
        yield nodes


async def test_three_nodes_with_a_nats_server_each_are_one_cluster(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as nodes:
        first = await published(nodes[0], "news", "1", "u1")
        async with connect(nodes[1].url) as client:
            stream = await client.subscribe("news")
            second = await published(nodes[2], "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)
            async with asyncio.timeout(SECONDS):
                assert await data_of(stream) == 2
            nodes[0].kill()  # and its nats-server with it
            third = await published(nodes[2], "news", "3", "u3")
            assert (third["epoch"], third["offset"]) == (first["epoch"], 3)
            async with asyncio.timeout(SECONDS):
                assert await data_of(stream) == 3


@pytest.mark.parametrize("flag", ["--enats_addr", "--enats_cluster"])
def test_an_address_that_is_open_to_all_is_warned_about(flag: str) -> None:
    flags = ("--public", "--embed_nats", "--enats_addr", "nats://127.0.0.1:0", flag)
    with running_server(*flags, f"nats://0.0.0.0:{free_port()}") as server:
        assert f"{flag} lets everybody in who reaches it" in server.log()
    with running_server(*flags, f"nats://us:secret@0.0.0.0:{free_port()}") as server:
        assert "lets everybody in" not in server.log()
        assert "secret" not in server.log()
