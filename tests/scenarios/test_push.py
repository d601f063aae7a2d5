"""Pushing over TCP from Python and from a shell."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.client import KeyRefused, PublicationRefused, PublishUnavailable, Pusher
from ropewalk.core.backoff import Backoff
from ropewalk.core.signatures import API_PHRASE, derive
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import new_ksuid
from tests.broky_client import client
from tests.scenarios.command_line import ENVIRON, SECONDS, run_ropewalk
from tests.server import RunningServer, running_server
from tests.services import free_port

FIXTURES = Path(__file__).parents[1] / "fixtures"
SECRET = "qwerty"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public") as running:
        yield running


def tcp(server: RunningServer) -> str:
    return f"tcp://127.0.0.1:{server.port}"


async def test_a_push_returns_the_position_of_its_first_message(server: RunningServer) -> None:
    async with client(server) as subscriber, Pusher(tcp(server)) as pusher:
        await subscriber.subscribe(b"sdk/one")
        first = await pusher.push(b"sdk/one", [b"\xff", b""])
        assert first.offset == 1
        assert (await pusher.push(b"sdk/one", [b"{}"], format=Format.JSON)).offset == 3
        runs = await subscriber.some(Run, 3)
        assert [(run.offset, run.payload, run.format) for run in runs] == [
            (1, b"\xff", Format.BYTES),
            (2, b"", Format.BYTES),
            (3, b"{}", Format.JSON),
        ]
        assert {run.epoch.decode() for run in runs} == {first.epoch}


async def test_pushes_at_once_are_all_registered(server: RunningServer) -> None:
    async with Pusher(tcp(server)) as pusher:
        positions = await asyncio.gather(*(pusher.push(b"sdk/many", [b"x"]) for _ in range(50)))
    assert sorted(position.offset for position in positions) == list(range(1, 51))


async def test_the_same_uid_gets_the_same_position(server: RunningServer) -> None:
    uid = new_ksuid(time.time())
    async with Pusher(tcp(server)) as pusher:
        first = await pusher.push(b"sdk/uid", [b"x"], uids=[uid])
        assert await pusher.push(b"sdk/uid", [b"x"], uids=[uid]) == first


async def test_what_is_refused_is_raised_and_the_next_push_goes_on(server: RunningServer) -> None:
    async with Pusher(tcp(server)) as pusher:
        with pytest.raises(PublicationRefused) as caught:
            await pusher.push(b"sdk/json", [b"1", b"{"], format=Format.JSON)
        assert caught.value.index == 1
        await pusher.push(b"sdk/json", [b"1"], key_partition=b"a")
        with pytest.raises(PublicationRefused, match="partition key"):
            await pusher.push(b"sdk/json", [b"1"], key_partition=b"b")
        assert (await pusher.push(b"sdk/json", [b"1"])).offset == 2
        with pytest.raises(ValueError, match="at least one"):
            await pusher.push(b"sdk/json", [])


async def test_a_server_that_restarts_is_waited_for_and_nothing_is_doubled() -> None:
    port = free_port()
    flags = ("--public", "--port", str(port))
    async with Pusher(f"tcp://127.0.0.1:{port}", attempts=100, backoff=Backoff(0.05, 0.2)) as pusher:
        with running_server(*flags):
            assert (await pusher.push(b"k", [b"before"])).offset == 1
        pushing = asyncio.create_task(pusher.push(b"k", [b"after"]))
        with running_server(*flags):
            assert (await pushing).offset == 1  # without a journal the stream began anew
            assert (await pusher.push(b"k", [b"next"])).offset == 2


async def test_a_server_that_is_not_there_is_told() -> None:
    async with Pusher(f"tcp://127.0.0.1:{free_port()}", attempts=2, backoff=Backoff(0.01, 0.02)) as pusher:
        with pytest.raises(PublishUnavailable, match="gave no answer"):
            await pusher.push(b"k", [b"x"])


async def test_a_key_is_needed_where_publishing_has_one() -> None:
    with running_server("--secret", SECRET) as server:
        async with Pusher(tcp(server), "guess") as pusher:
            with pytest.raises(KeyRefused):
                await pusher.push(b"k", [b"x"])
        async with Pusher(tcp(server), derive(SECRET, API_PHRASE)) as pusher:
            assert (await pusher.push(b"k", [b"x"])).offset == 1


async def test_it_pushes_over_tls() -> None:
    certificate = FIXTURES / "tls_cert.pem"
    with running_server("--public", "--ssl_cert", str(certificate), "--ssl_key", str(FIXTURES / "tls_key.pem")) as server:
        async with Pusher(server.url, ca_file=str(certificate)) as pusher:
            assert (await pusher.push(b"k", [b"x"])).offset == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "tcp://", "tcp://host", "ftp://host:1"])
def test_what_is_no_address_is_a_mistake(url: str) -> None:
    with pytest.raises(UserMistake, match="tcp://"):
        Pusher(url)


# --- from a shell -----------------------------------------------------------------------------------------------------


async def test_push_prints_the_positions(server: RunningServer) -> None:
    async with client(server) as subscriber:
        await subscriber.subscribe(b"cli/one")
        result = run_ropewalk("push", "cli/one", "21.5", "--json", "--url", server.url)
        assert result.returncode == 0, result.stderr
        key, epoch, offset = result.stdout.split()
        assert (key, offset) == ("cli/one", "offset=1")
        run = await subscriber.expect(Run)
        assert (run.payload, run.format, f"epoch={run.epoch.decode()}") == (b"21.5", Format.JSON, epoch)


async def test_push_reads_bytes_from_standard_input(server: RunningServer) -> None:
    async with client(server) as subscriber:
        await subscriber.subscribe(b"cli/bytes")
        command = [sys.executable, "-m", "ropewalk", "push", "cli/bytes", "-", "--url", tcp(server)]
        subprocess.run(command, input=b"\xff\x00\n", check=True, timeout=SECONDS, env=ENVIRON)
        assert (await subscriber.expect(Run)).payload == b"\xff\x00\n"


async def test_push_sends_each_line(server: RunningServer) -> None:
    lines = "".join(f"{number}\n" for number in range(1200)) + "\nlast"
    result = run_ropewalk("push", "cli/lines", "--lines", "--url", tcp(server), text=lines)
    assert result.returncode == 0, result.stderr
    assert [line.rpartition("=")[2] for line in result.stdout.splitlines()] == [str(number) for number in range(1, 1202)]


def test_push_says_what_is_wrong() -> None:
    assert "DATA is missing" in run_ropewalk("push", "k").stderr
    assert "leave DATA away" in run_ropewalk("push", "k", "x", "--lines").stderr
    assert "tcp://" in run_ropewalk("push", "k", "x", "--url", "nonsense").stderr
