"""Limits on subscriptions, identifiers and commands, pings and pongs, and slow consumers."""

import asyncio
import json
import time
from collections.abc import Iterator

import aiohttp
import pytest

from tests.cable import Cable, Closed, cable, identifier, kind
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer, publish, running_server

LARGE = "." * 60_000
PLENTY = 400  # large messages: more than the kernel's buffers of a loopback connection and the outbox hold together


# --- subscriptions and commands ----------------------------------------------------------------------------------------


async def test_identifier_that_is_too_long_is_refused_by_every_endpoint(server_with: ServerWith) -> None:
    server = server_with("--public", "--sse")
    padded = json.dumps({"channel": "$pubsub", "stream_name": "s", "padding": "x" * 6000})
    before = (await metrics(server))["refusals_total{identifier}"]
    async with cable(server) as client, aiohttp.ClientSession() as http:
        await client.send(command="subscribe", identifier=padded)
        await client.expect("reject_subscription", identifier=padded)
        async with http.get(f"{server.url}/events", params={"identifier": padded}) as answer:
            assert answer.status == 400
        async with http.post(f"{server.url}/events", json={"command": "subscribe", "identifier": padded}) as answer:
            assert answer.status == 400
        assert (await metrics(server))["refusals_total{identifier}"] == before + 3
        await client.subscribe("s")


@pytest.fixture
def limited(server_with: ServerWith) -> RunningServer:
    """With places for two subscriptions of a connection and one command a second."""
    return server_with("--public", "--max_subscriptions", "2", "--command_rate", "1", "--command_burst", "7")


async def test_subscription_over_the_limit_is_rejected_until_another_ends(limited: RunningServer) -> None:
    async with cable(limited) as client:
        await client.subscribe("one")
        await client.subscribe("two")
        await client.send(command="subscribe", identifier=identifier("three"))
        await client.expect("reject_subscription", identifier=identifier("three"))
        await client.subscribe("two")  # a repeated one does not count
        await client.send(command="unsubscribe", identifier=identifier("one"))
        await client.subscribe("three")
        await publish(limited, "three", "hello")
        assert await client.messages(1) == ["hello"]


async def test_client_over_the_command_rate_does_not_delay_others(limited: RunningServer) -> None:
    before = (await metrics(limited))["commands_total"]
    async with cable(limited) as hasty, cable(limited) as patient:
        for _ in range(600):
            await hasty.send(command="ping")
        await hasty.expect("pong")
        await patient.quiet()
        assert (await metrics(limited))["commands_total"] - before < 600
        await hasty.cut()  # the server would read the close frame after all commands


async def test_commands_over_the_rate_are_handled_later_and_in_order() -> None:
    streams, rate, burst = [f"rate/{number}" for number in range(30)], 50, 5
    with running_server("--public", "--command_rate", str(rate), "--command_burst", str(burst)) as server:
        async with cable(server) as client:
            began = time.monotonic()
            for stream in streams:
                await client.send(command="subscribe", identifier=identifier(stream))
            for stream in streams:
                await client.expect("confirm_subscription", identifier=identifier(stream))
            assert time.monotonic() - began >= (len(streams) - burst - 1) / rate


# --- pings and pongs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2, pytest.param(10, marks=pytest.mark.tier("all"))])
async def test_client_without_pongs_is_disconnected_and_others_stay(seconds: int) -> None:
    """Ten seconds are enough for the other client to answer in time, on a busy machine too."""
    with running_server("--public", "--ping_interval", "1s", "--pong_timeout", f"{seconds}s") as server:
        async with cable(server) as silent, cable(server, params={"pi": "0"} if seconds < 10 else {}) as alive:
            answering = asyncio.create_task(_answer_pings(alive))
            goodbye = await silent.until("disconnect")
            assert (goodbye["reason"], goodbye["reconnect"]) == ("no_pong", True)
            assert await silent.closed() == (1000, "No Pong")
            answering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await answering
            await alive.quiet()


