"""Pushes over Broky with `Pusher` and with `ropewalk push`."""

import asyncio

import pytest

from ropewalk.client import KeyRefused, PublicationRefused, PublishUnavailable, Pusher
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.broky.frames import Format, Run
from tests.broky_client import client
from tests.certificates import CERTIFICATE
from tests.clients.credentials import SECRET
from tests.scenarios.command_line import run_ropewalk, running_program
from tests.scenarios.python_clients import API_KEY, TCP, pusher_to
from tests.scenarios.shared_servers import EPHEMERAL, ServerWith
from tests.server import RunningServer, running_server
from tests.services import free_port

tcp = TCP.url


async def test_push_returns_the_position_of_its_first_message(server: RunningServer) -> None:
    async with client(server) as subscriber, pusher_to(server) as pusher:
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


async def test_concurrent_pushes_are_all_registered(server: RunningServer) -> None:
    async with pusher_to(server) as pusher:
        positions = await asyncio.gather(*(pusher.push(b"sdk/many", [b"x"]) for _ in range(50)))
    assert sorted(position.offset for position in positions) == list(range(1, 51))


async def test_refused_push_raises_and_the_next_one_succeeds(server: RunningServer) -> None:
    async with pusher_to(server) as pusher:
        with pytest.raises(PublicationRefused) as caught:
            await pusher.push(b"sdk/json", [b"1", b"{"], format=Format.JSON)
        assert caught.value.index == 1
        await pusher.push(b"sdk/json", [b"1"], key_partition=b"a")
        with pytest.raises(PublicationRefused, match="partition key"):
            await pusher.push(b"sdk/json", [b"1"], key_partition=b"b")
        assert (await pusher.push(b"sdk/json", [b"1"])).offset == 2
        with pytest.raises(ValueError, match="at least one"):
            await pusher.push(b"sdk/json", [])
    async with Pusher(tcp(server), None, ca_file=None) as pusher:
        assert (await pusher.push(b"sdk/json", [b"1"])).offset == 3


async def test_push_during_a_restart_is_retried_and_registered_once() -> None:
    port = free_port()
    flags = ("--public", "--port", str(port))
    async with Pusher(f"tcp://127.0.0.1:{port}", attempts=100, backoff=Backoff(0.05, 0.2)) as pusher:
        with running_server(*flags):
            assert (await pusher.push(b"k", [b"before"])).offset == 1
        pushing = asyncio.create_task(pusher.push(b"k", [b"after"]))
        with running_server(*flags):
            assert (await pushing).offset == 1  # without a journal the stream starts again
            assert (await pusher.push(b"k", [b"next"])).offset == 2


async def test_unreachable_server_is_reported_after_the_last_attempt() -> None:
    async with Pusher(f"tcp://127.0.0.1:{free_port()}", attempts=2, backoff=Backoff(0.01, 0.02)) as pusher:
        with pytest.raises(PublishUnavailable, match="gave no answer"):
            await pusher.push(b"k", [b"x"])


async def test_push_needs_the_publishing_key(keyed: RunningServer) -> None:
    async with pusher_to(keyed, "guess") as pusher:
        with pytest.raises(KeyRefused):
            await pusher.push(b"sdk/keyed", [b"x"])
    async with pusher_to(keyed, API_KEY) as pusher:
        assert (await pusher.push(b"sdk/keyed", [b"x"])).offset == 1


async def test_push_over_tls_is_registered(tls_server: RunningServer) -> None:
    async with Pusher(tls_server.url, ca_file=CERTIFICATE) as pusher:
        assert (await pusher.push(b"sdk/tls", [b"x"])).offset == 1


def test_invalid_address_is_a_user_mistake() -> None:
    for url in ("127.0.0.1:8080", "tcp://", "tcp://host", "ftp://host:1"):
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


async def test_push_publish_and_tail_use_the_same_names(server: RunningServer) -> None:
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


def test_invalid_name_is_a_mistake(server: RunningServer) -> None:
    for words in (("~b64:!!", "1"), ("k", "1", "--key_partition", "~b64:!!"), ("~b64:!!", "--lines")):
        result = run_ropewalk("push", *words, "--url", server.url, text="1\n")
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("ropewalk: '~b64:!!' is not a stream name")


async def test_push_reads_bytes_from_standard_input(server: RunningServer) -> None:
    async with client(server) as subscriber:
        await subscriber.subscribe(b"cli/bytes")
        assert run_ropewalk("push", "cli/bytes", "-", "--url", tcp(server), text=b"\xff\x00\n").returncode == 0
        assert (await subscriber.expect(Run)).payload == b"\xff\x00\n"


