"""`ropewalk publish` and `ropewalk tail` from a shell."""

import json
import os
import time
from pathlib import Path

import pytest

from ropewalk.client import Draft, Publisher
from tests.clients.credentials import SECRET, signed, token
from tests.scenarios.command_line import Program, run_ropewalk, running_program
from tests.scenarios.python_clients import API_KEY
from tests.scenarios.shared_servers import SHORT_HISTORY, WITHOUT_STORE, ServerWith
from tests.server import RunningServer


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with(*SHORT_HISTORY)


async def shown(program: Program, count: int) -> list[tuple[int, object]]:
    """The offsets and data that `tail --json` printed."""
    messages = [json.loads(await program.line()) for _ in range(count)]
    return [(message["offset"], message["data"]) for message in messages]


def tail_with_past(server: RunningServer, *words: str) -> list[str]:
    result = run_ropewalk("tail", *words, "--url", server.url)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


# --- publish ----------------------------------------------------------------------------------------------------------


async def test_publish_prints_the_position(server: RunningServer) -> None:
    result = run_ropewalk("publish", "cli/one", '{"price":1.10}', "--url", server.url)
    assert result.returncode == 0, result.stderr
    stream, epoch, offset = result.stdout.split()
    assert (stream, offset) == ("cli/one", "offset=1")
    [line] = tail_with_past(server, "cli/one", "--from", "1", "--count", "1")
    assert line == f'cli/one {epoch} offset=1 {{"price":1.1}}'


async def test_publish_accepts_plain_text_and_standard_input(server: RunningServer) -> None:
    run_ropewalk("publish", "cli/text", "hello there", "--url", server.url)
    run_ropewalk("publish", "cli/text", "-", "--url", server.url, text="from a pipe\n")
    like_json = run_ropewalk("publish", "cli/text", '{"a":', "--url", server.url)
    assert like_json.stderr.startswith("the message looks like JSON and is not (")
    lines = tail_with_past(server, "cli/text", "--from", "1", "--count", "3", "--json")
    assert [json.loads(line)["data"] for line in lines] == ["hello there", "from a pipe", '{"a":']


def test_publish_of_bytes_that_are_not_text_is_a_mistake_and_publishes_nothing(server: RunningServer) -> None:
    for words, given, place in (
        (("-",), b'{"text":"\xff"}', "standard input"),
        (("--lines",), b"one\n\xfe\xff\nthree\n", "line 2 of standard input"),
    ):
        done = run_ropewalk("publish", "cli/bytes", *words, "--url", server.url, text=given)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"ropewalk: {place} is not UTF-8 text")


async def test_publish_with_a_repeated_uid_prints_a_duplicate(server: RunningServer) -> None:
    words = ("publish", "cli/uid", "1", "--uid", "order-7", "--url", server.url)
    first, second = run_ropewalk(*words).stdout, run_ropewalk(*words).stdout
    assert second == first.rstrip() + " duplicate\n"


async def test_publish_sets_the_partition_key_of_a_new_stream_and_cannot_change_it(server: RunningServer) -> None:
    words = ("publish", "cli/key", "1", "--url", server.url, "--partition_key")
    assert [run_ropewalk(*words, "k").returncode for _ in range(2)] == [0, 0]
    refused = run_ropewalk(*words, "other")
    assert (refused.returncode, "the partition key 'k'" in refused.stderr) == (1, True)


async def test_publish_lines_publishes_each_line_and_shows_progress(server: RunningServer) -> None:
    lines = "".join(f"{n}\n" for n in range(2500))
    words = ("publish", "cli/lines", "--lines", "--uid", "import", "--url", server.url)
    result = run_ropewalk(*words, text=lines + "\nlast without an end")
    assert [line.split()[2] for line in result.stdout.splitlines()] == [f"offset={n}" for n in range(1, 2502)]
    assert result.stderr.splitlines() == ["1000 published", "2000 published"]
    again = run_ropewalk(*words, text=lines)
    assert all(line.endswith("duplicate") for line in again.stdout.splitlines())


