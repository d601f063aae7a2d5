"""`ropewalk tail` and `ropewalk bench` over TCP, as a person uses them."""

import asyncio
import base64
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.adapters.apps.jwt import issue
from ropewalk.cli import bench, bench_tcp
from ropewalk.cli.main import main
from ropewalk.client import Format, Pusher, new_uid
from ropewalk.core.signatures import API_PHRASE, derive, sign_stream
from tests.metrics import metrics_when
from tests.process_tree import store
from tests.scenarios.command_line import run_ropewalk, running_program
from tests.server import RunningServer, running_server
from tests.services import free_port

SECRET = "qwerty"
CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "tls_cert.pem"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "5") as server:
        yield server


@pytest.fixture(scope="module")
def closed_server() -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--enforce_jwt") as server:
        yield server


def tcp(server: RunningServer) -> str:
    return f"tcp://127.0.0.1:{server.port}"


def token() -> str:
    return issue(SECRET, '{"user":1}', int(time.time()) + 600)


# --- tail -------------------------------------------------------------------------------------------------------------


ONLY_OVER_TCP = ("uid", "ts_producer", "ts_broker", "key_partition")


async def test_tail_prints_the_same_as_over_web_socket(server: RunningServer) -> None:
    async with Pusher(tcp(server)) as pusher:
        await pusher.push("cli/tcp", b"\xff\x00")
        await pusher.push("cli/tcp", [b' {"a":\n1.10}', b'"text"'], format=Format.JSON)
    words = ("tail", "cli/tcp", "--from", "1", "--count", "3", "--url")
    here, there = run_ropewalk(*words, tcp(server)), run_ropewalk(*words, server.url)
    assert here.returncode == 0, here.stderr
    assert here.stdout == there.stdout
    assert len(here.stdout.splitlines()) == 3


