"""`ropewalk tail` and `ropewalk bench` over Broky from a shell."""

import asyncio
import base64
import gc
import json
import os
import re
import signal
import time

import pytest

from ropewalk.cli import bench
from ropewalk.cli.main import main
from ropewalk.client import Format, new_uid
from tests.certificates import CERTIFICATE
from tests.clients.credentials import signed, token
from tests.metrics import metrics, metrics_when
from tests.process_tree import store
from tests.scenarios.command_line import run_ropewalk, running_program
from tests.scenarios.python_clients import API_KEY, TCP, pusher_to
from tests.scenarios.shared_servers import EPHEMERAL, SHORT_HISTORY, WITHOUT_STORE, ServerWith
from tests.server import RunningServer, running_server
from tests.services import free_port

tcp = TCP.url


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with(*SHORT_HISTORY)


# --- tail -------------------------------------------------------------------------------------------------------------


ONLY_OVER_TCP = ("uid", "ts_producer", "ts_broker", "key_partition")


async def test_tail_prints_the_same_as_over_websocket(server: RunningServer) -> None:
    async with pusher_to(server) as pusher:
        await pusher.push("cli-tcp/tcp", b"\xff\x00")
        await pusher.push("cli-tcp/tcp", [b' {"a":\n1.10}', b'"text"'], format=Format.JSON)
    words = ("tail", "cli-tcp/tcp", "--from", "1", "--count", "3", "--url")
    here, there = run_ropewalk(*words, tcp(server)), run_ropewalk(*words, server.url)
    assert here.returncode == 0, here.stderr
    assert here.stdout == there.stdout
    assert len(here.stdout.splitlines()) == 3


async def test_tail_json_prints_all_fields_of_a_delivery(server: RunningServer) -> None:
    name, uid = "cli-tcp/json", new_uid()
    begin = time.time_ns() // 1000
    async with pusher_to(server) as pusher:
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
    assert carried[1] == {"key_partition": "~b64:_g"}, "fields without a value are left out"


async def test_tail_prints_live_messages_and_gaps(server: RunningServer) -> None:
    async with pusher_to(server) as pusher:
        await pusher.push("cli-tcp/gap", [b"x"] * 8)
        words = ("-m", "ropewalk", "tail", "cli-tcp/gap", "--from", "2", "--json", "--url", tcp(server))
        async with running_program(*words) as program:
            assert [json.loads(await program.line())["offset"] for _ in range(5)] == [4, 5, 6, 7, 8]
            await pusher.push("cli-tcp/gap", b"live")
            assert json.loads(await program.line())["replayed"] is False
            assert await program.interrupt() == 130
    result = run_ropewalk("tail", "cli-tcp/gap", "--from", "2", "--count", "1", "--url", tcp(server))
    assert "gap in cli-tcp/gap: 3 messages lost (trimmed)" in result.stderr


@pytest.mark.tier("all")
@pytest.mark.parametrize(("scheme", "flags"), [("tcp", ()), ("tcp", ("--prefix",)), ("http", ())])
async def test_tail_reports_possible_gaps_of_ephemeral_streams(scheme: str, flags: tuple[str, ...]) -> None:
    with running_server(*EPHEMERAL, "--workers", "2") as running:
        words = ("-m", "ropewalk", "tail", "cli-tcp/gone", *flags, "--url", f"{scheme}://127.0.0.1:{running.port}")
        async with running_program(*words) as program, pusher_to(running) as pusher:
            first = asyncio.create_task(program.line())
            while not first.done():
                await pusher.push("cli-tcp/gone", b"until it is there")
            await pusher.push("cli-tcp/gone", b"last")
            while base64.b64encode(b"last").decode() not in await program.line():
                pass
            os.kill(store(running), signal.SIGKILL)
            assert await program.complaint() == "gap in cli-tcp/gone: messages may be missing (trimmed)"
            assert await program.interrupt() == 130


async def test_tail_by_prefix_prints_matching_streams_and_needs_tcp(server: RunningServer) -> None:
    before = (await metrics(server))["subscriptions"]
    words = ("-m", "ropewalk", "tail", "cli-tcp/begins/", "--prefix", "--json", "--url", tcp(server))
    async with running_program(*words) as program, pusher_to(server) as pusher:
        await metrics_when(server, lambda now: now["subscriptions"] > before)
        for name in ("cli-tcp/begins/1", "cli-tcp/other", "cli-tcp/begins/2"):
            await pusher.push(name, b"x")
        assert [json.loads(await program.line())["stream"] for _ in range(2)] == ["cli-tcp/begins/1", "cli-tcp/begins/2"]
        assert await program.interrupt() == 130
    result = run_ropewalk("tail", "cli-tcp/begins/", "--prefix", "--url", server.url)
    assert (result.returncode, "tcp://" in result.stderr) == (2, True), result.stderr
    result = run_ropewalk("tail", "cli-tcp/begins/", "--prefix", "--signed", "--url", tcp(server))
    assert (result.returncode, "--prefix is for public streams" in result.stderr) == (2, True), result.stderr
    result = run_ropewalk("tail", "cli-tcp/begins/", "cli-tcp/", "--prefix", "--url", tcp(server))
    assert (result.returncode, "'cli-tcp/' and another of these" in result.stderr) == (2, True), result.stderr