async def test_publish_lines_sends_each_line_at_once(server: RunningServer) -> None:
    words = ("-m", "ropewalk", "publish", "cli/live", "-", "--lines", "--url", server.url)
    async with running_program(*words) as program:
        program.write("first\n")
        assert (await program.line()).endswith("offset=1")
        program.write("second\nthird")
        assert (await program.line()).endswith("offset=2")
        assert await program.interrupt() == 130


async def test_publish_finds_its_key_in_the_environment(guarded: RunningServer) -> None:
    words = ("publish", "cli/key", "1", "--url", guarded.url)
    assert run_ropewalk(*words, ROPEWALK_SECRET=SECRET).returncode == 0
    assert run_ropewalk(*words, ROPEWALK_API_SECRET=API_KEY).returncode == 0
    assert run_ropewalk(*words, "--key", API_KEY).returncode == 0
    help = "a valid bearer key is needed; pass the key for publishing with --key; the default is ROPEWALK_API_SECRET"
    for flags in ((), ("--key", "guess")):
        refused = run_ropewalk(*words, *flags)
        assert (refused.returncode, help in refused.stderr) == (2, True), refused.stderr
    mistaken = run_ropewalk(*words, "--key", "guess", ROPEWALK_SECRET=SECRET)
    assert mistaken.stderr.endswith("One is set here: try without --key\n")


async def test_address_is_taken_from_the_settings_of_the_server(server: RunningServer, tmp_path: Path) -> None:
    settings = tmp_path / "ropewalk.toml"
    settings.write_text(f"[server]\nport = {server.port}\n")
    for variables in ({"ROPEWALK_PORT": str(server.port)}, {"ROPEWALK_CONFIG_PATH": str(settings)}):
        for words in (("publish", "cli/found", "1"), ("tail", "cli/found", "--from", "1", "--count", "1")):
            result = run_ropewalk(*words, **variables)
            assert (result.returncode, result.stderr) == (0, "")


# --- tail -------------------------------------------------------------------------------------------------------------


async def test_tail_prints_live_messages_and_ends_on_control_c(server: RunningServer, publisher: Publisher) -> None:
    await publisher.publish("cli/live-tail", 0)
    words = ("-m", "ropewalk", "tail", "cli/live-tail", "cli/other", "--from", "1", "--json", "--url", server.url)
    async with running_program(*words) as program:
        assert await shown(program, 1) == [(1, 0)]
        await publisher.publish("cli/live-tail", {"n": 1})
        assert await shown(program, 1) == [(2, {"n": 1})]
        await publisher.publish("cli/other", None, transient=True)
        assert await shown(program, 1) == [(0, "null")]
        await publisher.publish("cli/other", 1, transient=True)
        assert json.loads(await program.line())["stream"] == "cli/other"
        assert await program.interrupt() == 130
        assert await program.complaint() == ""


async def test_tail_since_prints_recent_messages(server: RunningServer, publisher: Publisher) -> None:
    await publisher.publish_batch([Draft("cli/since", n) for n in range(3)])
    for since in ("10m", str(int(time.time() - 600))):
        assert len(tail_with_past(server, "cli/since", "--since", since, "--count", "3")) == 3


async def test_tail_from_an_offset_starts_there(server: RunningServer, publisher: Publisher) -> None:
    await publisher.publish_batch([Draft("cli/from", n) for n in range(1, 5)])
    lines = tail_with_past(server, "cli/from", "--from", "3", "--count", "2", "--json")
    assert [json.loads(line)["offset"] for line in lines] == [3, 4]


async def test_tail_from_a_trimmed_offset_prints_a_gap_and_starts_with_the_oldest(
    server: RunningServer, publisher: Publisher
) -> None:
    await publisher.publish_batch([Draft("cli/trimmed", n) for n in range(1, 21)])
    within = run_ropewalk("tail", "cli/trimmed", "--from", "18", "--count", "3", "--json", "--url", server.url)
    assert [json.loads(line)["offset"] for line in within.stdout.splitlines()] == [18, 19, 20]
    assert within.stderr == ""
    before = run_ropewalk("tail", "cli/trimmed", "--from", "2", "--count", "5", "--json", "--url", server.url)
    assert [json.loads(line)["offset"] for line in before.stdout.splitlines()] == [16, 17, 18, 19, 20]
    assert before.stderr.startswith("gap in cli/trimmed: 14 messages lost (trimmed); continues at epoch=")