async def test_push_lines_sends_each_line(server: RunningServer) -> None:
    lines = "".join(f"{number}\n" for number in range(1200)) + "\nlast"
    result = run_ropewalk("push", "cli/lines", "--lines", "--url", tcp(server), text=lines)
    assert result.returncode == 0, result.stderr
    assert [line.rpartition("=")[2] for line in result.stdout.splitlines()] == [str(number) for number in range(1, 1202)]


async def test_push_lines_sends_each_line_at_once(server: RunningServer) -> None:
    async with running_program("-m", "ropewalk", "push", "cli/live", "--lines", "--url", tcp(server)) as program:
        program.write("first\n")
        assert (await program.line()).endswith("offset=1")
        program.write("second\nthird")
        assert (await program.line()).endswith("offset=2")
        assert await program.interrupt() == 130


def test_push_lines_ends_with_the_first_refused_line(server: RunningServer) -> None:
    lines = "1\n" * 600 + "{\n" + "1\n" * 5000
    result = run_ropewalk("push", "cli/refused", "--lines", "--json", "--url", tcp(server), text=lines)
    assert result.returncode == 1
    assert "line 601 was refused: the payload is not JSON" in result.stderr
    assert result.stderr.startswith("lines 1 to 600 are registered\n")
    assert "Traceback" not in result.stderr
    assert [line.rpartition("=")[2] for line in result.stdout.splitlines()] == [str(number) for number in range(1, 601)]
    after = run_ropewalk("push", "cli/refused", "1", "--json", "--url", tcp(server))
    assert after.stdout.endswith("offset=601\n")


def test_refused_single_message_has_no_line_number(server: RunningServer) -> None:
    for words in (
        ("push", "cli/refused", "{", "--json", "--url", tcp(server)),
        ("publish", "n" * 9999, "1", "--url", server.url),
    ):
        result = run_ropewalk(*words)
        assert (result.returncode, "the message was refused: " in result.stderr) == (1, True), result.stderr


def test_line_that_the_server_refuses_is_named() -> None:
    with running_server("--public", "--max_publish_size", "2500") as server:
        lines = "\n".join(["1", "", "2", "x" * 2000, "3"])
        result = run_ropewalk("push", "cli/long", "--lines", "--url", tcp(server), text=lines)
    assert result.returncode == 1
    assert "line 4 was refused" in result.stderr, result.stderr
    assert "no line is known to be registered" in result.stderr


async def test_lost_server_is_reported_with_the_registered_lines() -> None:
    with running_server("--public") as server:
        words = ("push", "cli/gone", "--lines", "--attempts", "2", "--url", tcp(server))
        async with running_program("-m", "ropewalk", *words) as program:
            program.write("first\nsecond\n")
            for offset in (1, 2):
                assert (await program.line()).endswith(f"offset={offset}")
            server.kill()
            program.write("third\n")
            assert await program.ended() == 1
            complaint = await program.complaint()
            assert complaint == "lines 1 to 2 are registered; later ones up to 3 were sent and may be registered"
            assert "is the server running there?" in await program.complaint()


def test_mistake_is_explained() -> None:
    assert "DATA is missing" in run_ropewalk("push", "k").stderr
    assert "omit DATA" in run_ropewalk("push", "k", "x", "--lines").stderr
    assert "tcp://" in run_ropewalk("push", "k", "x", "--url", "nonsense").stderr


def test_refused_key_is_explained_by_the_flags_and_variables_that_set_it(keyed: RunningServer) -> None:
    failed = []
    for flags, variables, hint in (
        ((), {}, "; pass the key for publishing with --token"),
        (("--token", "guess"), {}, "; pass the key for publishing with --token"),
        (("--token", "guess"), {"ROPEWALK_SECRET": SECRET}, "One is set here: try without --token"),
        ((), {"ROPEWALK_SECRET": "another"}, "The one that is set here is not the key of the server"),
        ((), {"ROPEWALK_API_SECRET": "another"}, "The one that is set here is not the key of the server"),
    ):
        result = run_ropewalk("push", "k", "1", *flags, "--url", keyed.url, **variables)
        if (result.returncode, hint in result.stderr) != (2, True):
            failed.append((flags, variables, result))
    assert not failed


def test_message_of_an_ephemeral_stream_is_printed_as_transient(server_with: ServerWith) -> None:
    url = server_with(*EPHEMERAL).url
    assert [run_ropewalk(verb, "k", "1", "--url", url).stdout for verb in ("push", "publish")] == ["k transient\n"] * 2
