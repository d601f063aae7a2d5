"""Every bound says what happens when it is reached, and whoever stays within it notices nothing."""

import asyncio
import json
import time
from collections.abc import Iterator

import aiohttp
import pytest

from tests.cable import Cable, Closed, cable, identifier, kind
from tests.metrics import metrics, metrics_when
from tests.server import RunningServer, publish, running_server

TIMEOUT = 15.0
LARGE = "." * 60_000
PLENTY = 400  # large messages: more than the kernel's buffers of a loopback connection and the outbox hold together


# --- connections, subscriptions, commands -------------------------------------------------------------------------------


async def test_one_connection_too_many_is_told_so_and_may_come_when_another_has_left() -> None:
    with running_server("--public", "--max_conn", "3") as server:
        crowd = [await Cable.connect(server.cable) for _ in range(3)]
        for client in crowd:
            await client.welcomed()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await Cable.connect(server.cable)
        await crowd[0].close()
        late = await _connect_when_there_is_room(server)
        await late.welcomed()
        for client in [late, *crowd[1:]]:
            await client.quiet()
            await client.close()


async def _connect_when_there_is_room(server: RunningServer) -> Cable:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return await Cable.connect(server.cable)
        except aiohttp.WSServerHandshakeError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_an_identifier_that_is_too_long_is_refused_wherever_it_comes_in() -> None:
    padded = json.dumps({"channel": "$pubsub", "stream_name": "s", "padding": "x" * 3000})
    with running_server("--public", "--sse") as server:
        async with cable(server) as client, aiohttp.ClientSession() as http:
            await client.send(command="subscribe", identifier=padded)
            await client.expect("reject_subscription", identifier=padded)
            async with http.get(f"{server.url}/events", params={"identifier": padded}) as answer:
                assert answer.status == 400
            async with http.post(f"{server.url}/events", json={"command": "subscribe", "identifier": padded}) as answer:
                assert answer.status == 400
            assert (await metrics(server))["refusals_total{identifier}"] == 3
            await client.subscribe("s")


async def test_one_subscription_too_many_is_rejected_until_there_is_room() -> None:
    with running_server("--public", "--max_subscriptions", "2") as server:
        async with cable(server) as client:
            await client.subscribe("one")
            await client.subscribe("two")
            await client.send(command="subscribe", identifier=identifier("three"))
            await client.expect("reject_subscription", identifier=identifier("three"))
            await client.subscribe("two")  # known already: no more than before
            await client.send(command="unsubscribe", identifier=identifier("one"))
            await client.subscribe("three")
            await publish(server, "three", "hello")
            assert await client.messages(1) == ["hello"]


async def test_commands_beyond_the_rate_wait_and_none_is_lost() -> None:
    streams = [f"rate/{number}" for number in range(30)]
    with running_server("--public", "--command_rate", "50", "--command_burst", "5") as server:
        async with cable(server) as client:
            for stream in streams:
                await client.send(command="subscribe", identifier=identifier(stream))
            for stream in streams:
                await client.expect("confirm_subscription", identifier=identifier(stream))


async def test_a_client_that_sends_too_fast_makes_nobody_else_wait() -> None:
    with running_server("--public", "--command_rate", "1", "--command_burst", "1") as server:
        async with cable(server) as hasty, cable(server) as patient:
            for _ in range(60):
                await hasty.send(command="ping")
            await hasty.expect("pong")
            await patient.quiet()
            assert (await metrics(server))["commands_total"] < 60


# --- pings and pongs -----------------------------------------------------------------------------------------------------


async def test_a_client_that_does_not_answer_pings_is_sent_away_and_one_that_does_stays() -> None:
    with running_server("--public", "--ping_interval", "1s", "--pong_timeout", "4s") as server:
        async with cable(server) as silent, cable(server) as alive:
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