async def _answer_pings(client: Cable) -> None:
    while True:
        await client.until("ping")
        await client.send(command="pong")


async def test_connection_chooses_interval_and_unit_of_its_pings(server_with: ServerWith) -> None:
    server = server_with("--public", "--ping_interval", "600s")
    async with (
        cable(server, params={"pi": "0"}) as never,
        cable(server, params={"pi": "1", "ptp": "s"}) as seconds,
        cable(server, params={"pi": "1", "ptp": "ms"}) as milliseconds,
        cable(server, params={"pi": "1", "ptp": "ns"}) as nanoseconds,
        cable(server, params={"pi": "often", "ptp": "years"}) as nonsense,
    ):
        for client, scale in ((seconds, 1), (milliseconds, 10**3), (nanoseconds, 10**9)):
            ping = await client.until("ping")
            assert abs(ping["message"] / scale - time.time()) < 60
        for client in (never, nonsense):
            await client.quiet()
            assert "ping" not in map(kind, client.received)


# --- slow consumers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_outbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a small outbox: streams of tickers drop, the others disconnect."""
    file = tmp_path_factory.mktemp("settings") / "ropewalk.toml"
    file.write_text('[[streams]]\npattern = "ticker/*"\nslow_consumer = "drop"\n')
    flags = ("--ws_max_pending_size", "300000", "--history_limit", "1000", "--ping_interval", "0")
    with running_server("--public", "--config_path", str(file), *flags) as server:
        yield server


async def test_client_that_stops_reading_is_disconnected_and_resumes_without_loss(small_outbox: RunningServer) -> None:
    async with cable(small_outbox, receive_buffer=65536) as slow, cable(small_outbox) as neighbour:
        await slow.subscribe("feed")
        await neighbour.subscribe("feed")
        sent = 0
        while (await metrics(small_outbox))["slow_disconnects_total"] == 0:
            assert sent < PLENTY
            for _ in range(10):
                sent += 1
                await publish(small_outbox, "feed", json.dumps([sent, LARGE]))
                assert await neighbour.messages(1) == [[sent, LARGE]]
        with pytest.raises(Closed):
            await slow.until("never comes")
        got = [frame["message"][0] for frame in slow.received if kind(frame) == "message"]
        assert got == list(range(1, len(got) + 1))
        assert len(got) < sent
        async with cable(small_outbox, sid=slow.sid) as back:
            back.positions = slow.positions
            missed = await back.ask_history("feed")
            assert [frame["offset"] for frame in missed] == list(range(len(got) + 1, sent + 1))
            await back.quiet()


async def test_slow_client_of_a_dropping_stream_gets_the_newest_messages_and_a_gap(small_outbox: RunningServer) -> None:
    before = (await metrics(small_outbox))["outbox_drops_total"]
    async with cable(small_outbox, receive_buffer=65536) as slow, cable(small_outbox) as neighbour:
        await slow.subscribe("ticker/1")
        await neighbour.subscribe("ticker/1")
        for number in range(1, PLENTY + 1):
            await publish(small_outbox, "ticker/1", json.dumps([number, LARGE]))
            assert await neighbour.messages(1) == [[number, LARGE]]
        early = await slow.messages_until("reject_history")
        gap = slow.received[-1]
        assert gap["reason"] == "dropped"
        assert gap["streams"]["ticker/1"]["reason"] == "dropped"
        newest = await slow.messages_up_to(PLENTY)
        got = [frame["offset"] for frame in early]
        late = [frame["offset"] for frame in newest]
        assert got == list(range(1, len(got) + 1))
        assert late == list(range(late[0], PLENTY + 1))
        assert late[0] > got[-1] + 1
        await slow.quiet()
        asked = await slow.ask_history("ticker/1", {"epoch": gap["streams"]["ticker/1"]["epoch"], "offset": got[-1]})
        assert [frame["offset"] for frame in asked] == list(range(got[-1] + 1, late[0]))
        await publish(small_outbox, "ticker/1", "again")
        assert await slow.messages(1) == ["again"]
    await metrics_when(small_outbox, lambda now: now["outbox_drops_total"] > before and now["gaps_total{dropped}"] > 0)