async def test_tail_ends_when_its_output_is_closed(server: RunningServer) -> None:
    reading, writing = os.pipe()
    with open(writing, "wb") as output:
        words = ("-m", "ropewalk", "tail", "cli/pipe", "--url", server.url)
        async with running_program(*words, output=output) as program:
            output.close()
            os.close(reading)
            assert await program.ended() == 0
            assert await program.complaint() == ""


async def test_tail_of_a_signed_stream_with_a_token(guarded: RunningServer) -> None:
    async with Publisher(guarded.url, API_KEY) as publisher:
        await publisher.publish("cli/signed", "secret")
    jwt = token()
    words = ("--signed", "--token", jwt, "--from", "1", "--count", "1", "--json")
    [line] = tail_with_past(guarded, signed("cli/signed"), *words)
    assert json.loads(line)["data"] == "secret"
    refused = run_ropewalk("tail", "cli/signed", "--token", jwt, "--url", guarded.url)
    assert refused.returncode == 2
    assert "others --signed" in refused.stderr
    stranger = run_ropewalk("tail", "cli/signed", "--url", guarded.url)
    assert (stranger.returncode, "--token" in stranger.stderr) == (2, True)
    assert "token jwt" not in stranger.stderr
    for given, hint in (((), "set here\n"), (("--token", "x"), "set here, which must be the secret of the server\n")):
        stranger = run_ropewalk("tail", "cli/signed", *given, "--url", guarded.url, ROPEWALK_SECRET=SECRET)
        assert stranger.returncode == 2
        assert "`ropewalk token jwt --ids" in stranger.stderr
        assert stranger.stderr.endswith(hint)
    with_broken_settings = run_ropewalk("tail", "x", "--url", guarded.url, ROPEWALK_CONFIG_PATH="no_such_file.toml")
    assert with_broken_settings.stderr.endswith("pass a valid token with --token\n")


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistake_is_explained_without_a_traceback() -> None:
    failed = []
    for words, hint in (
        (("tail", "a", "--url", "localhost:8080"), "not a server's URL"),
        (("publish", "a"), "DATA is missing"),
        (("publish", "a", "1", "--lines"), "--lines reads standard input"),
        (("tail", "a", "--since", "yesterday"), "a duration, such as 90s, 10m, 1h or 90, or a UNIX time, not 'yesterday'"),
        (("tail", "a", "--from", "0"), "positive integer"),
        (("publish", "a", "1", "--attempts", "0"), "positive integer"),
        (("tail", "a", "--from", "1", "--since", "1m"), "not allowed with"),
        (("tail",), "STREAM"),
    ):
        result = run_ropewalk(*words)
        if result.returncode != 2 or hint not in result.stderr or "Traceback" in result.stderr:
            failed.append((words, result))
    assert not failed


def test_unreachable_server_is_a_failure_and_not_a_mistake() -> None:
    failed = []
    for words in (("tail", "a"), ("publish", "a", "1", "--attempts", "2"), ("bench", "--subscribers", "1")):
        result = run_ropewalk(*words, "--url", "http://127.0.0.1:1")
        if result.returncode != 1 or "start one with `ropewalk serve`" not in result.stderr or "Traceback" in result.stderr:
            failed.append((words, result))
    assert not failed


def test_unavailable_store_is_not_reported_as_a_missing_server(server_with: ServerWith) -> None:
    result = run_ropewalk("publish", "chat", "{}", "--attempts", "2", "--url", server_with(*WITHOUT_STORE).url)
    assert result.returncode != 0
    assert "Redis" in result.stderr
    assert "is the server running there?" not in result.stderr