async def test_tail_shows_as_json_what_a_delivery_carries(server: RunningServer) -> None:
    name, uid = "cli/tcp/json", new_uid()
    begin = time.time_ns() // 1000
    async with Pusher(tcp(server)) as pusher:
        await pusher.push(name, b"\xff\x00", uids=[uid], ts_producer=[7], key_partition=b"\xfe")
        await pusher.send(name, [b'{"a":1.5}'], format=Format.JSON)
        await pusher.flush()
    words = ("tail", name, "--from", "1", "--count", "2", "--json", "--url")
    here, there = run_ropewalk(*words, tcp(server)), run_ropewalk(*words, server.url)
    assert here.returncode == 0, here.stderr
    shown = [json.loads(line) for line in here.stdout.splitlines()]
    carried = [{name: each.pop(name) for name in ONLY_OVER_TCP if name in each} for each in shown]
    assert shown == [json.loads(line) for line in there.stdout.splitlines()], "the rest is as over WebSocket"
    assert shown[0]["data"] == {"$bytes": base64.b64encode(b"\xff\x00").decode()}
    assert all(begin <= each.pop("ts_broker") <= time.time_ns() // 1000 for each in carried)
    assert carried[0] == {"uid": uid, "ts_producer": 7, "key_partition": "~b64:_g"}
    assert carried[1] == {"key_partition": "~b64:_g"}, "what a producer did not give is left out"


async def test_tail_follows_and_tells_gaps(server: RunningServer) -> None:
    async with Pusher(tcp(server)) as pusher:
        await pusher.push("cli/tcp/gap", [b"x"] * 8)
        words = ("-m", "ropewalk", "tail", "cli/tcp/gap", "--from", "2", "--json", "--url", tcp(server))
        async with running_program(*words) as program:
            assert [json.loads(await program.line())["offset"] for _ in range(5)] == [4, 5, 6, 7, 8]
            await pusher.push("cli/tcp/gap", b"live")
            assert json.loads(await program.line())["replayed"] is False
            assert await program.interrupt() == 130
    result = run_ropewalk("tail", "cli/tcp/gap", "--from", "2", "--count", "1", "--url", tcp(server))
    assert "gap in cli/tcp/gap: messages lost (trimmed)" in result.stderr


@pytest.mark.parametrize(("scheme", "flags"), [("tcp", ()), ("tcp", ("--prefix",)), ("http", ())])
async def test_tail_tells_that_messages_of_an_ephemeral_stream_may_be_missing(scheme: str, flags: tuple[str, ...]) -> None:
    with running_server("--public", "--history_limit", "0", "--workers", "2") as running:
        words = ("-m", "ropewalk", "tail", "cli/gone", *flags, "--url", f"{scheme}://127.0.0.1:{running.port}")
        async with running_program(*words) as program, Pusher(tcp(running)) as pusher:
            first = asyncio.create_task(program.line())
            while not first.done():
                await pusher.push("cli/gone", b"until it is there")
            await pusher.push("cli/gone", b"last")
            while base64.b64encode(b"last").decode() not in await program.line():
                pass
            os.kill(store(running), signal.SIGKILL)
            assert await program.complaint() == "gap in cli/gone: messages may be missing (trimmed)"
            assert await program.interrupt() == 130


async def test_tail_follows_all_streams_with_a_beginning(server: RunningServer) -> None:
    words = ("-m", "ropewalk", "tail", "cli/begins/", "--prefix", "--json", "--url", tcp(server))
    async with running_program(*words) as program, Pusher(tcp(server)) as pusher:
        await metrics_when(server, lambda now: now["subscriptions"] == 1)
        for name in ("cli/begins/1", "cli/other", "cli/begins/2"):
            await pusher.push(name, b"x")
        assert [json.loads(await program.line())["stream"] for _ in range(2)] == ["cli/begins/1", "cli/begins/2"]
        assert await program.interrupt() == 130
    result = run_ropewalk("tail", "cli/begins/", "--prefix", "--url", server.url)
    assert (result.returncode, "tcp://" in result.stderr) == (2, True), result.stderr
    result = run_ropewalk("tail", "cli/begins/", "--prefix", "--signed", "--url", tcp(server))
    assert (result.returncode, "--prefix is for public streams" in result.stderr) == (2, True), result.stderr
    result = run_ropewalk("tail", "cli/begins/", "cli/", "--prefix", "--url", tcp(server))
    assert (result.returncode, "'cli/' and another of these" in result.stderr) == (2, True), result.stderr


async def test_tail_needs_a_token_and_a_signed_name_where_the_server_does(closed_server: RunningServer) -> None:
    async with Pusher(tcp(closed_server), derive(SECRET, API_PHRASE)) as pusher:
        await pusher.push("cli/signed", b"x")
    signed = sign_stream("cli/signed", SECRET)
    words = ("--from", "1", "--count", "1", "--url", tcp(closed_server))
    good = run_ropewalk("tail", signed, "--signed", "--token", token(), *words)
    assert good.stdout.startswith("cli/signed epoch="), good.stderr
    for wrong, hint in (
        (("tail", signed, "--signed", *words), "--token brings a token"),
        (("tail", "cli/signed", "--token", token(), *words), "(this key may not be subscribed to): public streams need"),
        (("tail", signed, "--signed", "--token", derive(SECRET, API_PHRASE), *words), "(a publishing key is for pushes only)"),
    ):
        result = run_ropewalk(*wrong)
        assert (result.returncode, hint in result.stderr) == (2, True), result.stderr


def test_tail_says_when_there_is_no_server() -> None:
    result = run_ropewalk("tail", "a", "--url", f"tcp://127.0.0.1:{free_port()}")
    assert (result.returncode, "is the server running there?" in result.stderr) == (1, True)


# --- bench ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--tcp", "--url", "URL"), ("--url", "TCP"), ("--tcp", "--url", "URL", "--in_flight", "8")])
def test_bench_counts_every_delivery(server: RunningServer, words: tuple[str, ...]) -> None:
    places = {"URL": server.url, "TCP": tcp(server)}
    flags = [places.get(word, word) for word in words]
    result = run_ropewalk("bench", *flags, "--subscribers", "3", "--messages", "250", "--batch", "20")
    assert result.returncode == 0, result.stderr
    first, *rates = result.stdout.splitlines()
    assert re.fullmatch(r"250 messages to 3 subscribers in \d+\.\d\d s, every one delivered", first)
    assert [line.split()[0] for line in rates] == ["deliveries/s", "latency", "latency"]


def test_bench_speaks_tls() -> None:
    flags = ("--public", "--ssl_cert", str(CERTIFICATE), "--ssl_key", str(CERTIFICATE.with_name("tls_key.pem")))
    with running_server(*flags) as server:
        words = ("bench", "--tcp", "--url", server.url, "--subscribers", "2", "--messages", "5")
        result = run_ropewalk(*words, "--ca_file", str(CERTIFICATE))
        assert "every one delivered" in result.stdout, result.stderr
        assert "--ca_file names a file" in run_ropewalk(*words).stderr


async def test_bench_fails_if_the_counts_are_wrong(server: RunningServer) -> None:
    words = ("bench", "--tcp", "--url", server.url, "--stream", "cli/shared", "--rate", "5", "--messages", "10")
    async with (
        Pusher(tcp(server)) as pusher,
        running_program("-m", "ropewalk", *words, "--subscribers", "1") as program,
    ):
        ended = asyncio.create_task(program.ended())
        while not ended.done():
            await pusher.push("cli/shared", [b"another"] * 10)
        assert (ended.result(), "somebody else publishes" in await program.complaint()) == (1, True)


def test_bench_says_what_is_wrong(server: RunningServer, closed_server: RunningServer) -> None:
    stream = ("--stream", "cli/bench", "--signed-stream", sign_stream("cli/bench", SECRET))
    for words, hint, code in (
        (("--url", server.url, "--in_flight", "2"), "--in_flight is for --tcp", 2),
        (("--tcp", "--url", server.url, "--in_flight", "0"), "must be at least 1", 2),
        (("--tcp", "--url", closed_server.url), "--token brings a token", 2),
        (("--tcp", "--url", closed_server.url, "--token", token()), "is the stream public", 2),
        (("--tcp", "--url", f"tcp://127.0.0.1:{free_port()}"), "is the server running there?", 1),
        (("--url", closed_server.url, "--token", token(), *stream, "--key", "guess"), "--key brings the key for publishing", 2),
        (("--tcp", "--url", closed_server.url, "--token", token(), *stream), "--key brings the key for publishing", 2),
    ):
        result = run_ropewalk("bench", *words, "--subscribers", "2", "--messages", "3")
        assert (result.returncode, hint in result.stderr) == (code, True), result.stderr
    good = ("--tcp", "--url", closed_server.url, "--token", token(), *stream, "--key", derive(SECRET, API_PHRASE))
    result = run_ropewalk("bench", *good, "--subscribers", "2", "--messages", "3")
    assert "every one delivered" in result.stdout, result.stderr


@pytest.mark.parametrize("flags", [(), ("--tcp",)], ids=["websocket", "tcp"])
def test_bench_says_what_a_server_that_confirms_no_subscription_may_wait_for(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "TIMEOUT", 0.5)
    monkeypatch.setattr(bench_tcp, "TIMEOUT", 0.5)
    with running_server("--public", "--broker", "redis", "--redis_url", f"redis://127.0.0.1:{free_port()}") as server:
        assert main(["bench", "--url", server.url, "--subscribers", "1", *flags]) == 1
    told = capsys.readouterr().err
    assert "did not answer within 0.5 seconds: it may be waiting for the store or the node that holds the stream" in told
