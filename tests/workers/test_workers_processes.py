"""A server of several processes: what clients, publishers and operators see while processes come and go."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.app.stop_signals import ECHO_SECONDS
from ropewalk.client import Message, connect
from tests.arrow_rows import rows_body
from tests.cable import cable
from tests.process_tree import children, directory, is_running, store, workers
from tests.server import STOP_SECONDS, RunningServer, publish, running_server
from tests.services import RedisServer, free_port, nats_server, redis_server
from tests.tcp import tcp
from tests.worker_clients import one_client_at_each

WITHIN = 30.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def flags(redis: RedisServer, *more: str) -> tuple[str, ...]:
    redis.ask("FLUSHALL")
    return ("--public", "--broker", "redis", "--redis_url", redis.url, "--workers", "2", *more)


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest, redis: RedisServer) -> tuple[str, ...]:
    """Flags of a server whose store process keeps everything, and of one that has Redis for that."""
    if request.param == "redis":
        return flags(redis)
    return ("--public", "--broker", "memory", "--workers", "2")


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.02)


def store_ended_last(server: RunningServer) -> bool:
    log = server.log()
    return log.rindex("stopped process=store") > log.rindex('stopped process="worker')


def refused(*arguments: str) -> str:
    """What a server that does not start says, which fails with the code of a mistake."""
    command = [sys.executable, "-m", "ropewalk", "serve", "--config_path=", "--port", "0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN)
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


# --- serving ----------------------------------------------------------------------------------------------------------


async def test_what_is_published_at_any_worker_reaches_the_clients_of_all(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        assert server.log().count("listening on") == 1
        assert sorted(role.number for role in workers(server).values()) == [1, 2]
        async with one_client_at_each(server) as clients:
            for client in clients.values():
                await client.subscribe("s")
            for number in range(20):
                await publish(server, "s", str(number))  # over a connection of its own, to any worker
            for client in clients.values():
                assert await client.messages(20) == list(range(20))
        assert 'process="worker 1"' in server.log()
        assert "process=store" in server.log()


async def test_the_demo_may_have_several_workers() -> None:
    with running_server("--demo", "--workers", "2") as server:
        await until(lambda: "in two tabs" in server.log())
        assert server.log().count(f"open {server.url}/demo in two tabs") == 1
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/demo") as response:
            assert response.status == 200


async def test_every_line_of_a_json_log_says_from_which_process_it_is(redis: RedisServer) -> None:
    with running_server(*flags(redis, "--log_format", "json")) as server:
        server.stop()
        lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    sources = {line.get("process") for line in lines if line["logger"] != "ropewalk.supervisor"}
    assert sources == {"store", "worker 1", "worker 2"}


async def test_workers_accept_from_one_unix_socket(redis: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(*flags(redis, "--host", f"unix:{path}")) as server:
        assert server.url == f"unix:{path}"
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
            async with http.post("http://server/_broadcast", json={"stream": "s", "data": "1"}) as response:
                assert response.status == 201
            async with http.get("http://server/health") as response:
                assert response.status == 200
        assert server.stop() == 0
        assert not path.exists()


async def test_workers_accept_from_a_socket_that_systemd_passed_on(engine: tuple[str, ...]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inherited,
        running_server(*engine, inherited=inherited) as server,
    ):
        assert server.port == inherited.getsockname()[1]
        async with cable(server) as client:
            await client.subscribe("s")
            await publish(server, "s", "1")
            assert await client.messages(1) == [1]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "0", "--public"), "wants a number from 1 to 64, or auto"),
        (("--workers", "2"), "nobody could connect"),
        (("--workers", "2", "--public", "--app", "no_such_module:app"), "no_such_module"),  # which only a child finds out
        (("--workers", "2", "--public", "--ssl_cert", "none", "--ssl_key", "none"), "--ssl_cert none cannot be read"),
    ],
)
def test_a_wrong_setting_is_told_once(arguments: tuple[str, ...], message: str) -> None:
    told = refused(*arguments)
    assert told.count(message) == 1, told
    assert "Traceback" not in told


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_start_that_fails_once_its_engine_is_connected_ends(redis: RedisServer, workers: str) -> None:
    engine = ("--broker", "redis", "--redis_url", redis.url)
    told = refused("--workers", workers, "--public", *engine, "--app", "no_such_module:app")
    assert told.count("no_such_module") == 1, told


def test_a_port_where_another_process_listens_is_refused_even_if_that_one_shares_it() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        told = refused("--workers", "2", "--public", "--port", str(other.getsockname()[1]))
    assert told.count("cannot listen on") == 1


async def test_a_second_server_is_refused_at_the_port_of_the_first(redis: RedisServer) -> None:
    with running_server(*flags(redis)) as server:
        assert "cannot listen on" in refused("--workers", "2", "--public", "--port", str(server.port))
        assert "cannot listen on" in refused("--public", "--port", str(server.port))


@pytest.mark.parametrize("sharing", [("--workers", "2"), ()], ids=["workers", "alone"])
def test_a_second_server_is_refused_at_the_second_port_of_the_first(sharing: tuple[str, ...]) -> None:
    port = str(free_port())
    with running_server("--public", "--workers", "2", "--tcp_port", port):
        told = refused(*sharing, "--public", "--tcp_port", port)
    assert told.count(f"cannot listen on 127.0.0.1:{port}") == 1, told


# --- crashes ----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_was_killed_is_replaced_and_the_others_go_on(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        async with one_client_at_each(server) as clients:
            (killed, lost), (kept_on, client) = clients.items()
            await client.subscribe("s")
            os.kill(killed, signal.SIGKILL)
            await lost.closed()
            await until(lambda: not is_running(killed))  # and so no longer listens
            await publish(server, "s", "1")
            assert await client.messages(1) == [1]
            await until(lambda: re.search(r"worker \d serves again", server.log()))
            assert killed not in workers(server)
            assert kept_on in workers(server)
        async with one_client_at_each(server) as clients:
            assert kept_on in clients
        assert "SIGKILL" in server.log()


WATCHED_CLOSELY = """
import sys
from ropewalk.app import hang_watch
from ropewalk.cli.main import main
hang_watch.LOOK_SECONDS = 1.0
sys.exit(main())
"""
"""A server that waits for six seconds until a worker hangs, instead of thirty."""


async def test_a_worker_that_hangs_is_killed_and_replaced_and_its_clients_resume() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ROPEWALK_", "ANYCABLE_"))}
    program = (sys.executable, "-c", WATCHED_CLOSELY)
    with running_server("--public", "--workers", "2", inherited=None, program=program, **environ) as server:
        async with one_client_at_each(server) as clients:
            (hanging, lost), (kept_on, client) = clients.items()
            for each in (lost, client):
                await each.subscribe("s")
            await publish(server, "s", "1")
            assert await lost.messages(1) == await client.messages(1) == [1]
            os.kill(hanging, signal.SIGSTOP)
            await until(lambda: "hangs, and is killed" in server.log())
            await lost.closed()
            await until(lambda: re.search(r"worker \d serves again", server.log()))
            assert hanging not in workers(server)
            assert kept_on in workers(server)
            await publish(server, "s", "2")
            assert await client.messages(1) == [2]
            async with cable(server, sid=lost.sid) as returned:
                returned.positions = lost.positions
                assert [frame["message"] for frame in await returned.ask_history("s")] == [2]
        assert server.log().count("hangs, and is killed") == 1


async def test_a_store_process_that_was_killed_is_replaced(redis: RedisServer, tmp_path: Path) -> None:
    with running_server(*flags(redis, "--data_dir", str(tmp_path))) as server:
        former, before = store(server), set(workers(server))
        async with aiohttp.ClientSession(server.url) as http, cable(server) as client:

            async def status() -> int:
                async with http.get("/journal") as response:
                    await response.json()
                    return response.status

            await client.subscribe("s")
            assert await status() == 200
            os.kill(former, signal.SIGKILL)
            await until(lambda: not is_running(former))
            await publish(server, "s", "1")
            assert await client.messages(1) == [1]
            await until(lambda: "store serves again" in server.log())
            assert await status() == 200
        assert store(server) != former
        assert set(workers(server)) == before


async def test_a_signal_to_one_worker_is_told_as_what_it_is() -> None:
    with running_server("--public", "--workers", "2") as server:
        pid = next(iter(workers(server)))
        os.kill(pid, signal.SIGTERM)
        await until(lambda: "serves again" in server.log())
        [told] = [line for line in server.log().splitlines() if "starting it again" in line]
        assert " warn ropewalk.supervisor: " in told, told
        assert "send the signal to its supervisor" in told
        assert f"supervisor={server.process.pid}" in told
        assert pid not in workers(server)


async def test_without_its_supervisor_everything_ends(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        processes, place = list(children(server)), directory(server)
        assert (len(processes), place.is_dir()) == (3, True)
        server.process.kill()
        await until(lambda: not any(map(is_running, processes)))
        assert not place.exists()
        assert store_ended_last(server)


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_workers_and_then_the_store(engine: tuple[str, ...], number: signal.Signals) -> None:
    with running_server(*engine) as server:
        processes, place = list(children(server)), directory(server)
        async with cable(server) as client:
            server.process.send_signal(number)
            assert (await client.expect("disconnect"))["reconnect"] is True
        assert server.process.wait(STOP_SECONDS) == 0
        assert not any(map(is_running, processes))
        assert not place.exists()
        assert store_ended_last(server)


async def test_a_signal_to_all_processes_at_once_ends_them_in_order_too(redis: RedisServer) -> None:
    """As systemd does unless it is told otherwise."""
    with running_server(*flags(redis, "--shutdown_delay", "300ms")) as server:
        for pid in (*children(server), server.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert server.process.wait(STOP_SECONDS) == 0
        assert store_ended_last(server)
        assert "starting it again" not in server.log()


async def test_a_second_signal_means_now(redis: RedisServer) -> None:
    with running_server(*flags(redis, "--shutdown_delay", "1h", "--shutdown_timeout", "2h")) as server:
        processes, place = list(children(server)), directory(server)
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: server.log().count("shutting down") == 2)
        await asyncio.sleep(ECHO_SECONDS)  # before that it is the same one
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_SECONDS) == 1
        await until(lambda: not any(map(is_running, processes)))
        assert not place.exists()


@pytest.mark.parametrize("processes", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_one_signal_that_comes_twice_is_one(processes: tuple[str, ...]) -> None:
    """As from a terminal to the whole group, when a parent in it passes on what it gets. Two kinds are sent here, for the
    system makes one signal of two of the same kind that come at once."""
    with running_server("--public", "--shutdown_delay", "300ms", *processes) as server:
        async with cable(server) as client:
            for number in (signal.SIGINT, signal.SIGTERM):
                server.process.send_signal(number)
            assert (await client.expect("disconnect"))["reconnect"] is True
        assert server.process.wait(STOP_SECONDS) == 0


# --- other settings ---------------------------------------------------------------------------------------------------

SETTINGS = """
[server]
workers = {workers}
[limits]
max_message_size = {size}
[journal]
data_dir = "{data_dir}"
"""


async def test_sighup_replaces_all_workers_and_no_session_is_lost(engine: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text(SETTINGS.format(workers=2, size=65536, data_dir=""))
    kept = ("--history_limit", "100000")
    with running_server(*engine[:-2], *kept, "--config_path", str(file)) as server:  # which has the number of workers
        former = set(workers(server))
        async with connect(server.url) as client:
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
                file.write_text(SETTINGS.format(workers=3, size=100_000, data_dir=""))
                server.process.send_signal(signal.SIGHUP)
                sent = 1
                while "all workers were replaced" not in server.log():
                    with contextlib.suppress(aiohttp.ClientError):  # its worker may be at its end
                        await publish(server, "s", str(sent), uid=f"u{sent}")
                        sent += 1
                await other.closed()
                async with cable(server, sid=other.sid) as returned:
                    returned.positions = other.positions
                    history = [frame["message"] for frame in await returned.ask_history("s")]
                    live = [frame["message"] for frame in other.received if frame.get("offset")]
                    assert live + history == list(range(sent))
            await publish(server, "s", '"last"')
            await until(lambda: received and received[-1] == "last")
            assert received == [*range(sent), "last"]
            receiving.cancel()
        assert len(workers(server)) == 3
        assert not former & set(workers(server))


async def test_a_second_sighup_while_workers_are_replaced_is_remembered(engine: tuple[str, ...]) -> None:
    with running_server(*engine) as server:
        former = set(workers(server))
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: set(workers(server)) - former)
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: server.log().count("all workers were replaced") == 2)
        assert sorted(role.number for role in workers(server).values()) == [5, 6]


async def test_sighup_with_settings_that_cannot_be_used_changes_nothing(redis: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text(SETTINGS.format(workers=2, size=65536, data_dir=""))
    engine = ("--public", "--broker", "redis", "--redis_url", redis.url)
    with running_server(*engine, "--config_path", str(file)) as server:
        before = children(server)
        for wrong, reason in (
            (SETTINGS.format(workers=0, size=65536, data_dir=""), f"{file}: [server] workers wants a number from 1 to 64"),
            (SETTINGS.format(workers=2, size=65536, data_dir=tmp_path), "full restart: data_dir"),
            (SETTINGS.format(workers="2\ntcp_port = 65000", size=65536, data_dir=""), "full restart: tcp_port"),
            (
                SETTINGS.format(workers=2, size=65536, data_dir="") + '[auth]\njwt_secret = "later"\n',
                "JWT is switched on or off",
            ),
            (SETTINGS.format(workers=2, size=65536, data_dir="") + '[app]\napp = "no_such_module:app"\n', "no_such_module"),
        ):
            file.write_text(wrong)
            seen = len(server.log())
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: "not reloaded" in server.log()[seen:])  # noqa: B023 - it is over before the next round
            assert server.log()[seen:].count(reason) == 1
            assert "settings.toml" not in server.log()[seen:], "the copy that processes start from is nobody's file"
        assert children(server) == before


async def test_whoever_is_started_again_follows_the_settings_in_force_and_not_a_file_that_was_changed(tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text(SETTINGS.format(workers=2, size=65536, data_dir=tmp_path / "data"))
    with running_server("--public", "--config_path", str(file)) as server:
        await publish(server, "s", "1")
        file.write_text(SETTINGS.format(workers=0, size=65536, data_dir=tmp_path / "elsewhere"))
        for pid in (store(server), next(iter(workers(server)))):
            seen = len(server.log())
            os.kill(pid, signal.SIGKILL)
            await until(lambda: "serves again" in server.log()[seen:])  # noqa: B023 - it is over before the next round
        assert len(workers(server)) == 2
        async with cable(server) as client:
            await client.subscribe("s", history={"since": 1})
            assert [frame["message"] for frame in client.received if frame.get("offset")] == [1]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("number", ["1", "2"])
@pytest.mark.parametrize("mistake", [("--app", "no_such_module:app"), ("--ssl_cert", "no.pem", "--ssl_key", "no.pem")])
async def test_a_server_that_could_not_start_takes_nothing_over(mistake: tuple[str, ...], number: str, tmp_path: Path) -> None:
    taking = ("--public", "--workers", number, "--takeover", "--data_dir", str(tmp_path), "--port", str(free_port()))
    with running_server(*taking) as former:
        command = [sys.executable, "-m", "ropewalk", "serve", *taking, *mistake]
        failed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
        assert failed.returncode != 0
        assert "taking over" not in failed.stderr
        await publish(former, "s", "1")


# --- what only the store process can answer ---------------------------------------------------------------------------


async def test_the_journal_is_read_and_written_through_any_worker(redis: RedisServer, tmp_path: Path) -> None:
    token = "journal token of some length"
    secured = ("--journal_token", token, "--noauth", "--broker", "redis", "--redis_url", redis.url, "--workers", "2")
    redis.ask("FLUSHALL")
    size = 4 << 20
    with running_server(*secured, "--data_dir", str(tmp_path), "--max_stage_size", str(size)) as server:
        async with aiohttp.ClientSession(server.url) as http, http.get("/journal") as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {token}"}) as http:
            body = rows_body(*[("s", json.dumps("x" * 1000))] * 2000)
            assert size > len(body) > 1 << 20
            path = "/journal/transactions/app/0"
            async with http.post(f"{path}/stage?part=0&attempt=0&seq=0", data=body) as response:
                assert response.status == 200, await response.text()
            async with http.post(f"{path}/commit", json={"winners": {"0": 0}}) as response:
                assert response.status == 200, await response.text()
            async with http.post(f"{path}/stage?part=0&attempt=0&seq=0", data=bytes(size + 1)) as response:
                assert response.status == 413
            async with http.get("/journal/transactions/app") as response:
                assert await response.json() == {"last": 0}
            async with http.delete("/journal/consumers/nobody") as response:
                assert (response.status, "nobody" in (await response.json())["error"]) == (404, True)
            async with http.patch("/journal") as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")

            async def rows() -> int:
                async with http.get("/journal") as response:
                    spans = (await response.json())["spans"]
                return sum(span["end"] - span["first"] for span in spans)

            async with asyncio.timeout(WITHIN):
                while await rows() < 2000:
                    await asyncio.sleep(0.05)
            async with tcp(server) as link:
                await link.send(b"POST /journal/publications HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n")
                await link.send(f"Authorization: Bearer {token}\r\n\r\n1\r\nx\r\nno number\r\n".encode())
                assert (await link.response())[0] == 400
            os.kill(store(server), signal.SIGSTOP)
            os.kill(store(server), signal.SIGKILL)
            statuses: set[int] = set()
            async with asyncio.timeout(WITHIN):
                while statuses != {200, 503}:
                    async with http.get("/journal") as response:
                        statuses.add(response.status)
                        assert "spans" in (answer := await response.json()) or "store" in answer["error"]


async def test_the_next_server_takes_over_from_all_processes_of_the_former(redis: RedisServer, tmp_path: Path) -> None:
    taking = ("--takeover", "--data_dir", str(tmp_path), "--port", str(free_port()))
    with running_server(*flags(redis, *taking)) as former:
        async with cable(former) as client:
            with running_server("--public", "--broker", "redis", "--redis_url", redis.url, "--workers", "2", *taking) as later:
                assert former.process.wait(STOP_SECONDS) == 0
                await client.closed()
                async with cable(later, sid=client.sid):
                    assert len(workers(later)) == 2


# --- NATS -------------------------------------------------------------------------------------------------------------


async def test_workers_use_the_embedded_nats_server_of_the_store_process_which_keeps_its_place() -> None:
    with running_server(
        *("--public", "--broker", "nats", "--embed_nats", "--enats_addr", "nats://127.0.0.1:0", "--workers", "2")
    ) as server:
        assert server.log().count("nats-server is up") == 1
        async with one_client_at_each(server) as clients:
            for client in clients.values():
                await client.subscribe("s")
            await publish(server, "s", "1")
            for client in clients.values():
                assert await client.messages(1) == [1]
            os.kill(store(server), signal.SIGKILL)
            await until(lambda: "store serves again" in server.log())

            async def published() -> bool:
                with contextlib.suppress(AssertionError):
                    return bool(await publish(server, "s", "2", uid="2"))
                return False

            async with asyncio.timeout(WITHIN):
                while not await published():
                    await asyncio.sleep(0.1)
            for client in clients.values():
                assert await client.messages(1) == [2]


async def test_what_comes_by_a_channel_is_delivered_once_to_the_clients_of_each_worker(redis: RedisServer) -> None:
    adapters = ("--broadcast_adapter", "redis,redisx,nats")
    with nats_server() as nats, running_server(*flags(redis, *adapters, "--nats_servers", nats.url)) as server:
        async with one_client_at_each(server) as clients:
            for client in clients.values():
                await client.subscribe("s")
            redis.ask("PUBLISH", "__anycable__", json.dumps({"stream": "s", "data": "1"}))
            for client in clients.values():
                assert await client.messages(1) == [1]
            redis.ask("XADD", "__anycable__", "*", "payload", json.dumps({"stream": "s", "data": "2"}))
            for client in clients.values():
                assert await client.messages(1) == [2]
                await client.quiet()
        assert len(redis.ask("XINFO", "CONSUMERS", "__anycable__", "bx")) == 1  # one reads for all: the store process
        assert redis.ask("PUBSUB", "NUMSUB", "__anycable__") == ["__anycable__", 2]