async def test_tail_with_a_token_and_a_signed_name(guarded: RunningServer) -> None:
    async with pusher_to(guarded, API_KEY) as pusher:
        await pusher.push("cli-tcp/signed", b"x")
    name = signed("cli-tcp/signed")
    words = ("--from", "1", "--count", "1", "--url", tcp(guarded))
    good = run_ropewalk("tail", name, "--signed", "--token", token(), *words)
    assert good.stdout.startswith("cli-tcp/signed epoch="), good.stderr
    for wrong, hint in (
        (("tail", name, "--signed", *words), "pass a valid token"),
        (("tail", "cli-tcp/signed", "--token", token(), *words), "(this key may not be subscribed to): public streams need"),
        (("tail", name, "--signed", "--token", API_KEY, *words), "(a publishing key is for pushes only)"),
    ):
        result = run_ropewalk(*wrong)
        assert (result.returncode, hint in result.stderr) == (2, True), result.stderr


def test_tail_of_an_unreachable_server_fails() -> None:
    result = run_ropewalk("tail", "a", "--url", f"tcp://127.0.0.1:{free_port()}")
    assert (result.returncode, "is the server running there?" in result.stderr) == (1, True)


# --- bench ------------------------------------------------------------------------------------------------------------


def test_bench_counts_every_delivery(server: RunningServer) -> None:
    for flags in (("--tcp", "--url", server.url), ("--url", tcp(server)), ("--tcp", "--url", server.url, "--in_flight", "8")):
        result = run_ropewalk("bench", *flags, "--subscribers", "3", "--messages", "250", "--batch", "20")
        assert result.returncode == 0, result.stderr
        first, *rates = result.stdout.splitlines()
        assert re.fullmatch(r"250 messages to 3 subscribers in \d+\.\d\d s, every one delivered", first)
        assert [line.split()[0] for line in rates] == ["deliveries/s", "latency", "latency"]


def test_bench_over_tls_needs_a_trusted_certificate(tls_server: RunningServer) -> None:
    words = ("bench", "--tcp", "--url", tls_server.url, "--subscribers", "2", "--messages", "5")
    result = run_ropewalk(*words, "--ca_file", CERTIFICATE)
    assert "every one delivered" in result.stdout, result.stderr
    assert "with --ca_file" in run_ropewalk(*words).stderr


async def test_bench_fails_if_another_client_publishes(server: RunningServer) -> None:
    words = ("bench", "--tcp", "--url", server.url, "--stream", "cli-tcp/shared", "--rate", "5", "--messages", "10")
    async with (
        pusher_to(server) as pusher,
        running_program("-m", "ropewalk", *words, "--subscribers", "1") as program,
    ):
        ended = asyncio.create_task(program.ended())
        while not ended.done():
            await pusher.push("cli-tcp/shared", [b"another"] * 10)
        assert (ended.result(), "another client publishes" in await program.complaint()) == (1, True)


def test_bench_explains_mistakes(server: RunningServer, guarded: RunningServer) -> None:
    stream = ("--stream", "cli-tcp/bench", "--signed-stream", signed("cli-tcp/bench"))
    for words, hint, code in (
        (("--url", server.url, "--in_flight", "2"), "--in_flight is for --tcp", 2),
        (("--tcp", "--url", server.url, "--in_flight", "0"), "must be at least 1", 2),
        (("--tcp", "--url", guarded.url), "pass a valid token", 2),
        (("--tcp", "--url", guarded.url, "--token", token()), "is the stream public", 2),
        (("--tcp", "--url", f"tcp://127.0.0.1:{free_port()}"), "is the server running there?", 1),
        (("--url", guarded.url, "--token", token(), *stream, "--key", "guess"), "pass the key for publishing with --key", 2),
        (("--tcp", "--url", guarded.url, "--token", token(), *stream), "pass the key for publishing with --key", 2),
    ):
        result = run_ropewalk("bench", *words, "--subscribers", "2", "--messages", "3")
        assert (result.returncode, hint in result.stderr) == (code, True), result.stderr
    good = ("--tcp", "--url", guarded.url, "--token", token(), *stream, "--key", API_KEY)
    result = run_ropewalk("bench", *good, "--subscribers", "2", "--messages", "3")
    assert "every one delivered" in result.stdout, result.stderr


@pytest.mark.parametrize("flags", [(), ("--tcp",)], ids=["websocket", "tcp"])
def test_bench_reports_that_the_server_confirms_no_subscription(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server_with: ServerWith
) -> None:
    monkeypatch.setattr(bench, "TIMEOUT", 0.5)
    assert main(["bench", "--url", server_with(*WITHOUT_STORE).url, "--subscribers", "1", *flags]) == 1
    gc.collect()  # a connection that was left open is a warning
    hint = "did not answer within 0.5 seconds: it may be waiting for the store or the node that holds the stream"
    assert hint in capsys.readouterr().err
