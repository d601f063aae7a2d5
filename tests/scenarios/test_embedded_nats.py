"""`--embed_nats`: a nats-server that starts and ends with its node, alone and as a cluster of three."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ropewalk.client import Message, Stream, connect
from tests.cable import cable
from tests.server import RunningServer, publish, running_server
from tests.services import free_port, nats_server
from tests.waiting import until

SECONDS = 60
FLAGS = ("--public", "--broker", "nats", "--embed_nats")


def alone(home: Path) -> tuple[str, ...]:
    return (*FLAGS, "--enats_addr", "nats://127.0.0.1:0", "--enats_store_dir", str(home))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_nats_server(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name == "nats-server"
    except OSError:
        return False


def embedded_nats_pid(server: RunningServer) -> int:
    [found] = [pid for pid in children(server.process.pid) if is_nats_server(pid)]
    return found


async def next_data(stream: Stream) -> object:
    """Data of the next event, which must be a message."""
    message = await anext(stream)
    assert isinstance(message, Message)
    return message.data


async def published(server: RunningServer, stream: str, data: str, uid: str) -> dict[str, object]:
    """Retried until the server accepts it."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await publish(server, stream, data, uid=uid)
        except AssertionError:
            assert time.monotonic() < deadline, server.log()
            await asyncio.sleep(0.2)


async def test_messages_survive_a_killed_nats_server_and_a_restart_of_the_node(tmp_path: Path) -> None:
    with running_server(*alone(tmp_path)) as server:
        async with connect(server.url) as client:
            stream = await client.subscribe("news")
            first = await published(server, "news", "1", "u1")
            killed = embedded_nats_pid(server)
            os.kill(killed, signal.SIGKILL)
            second = await published(server, "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)
            async with asyncio.timeout(SECONDS):
                assert [await next_data(stream), await next_data(stream)] == [1, 2]
        pid = embedded_nats_pid(server)
        assert pid != killed
        assert server.stop() == 0
        assert not is_nats_server(pid)
    with running_server(*alone(tmp_path)) as server:
        assert (await published(server, "news", "3", "u3"))["epoch"] == first["epoch"]
        async with cable(server) as reader:
            history = await reader.subscribe("news", history={"since": 1})
            assert [frame["message"] for frame in history] == [1, 2, 3]
        pid = embedded_nats_pid(server)
        server.kill()
        await until(lambda: not is_nats_server(pid), "the nats-server of a killed node ends")


def test_failed_start_of_the_nats_server_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    command = [sys.executable, "-m", "ropewalk", "serve", "--port", "0", *alone(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode != 0
    assert "the nats-server of --embed_nats does not start" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_port_of_another_server_is_refused(tmp_path: Path) -> None:
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


@pytest.mark.tier("all")
async def test_three_nodes_form_one_nats_cluster(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as nodes:
        first = await published(nodes[0], "news", "1", "u1")
        async with connect(nodes[1].url) as client:
            stream = await client.subscribe("news")
            second = await published(nodes[2], "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)
            async with asyncio.timeout(SECONDS):
                assert await next_data(stream) == 2
            nodes[0].kill()  # and its nats-server with it
            third = await published(nodes[2], "news", "3", "u3")
            assert (third["epoch"], third["offset"]) == (first["epoch"], 3)
            async with asyncio.timeout(SECONDS):
                assert await next_data(stream) == 3


def test_address_without_a_password_that_is_open_to_all_is_warned_about() -> None:
    for user, warned in (("", True), ("us:secret@", False)):
        addresses = [("--enats_addr", free_port()), ("--enats_cluster", free_port())]
        flags = [word for flag, port in addresses for word in (flag, f"nats://{user}0.0.0.0:{port}")]
        with running_server("--public", "--embed_nats", *flags) as server:
            for flag, _ in addresses:
                assert (f"{flag} lets everybody in who reaches it" in server.log()) is warned, server.log()
            assert "secret" not in server.log()
