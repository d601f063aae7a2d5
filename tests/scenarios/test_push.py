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
from tests.scenarios.command_line import ENVIRON, SECONDS, run_ropewalk, running_program
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
        runs = await subscriber.messages(3)
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


async def test_push_names_a_key_as_publish_and_tail_name_its_stream(server: RunningServer) -> None:
    name = "~b64:_wA"
    for verb in ("push", "publish"):
        result = run_ropewalk(verb, name, "1", "--url", server.url)
        assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("offset=2\n")
    tailed = run_ropewalk("tail", name, "--from", "1", "--count", "2", "--url", server.url)
    assert [line.split()[0] for line in tailed.stdout.splitlines()] == [name, name]
    async with client(server) as subscriber:
        await subscriber.subscribe(b"\xff\x00")
        result = run_ropewalk("push", name, "2", "--key_partition", name, "--url", server.url)
        assert result.returncode == 0, "the partition key is the key itself, and has to be written in the same way"
        assert (await subscriber.expect(Run)).payload == b"2"


@pytest.mark.parametrize("words", [("~b64:!!", "1"), ("k", "1", "--key_partition", "~b64:!!"), ("~b64:!!", "--lines")])
def test_a_name_that_no_key_has_is_a_mistake(words: tuple[str, ...], server: RunningServer) -> None:
    result = run_ropewalk("push", *words, "--url", server.url, text="1\n")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ropewalk: '~b64:!!' is no name of a stream")


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


async def test_push_sends_a_line_as_soon_as_it_is_there(server: RunningServer) -> None:
    async with running_program("-m", "ropewalk", "push", "cli/live", "--lines", "--url", tcp(server)) as program:
        program.write("first\n")
        assert (await program.line()).endswith("offset=1")
        program.write("second\nthird")
        assert (await program.line()).endswith("offset=2")
        assert await program.interrupt() == 130


def test_the_first_line_that_is_refused_ends_it(server: RunningServer) -> None:
    lines = "1\n" * 600 + "{\n" + "1\n" * 5000
    result = run_ropewalk("push", "cli/refused", "--lines", "--json", "--url", tcp(server), text=lines)
    assert result.returncode == 1
    assert "line 601 was refused: the payload is not JSON" in result.stderr
    assert result.stderr.startswith("lines 1 to 600 are registered\n")
    assert "Traceback" not in result.stderr
    assert [line.rpartition("=")[2] for line in result.stdout.splitlines()] == [str(number) for number in range(1, 601)]
    after = run_ropewalk("push", "cli/refused", "1", "--json", "--url", tcp(server))
    assert after.stdout.endswith("offset=601\n")


def test_a_single_message_that_is_refused_has_no_number(server: RunningServer) -> None:
    for words in (
        ("push", "cli/refused", "{", "--json", "--url", tcp(server)),
        ("publish", "n" * 9999, "1", "--url", server.url),
    ):
        result = run_ropewalk(*words)
        assert (result.returncode, "the message was refused: " in result.stderr) == (1, True), result.stderr


def test_a_line_that_only_the_server_refuses_is_named() -> None:
    with running_server("--public", "--max_publish_size", "2500") as server:
        lines = "\n".join(["1", "", "2", "x" * 2000, "3"])
        result = run_ropewalk("push", "cli/long", "--lines", "--url", tcp(server), text=lines)
    assert result.returncode == 1
    assert "line 4 was refused" in result.stderr, result.stderr
    assert "no line is known to be registered" in result.stderr


async def test_a_server_that_goes_away_leaves_word_how_far_it_got() -> None:
    with running_server("--public") as server:
        words = ("push", "cli/gone", "--lines", "--attempts", "2", "--url", tcp(server))
        async with running_program("-m", "ropewalk", *words) as program:
            program.write("first\nsecond\n")
            for offset in (1, 2):
                assert (await program.line()).endswith(f"offset={offset}")
            server.kill()
            program.write("third\n")
            assert await program.ended() == 1
            told = await program.complaint()
            assert told == "lines 1 to 2 are registered; those after it up to 3 were sent, and may be"
            assert "is the server running there?" in await program.complaint()


def test_push_says_what_is_wrong() -> None:
    assert "DATA is missing" in run_ropewalk("push", "k").stderr
    assert "leave DATA away" in run_ropewalk("push", "k", "x", "--lines").stderr
    assert "tcp://" in run_ropewalk("push", "k", "x", "--url", "nonsense").stderr


@pytest.mark.parametrize("flags", [(), ("--token", "guess")])
def test_a_key_that_is_missing_or_wrong_is_told_with_what_brings_it(flags: tuple[str, ...]) -> None:
    with running_server("--secret", SECRET) as server:
        result = run_ropewalk("push", "k", "1", *flags, "--url", server.url)
    assert (result.returncode, "; --token brings the key for publishing" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("flags", "variables", "help"),
    [
        (("--token", "guess"), {"ROPEWALK_SECRET": SECRET}, "One of them is set here: try it without --token"),
        ((), {"ROPEWALK_SECRET": "another"}, "One of them is set here, and is not that of the server"),
        ((), {"ROPEWALK_API_SECRET": "another"}, "One of them is set here, and is not that of the server"),
    ],
    ids=["token", "secret", "key"],
)
def test_where_a_secret_is_set_a_refused_key_is_told_with_what_it_has_to_do_with_it(
    flags: tuple[str, ...], variables: dict[str, str], help: str
) -> None:
    with running_server("--secret", SECRET) as server:
        result = run_ropewalk("push", "k", "1", *flags, "--url", server.url, **variables)
    assert (result.returncode, help in result.stderr) == (2, True), result.stderr


def test_what_keeps_no_place_is_printed_as_publish_prints_it() -> None:
    with running_server("--public", "--history_limit", "0") as server:
        printed = [run_ropewalk(verb, "k", "1", "--url", server.url).stdout for verb in ("push", "publish")]
    assert printed == ["k transient\n"] * 2
