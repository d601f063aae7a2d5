"""A server of several processes: how it starts, where it listens, and how its workers share the clients."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.cable import cable
from tests.process_tree import workers
from tests.server import START_SECONDS, publish, running_server
from tests.services import RedisServer, free_port
from tests.waiting import until_logged
from tests.worker_clients import one_client_at_each

TWO_WORKERS = ("--public", "--workers", "2")


def start_error(*arguments: str) -> str:
    """The standard error of a server that exits at its start because of an invalid setting."""
    command = [sys.executable, "-m", "ropewalk", "serve", "--config_path=", "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


async def test_clients_of_all_workers_receive_messages_published_at_any(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        assert server.log().count("listening on") == 1
        assert sorted(role.number for role in workers(server).values()) == [1, 2]
        async with one_client_at_each(server) as clients:
            for client in clients.values():
                await client.subscribe("s")
            for number in range(20):
                await publish(server, "s", str(number))  # each over its own connection, to any worker
            for client in clients.values():
                assert await client.messages(20) == list(range(20))
        assert 'process="worker 1"' in server.log()
        assert "process=store" in server.log()


async def test_demo_page_works_with_several_workers() -> None:
    with running_server("--demo", "--workers", "2") as server:
        await until_logged(server, "in two tabs")
        assert server.log().count(f"open {server.url}/demo in two tabs") == 1
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/demo") as response:
            assert response.status == 200


async def test_workers_accept_from_one_unix_socket_and_name_their_process_in_json_logs(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(*TWO_WORKERS, "--host", f"unix:{path}", "--log_format", "json") as server:
        assert server.url == f"unix:{path}"
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
            async with http.post("http://server/_broadcast", json={"stream": "s", "data": "1"}) as response:
                assert response.status == 201
            async with http.get("http://server/health") as response:
                assert response.status == 200
        assert server.stop() == 0
        assert not path.exists()
        lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    sources = {line.get("process") for line in lines if line["logger"] != "ropewalk.supervisor"}
    assert sources == {"store", "worker 1", "worker 2"}


async def test_workers_accept_from_a_socket_that_systemd_passed_on() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inherited,
        running_server(*TWO_WORKERS, inherited=inherited) as server,
    ):
        assert server.port == inherited.getsockname()[1]
        async with cable(server) as client:
            await client.subscribe("s")
            await publish(server, "s", "1")
            assert await client.messages(1) == [1]


# --- errors at the start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "0", "--public"), "wants a number from 1 to 64, or auto"),
        (("--workers", "2"), "no authentication is configured"),
        ((*TWO_WORKERS, "--app", "no_such_module:app"), "no_such_module"),  # only a child process imports it
        ((*TWO_WORKERS, "--ssl_cert", "none", "--ssl_key", "none"), "--ssl_cert none cannot be read"),
    ],
)
def test_invalid_setting_is_reported_once(arguments: tuple[str, ...], message: str) -> None:
    error = start_error(*arguments)
    assert error.count(message) == 1, error
    assert "Traceback" not in error


@pytest.mark.parametrize("number", ["1", "2"])
def test_server_that_fails_after_it_connected_to_redis_exits(redis: RedisServer, number: str) -> None:
    engine = ("--broker", "redis", "--redis_url", redis.url)
    error = start_error("--workers", number, "--public", *engine, "--app", "no_such_module:app")
    assert error.count("no_such_module") == 1, error


def test_port_of_another_process_is_refused_even_if_that_process_shares_it() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        error = start_error(*TWO_WORKERS, "--port", str(other.getsockname()[1]))
    assert error.count("cannot listen on") == 1


def test_second_server_is_refused_at_both_ports_of_the_first() -> None:
    tcp_port = free_port()
    with running_server(*TWO_WORKERS, "--tcp_port", str(tcp_port)) as server:
        for flag, port in (("--port", server.port), ("--tcp_port", tcp_port)):
            for _ in range(200):  # more than wait in the queue of the socket that claims the port
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(f"\0ropewalk 127.0.0.1 {port}")
            for number in ("1", "2"):
                error = start_error("--public", "--workers", number, flag, str(port))
                assert error.count(f"cannot listen on 127.0.0.1:{port}") == 1, error