async def test_whispers_never_disconnect_a_slow_client() -> None:
    flags = ("--ws_max_pending_size", "300000", "--whisper_rate", "0", "--max_whisper_size", "64KiB", "--ping_interval", "0")
    with running_server("--public", *flags) as server:
        async with (
            cable(server, receive_buffer=65536) as slow,
            cable(server) as neighbour,
            cable(server) as whisperer,
        ):
            for client in (slow, neighbour, whisperer):
                await client.subscribe("hall")
            for number in range(1, PLENTY + 1):
                await whisperer.send(command="whisper", identifier=identifier("hall"), data=[number, LARGE])
                assert await neighbour.messages(1) == [[number, LARGE]]
            await publish(server, "hall", "kept")
            found = await metrics_when(server, lambda now: now["outbox_drops_total"] > 0)
            assert found["slow_disconnects_total"] == 0
            kept = await slow.until("message", lambda frame: frame.get("offset") == 1)
            assert kept["message"] == "kept"
            assert "reject_history" not in map(kind, slow.received)
            await slow.quiet()


async def test_whispers_above_the_size_and_rate_limits_are_dropped(server_with: ServerWith) -> None:
    server = server_with("--public", "--max_whisper_size", "1000", "--whisper_rate", "1000")
    async with cable(server) as whisperer, cable(server) as listener:
        for client in (whisperer, listener):
            await client.subscribe("hall/limits")
        for size in (2000, 900, 900):
            await whisperer.send(command="whisper", identifier=identifier("hall/limits"), data="x" * size)
        await whisperer.quiet()
        await publish(server, "hall/limits", "end")
        assert await listener.messages(2) == ["x" * 900, "end"]
        counted = await metrics(server)
        assert (counted["refusals_total{whisper_size}"], counted["refusals_total{whisper_rate}"]) == (1, 1)


async def _flood(server: RunningServer, stream: str) -> None:
    """Publish more than fits into the outbox of a client that does not read; a neighbour reads."""
    async with cable(server) as neighbour:
        await neighbour.subscribe(stream)
        for _ in range(PLENTY):
            await publish(server, stream, LARGE)
            await neighbour.messages(1)


async def _catches_up(slow: Cable, offset: int) -> None:
    await slow.until("reject_history", lambda frame: frame["reason"] == "dropped")
    await slow.until("message", lambda frame: frame["offset"] == offset)


@pytest.mark.tier("all")
async def test_history_after_two_drops_returns_exactly_the_missed_messages(small_outbox: RunningServer) -> None:
    async with cable(small_outbox, receive_buffer=65536) as slow:
        await slow.subscribe("ticker/2")
        for tip in (PLENTY, 2 * PLENTY):
            await _flood(small_outbox, "ticker/2")
            await _catches_up(slow, tip)
        live = {frame["offset"] for frame in slow.received if kind(frame) == "message"}
        asked = await slow.ask_history("ticker/2", {"epoch": slow.positions["ticker/2"]["epoch"], "offset": 1})
        assert [frame["offset"] for frame in asked] == sorted(set(range(1, 2 * PLENTY + 1)) - live)


@pytest.mark.tier("all")
async def test_batch_larger_than_the_outbox_does_not_close_a_dropping_stream(small_outbox: RunningServer) -> None:
    async with cable(small_outbox, receive_buffer=65536) as slow, aiohttp.ClientSession() as http:
        await slow.subscribe("ticker/3")
        await _flood(small_outbox, "ticker/3")
        async with http.post(f"{small_outbox.url}/_broadcast", json=[{"stream": "ticker/3", "data": LARGE}] * 10) as answer:
            assert answer.status == 201, await answer.text()
        newest = await publish(small_outbox, "ticker/3", "the newest")
        await _catches_up(slow, newest["offset"])
