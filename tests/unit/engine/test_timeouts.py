"""Timeouts act by themselves: whether a client is pinged often, rarely or never changes nothing about them."""

import asyncio

import pytest

from ropewalk.engine.timeouts import TICK
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.sse import SseCodec
from ropewalk.protocol.websocket_frame import CableCodec
from tests.unit.engine.workbench import Client, Workbench, public, settle

PINGED = Limits(ping_interval=0.001, pong_timeout=1)
UNPINGED = Limits(ping_interval=0, write_timeout=30)


async def _pinged(client: Client) -> None:
    while "ping" not in client.seen():
        await asyncio.sleep(0)


def _pinged_once(bench: Workbench, client: Client) -> None:
    """As its wheel would, once in a long interval."""
    bench.node.timeouts.pinged(client.session)


# --- pongs ----------------------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_pings_unanswered_is_ended_and_one_that_answers_is_not() -> None:
    async with Workbench(PINGED) as bench:
        silent, lively = await bench.connect(), await bench.connect()
        await _pinged(silent)
        await _pinged(lively)
        bench.pass_time(0.75)
        await lively.send(command="pong")
        bench.pass_time(0.5)
        assert silent.connection.replies()[-1] == {"type": "disconnect", "reason": "no_pong", "reconnect": True}
        assert lively.connection.closed is None
        assert bench.stats.refusals == {Refusal.PONG_TIMEOUT: 1}


@pytest.mark.parametrize("interval", ["1", "3", "3600"])
async def test_an_unanswered_ping_ends_the_connection_after_the_timeout_whatever_the_interval(interval: str) -> None:
    async with Workbench(PINGED) as bench:
        client = await bench.connect(pi=interval)
        _pinged_once(bench, client)
        bench.pass_time(1)
        assert client.connection.closed is None
        bench.pass_time(TICK)
        assert client.connection.closed == (1000, "No Pong")


async def test_pings_that_follow_do_not_push_the_deadline_of_the_first() -> None:
    async with Workbench(PINGED) as bench:
        client = await bench.connect()
        for _ in range(6):
            _pinged_once(bench, client)
            bench.pass_time(TICK)
        assert client.connection.closed == (1000, "No Pong")


async def test_a_client_that_asked_for_no_pings_owes_no_answer() -> None:
    async with Workbench(PINGED) as bench:
        quiet, other = await bench.connect(pi="0"), await bench.connect()
        await _pinged(other)
        bench.pass_time(60)
        assert quiet.connection.closed is None
        assert other.connection.closed is not None


async def test_a_client_whose_socket_is_not_read_may_have_answered() -> None:
    async with Workbench(Limits(ping_interval=0.001, pong_timeout=1, command_rate=1, command_burst=1)) as bench:
        client = await bench.connect()
        await _pinged(client)
        for _ in range(100):
            client.session.receive(b'{"command":"ping"}')
        assert not client.connection.reading
        _pinged_once(bench, client)
        bench.pass_time(30)
        assert client.connection.closed is None


async def test_only_clients_that_can_answer_owe_an_answer() -> None:
    async with Workbench(PINGED) as bench:
        base = await bench.connect(extended=False)
        bench.codec = CableCodec(native_pings=True)
        native = await bench.connect(extended=False)
        bench.codec = SseCodec(unwrap=True, raw=False)
        events = await bench.connect(extended=False)
        while not all(b"ping" in b"".join(client.connection.written) for client in (base, native, events)):
            await asyncio.sleep(0)
        bench.pass_time(2)
        assert native.connection.closed == (1000, "No Pong")
        assert base.connection.closed is events.connection.closed is None


# --- what is not taken ------------------------------------------------------------------------------------------------------


async def test_a_client_that_takes_nothing_for_too_long_is_disconnected_without_any_ping() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect(pi="0")
        client.connection.untaken = 100_000
        client.session.writing_paused()
        bench.pass_time(30)
        assert client.connection.closed is None
        bench.pass_time(1)
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "too_slow", "reconnect": True}
        assert bench.stats.refusals == {Refusal.WRITE_TIMEOUT: 1}


async def test_a_slow_but_steady_reader_stays_however_long_it_takes() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect()
        client.connection.untaken = 100_000
        client.session.writing_paused()
        for _ in range(10):
            bench.pass_time(25)
            client.connection.untaken -= 1
        assert client.connection.closed is None
        bench.pass_time(31)
        assert client.connection.closed is not None


async def test_a_client_that_caught_up_is_not_watched_any_more() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.writing_paused()
        bench.pass_time(20)
        client.session.writing_resumed()
        bench.pass_time(60)
        await bench.publish("s", "1")
        assert client.seen() == ["welcome", "confirm_subscription", 1]


async def test_a_pause_that_follows_another_begins_anew() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect()
        for _ in range(4):
            client.session.writing_paused()
            bench.pass_time(20)
            client.session.writing_resumed()
        assert client.connection.closed is None


async def test_the_clock_of_the_machine_ends_no_connection_when_it_is_set() -> None:
    async with Workbench(PINGED) as bench:
        client = await bench.connect()
        await _pinged(client)
        client.session.writing_paused()
        bench.clock.now += 86_400
        bench.pass_time(TICK)
        await settle()
        assert client.connection.closed is None


# --- what a client may ask for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("5", 5),
        ("0", 0),
        ("-5", 0),
        ("", 7),
        ("often", 7),
        ("1e3", 7),
        ("9" * 400, 3600),
        ("-" + "9" * 400, 0),
        ("9" * 5000, 7),
    ],
)
async def test_the_ping_interval_is_bounded_whatever_a_client_asks_for(asked: str, seconds: float) -> None:
    async with Workbench(Limits(ping_interval=7)) as bench:
        client = await bench.connect(pi=asked)
        assert client.seen() == ["welcome"]
        assert client.session.beat == (seconds, 1)
        client.session.lost()
        assert bench.report().connections == 0