async def test_a_connection_chooses_how_often_and_how_precisely_it_is_pinged() -> None:
    with running_server("--public", "--ping_interval", "60s") as server:
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
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with short timeouts: streams of tickers drop, the others disconnect."""
    file = tmp_path_factory.mktemp("settings") / "ropewalk.toml"
    file.write_text('[[streams]]\npattern = "ticker/*"\nslow_consumer = "drop"\n')
    flags = ("--ws_max_pending_size", "300000", "--history_limit", "1000", "--ping_interval", "0")
    with running_server("--public", "--config_path", str(file), *flags) as server:
        yield server


async def test_a_client_that_stops_reading_is_sent_away_and_comes_back_for_everything(hasty: RunningServer) -> None:
    async with cable(hasty, receive_buffer=65536) as slow, cable(hasty) as neighbour:
        await slow.subscribe("feed")
        await neighbour.subscribe("feed")
        sent = 0
        while (await metrics(hasty))["slow_disconnects_total"] == 0:
            assert sent < PLENTY
            for _ in range(10):
                sent += 1
                await publish(hasty, "feed", json.dumps([sent, LARGE]))
                assert await neighbour.messages(1) == [[sent, LARGE]]
        with pytest.raises(Closed):
            await slow.until("never comes")
        got = [frame["message"][0] for frame in slow.received if kind(frame) == "message"]
        assert got == list(range(1, len(got) + 1))
        assert len(got) < sent
        async with cable(hasty, sid=slow.sid) as back:
            back.positions = slow.positions
            missed = await back.ask_history("feed")
            assert [frame["offset"] for frame in missed] == list(range(len(got) + 1, sent + 1))
            await back.quiet()


async def test_a_slow_client_of_a_dropping_stream_skips_to_the_newest_and_is_told_of_the_gap(hasty: RunningServer) -> None:
    before = (await metrics(hasty))["outbox_drops_total"]
    async with cable(hasty, receive_buffer=65536) as slow, cable(hasty) as neighbour:
        await slow.subscribe("ticker/1")
        await neighbour.subscribe("ticker/1")
        for number in range(1, PLENTY + 1):
            await publish(hasty, "ticker/1", json.dumps([number, LARGE]))
            assert await neighbour.messages(1) == [[number, LARGE]]
        early = await slow.messages_until("reject_history")
        told = slow.received[-1]
        assert told["reason"] == "dropped"
        assert told["streams"]["ticker/1"]["reason"] == "dropped"
        newest = await slow.messages_up_to(PLENTY)
        got = [frame["offset"] for frame in early]
        late = [frame["offset"] for frame in newest]
        assert got == list(range(1, len(got) + 1))
        assert late == list(range(late[0], PLENTY + 1))
        assert late[0] > got[-1] + 1
        await slow.quiet()
        asked = await slow.ask_history("ticker/1", {"epoch": told["streams"]["ticker/1"]["epoch"], "offset": got[-1]})
        assert [frame["offset"] for frame in asked] == list(range(got[-1] + 1, late[0]))
        await publish(hasty, "ticker/1", "again")
        assert await slow.messages(1) == ["again"]
    await metrics_when(hasty, lambda now: now["outbox_drops_total"] > before and now["gaps_total{dropped}"] > 0)


async def _flood(server: RunningServer, stream: str) -> None:
    """Publish more than may wait for a client that does not read meanwhile; a neighbour does read."""
    async with cable(server) as neighbour:
        await neighbour.subscribe(stream)
        for _ in range(PLENTY):
            await publish(server, stream, LARGE)
            await neighbour.messages(1)


async def _catches_up(slow: Cable, offset: int) -> None:
    await slow.until("reject_history", lambda frame: frame["reason"] == "dropped")
    await slow.until("message", lambda frame: frame["offset"] == offset)


async def test_after_two_drops_a_client_gets_exactly_what_it_missed_and_nothing_twice(hasty: RunningServer) -> None:
    async with cable(hasty, receive_buffer=65536) as slow:
        await slow.subscribe("ticker/2")
        for tip in (PLENTY, 2 * PLENTY):
            await _flood(hasty, "ticker/2")
            await _catches_up(slow, tip)
        live = {frame["offset"] for frame in slow.received if kind(frame) == "message"}
        asked = await slow.ask_history("ticker/2", {"epoch": slow.positions["ticker/2"]["epoch"], "offset": 1})
        assert [frame["offset"] for frame in asked] == sorted(set(range(1, 2 * PLENTY + 1)) - live)


async def test_a_batch_larger_than_the_outbox_closes_no_connection_where_the_stream_may_skip(hasty: RunningServer) -> None:
    async with cable(hasty, receive_buffer=65536) as slow, aiohttp.ClientSession() as http:
        await slow.subscribe("ticker/3")
        await _flood(hasty, "ticker/3")
        async with http.post(f"{hasty.url}/_broadcast", json=[{"stream": "ticker/3", "data": LARGE}] * 10) as answer:
            assert answer.status == 201, await answer.text()
        newest = await publish(hasty, "ticker/3", "the newest")
        await _catches_up(slow, newest["offset"])
