"""`--embed_nats`: a nats-server that starts and ends with its node, alone and as a cluster of three."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cable import cable
from tests.scenarios.python_clients import CABLE, take
from tests.server import RunningServer, running_server
from tests.services import free_port, nats_server
from tests.waiting import publish_when_available, until

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


async def test_messages_survive_a_killed_nats_server_and_a_restart_of_the_node(tmp_path: Path) -> None:
    with running_server(*alone(tmp_path)) as server:
        async with CABLE.client(server) as client:
            stream = await client.subscribe("news")
            first = await publish_when_available(server, "news", "1", "u1")
            killed = embedded_nats_pid(server)
            os.kill(killed, signal.SIGKILL)
            second = await publish_when_available(server, "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)
            assert [(await take(stream)).data for _ in range(2)] == [1, 2]
        pid = embedded_nats_pid(server)
        assert pid != killed
        assert server.stop() == 0
        assert not is_nats_server(pid)
    with running_server(*alone(tmp_path)) as server:
        assert (await publish_when_available(server, "news", "3", "u3"))["epoch"] == first["epoch"]
        async with cable(server) as reader:
            history = await reader.subscribe("news", history={"since": 1})
            assert [frame["message"] for frame in history] == [1, 2, 3]
        pid = embedded_nats_pid(server)
        server.kill()
        await until(lambda: not is_nats_server(pid), "the nats-server of a killed node ends")


async def test_node_can_be_started_again_on_its_ports_right_after_it_was_killed(tmp_path: Path) -> None:
    place = ("--enats_addr", f"nats://127.0.0.1:{free_port()}", "--enats_store_dir", str(tmp_path))
    flags = ("--port", str(free_port()), *FLAGS, *place)
    with running_server(*flags) as server:
        first = await publish_when_available(server, "news", "1", "u1")
        server.process.kill()
        server.process.wait()
        with running_server(*flags) as successor:
            second = await publish_when_available(successor, "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)


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
    assert "another server answers there. Set another port with --enats_addr" in ended.stderr


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
            return stack.enter_context(running_server(*flags, ROPEWALK_SECRET="the same at all nodes"))

        # None of them is ready before two are there, so they are started at the same time.
        with ThreadPoolExecutor() as threads:
            nodes = list(threads.map(start, range(3)))
        yield nodes


@pytest.mark.tier("all")
async def test_three_nodes_form_one_nats_cluster(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as nodes:
        first = await publish_when_available(nodes[0], "news", "1", "u1")
        async with CABLE.client(nodes[1]) as client:
            stream = await client.subscribe("news")
            second = await publish_when_available(nodes[2], "news", "2", "u2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)
            assert (await take(stream)).data == 2
            nodes[0].kill()  # and its nats-server with it
            third = await publish_when_available(nodes[2], "news", "3", "u3")
            assert (third["epoch"], third["offset"]) == (first["epoch"], 3)
            assert (await take(stream)).data == 3


def test_address_off_loopback_without_credentials_is_refused_at_start() -> None:
    command = [
        sys.executable,
        "-m",
        "ropewalk",
        "serve",
        "--port",
        "0",
        *FLAGS,
        "--enats_addr",
        f"nats://0.0.0.0:{free_port()}",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 2
    assert "--enats_addr without credentials would let in everyone who reaches 0.0.0.0" in ended.stderr


def port_of_routes(server: RunningServer) -> int:
    words = Path(f"/proc/{server.process.pid}/cmdline").read_text().split("\0")
    return int(words[words.index("--enats_cluster") + 1].rpartition(":")[2])


async def answer_to_connect(port: int, **options: object) -> bytes:
    """Of a NATS server to a client, or to another server where `port` is that of the routes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(SECONDS):
        await reader.readline()  # INFO
        connect = json.dumps({"verbose": False, "pedantic": False, **options})
        writer.write(f"CONNECT {connect}\r\nPING\r\n".encode())
        while (line := await reader.readline()).startswith(b"INFO"):
            pass
    writer.close()
    return line.strip()


REFUSED, ENTERED = b"-ERR 'Authorization Violation'", b"PONG"


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_embedded_nats_server_refuses_clients_without_its_random_credentials(tmp_path: Path, workers: str) -> None:
    port = free_port()
    flags = ("--enats_addr", f"nats://127.0.0.1:{port}", "--enats_store_dir", str(tmp_path), "--workers", workers)
    with running_server(*FLAGS, *flags) as server:
        assert (await publish_when_available(server, "news", "1", "u1"))["offset"] == 1
        for login in ({}, {"auth_token": "token"}, {"user": "ropewalk", "pass": "ropewalk"}):
            assert await answer_to_connect(port, **login) == REFUSED
        assert (await publish_when_available(server, "news", "2", "u2"))["offset"] == 2


@pytest.mark.parametrize(
    ("credentials", "login"),
    [("tok-en", {"auth_token": "tok-en"}), ("me:pass%2Fword", {"user": "me", "pass": "pass/word"})],
)
async def test_embedded_nats_server_can_be_entered_with_the_credentials_of_its_address(
    tmp_path: Path, credentials: str, login: dict[str, str]
) -> None:
    port = free_port()
    address = f"nats://{credentials}@127.0.0.1:{port}"
    with running_server(*FLAGS, "--enats_addr", address, "--enats_store_dir", str(tmp_path)) as server:
        await publish_when_available(server, "news", "1", "u1")
        assert await answer_to_connect(port, **login) == ENTERED
        assert await answer_to_connect(port) == REFUSED
        assert credentials.rpartition(":")[2] not in server.log()


@pytest.mark.tier("all")
async def test_cluster_of_embedded_nats_servers_refuses_a_server_without_the_secret(tmp_path: Path) -> None:
    with three_nodes(tmp_path) as nodes:
        await publish_when_available(nodes[0], "news", "1", "u1")
        words = Path(f"/proc/{nodes[0].process.pid}/cmdline").read_text().split("\0")
        port = int(words[words.index("--enats_cluster") + 1].rpartition(":")[2])
        assert await answer_to_connect(port, name="other", cluster="ropewalk-cluster") == REFUSED
