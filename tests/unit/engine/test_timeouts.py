"""Timeouts are independent of the ping interval."""

import asyncio

import pytest

from ropewalk.engine.timeouts import TICK
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.sse import SseCodec
from ropewalk.protocol.websocket_frame import CableCodec
from tests.unit.engine.workbench import Client, Workbench, public, settle


async def test_ping_has_the_requested_precision(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, int]] = [("", 1_800_000_000), ("ms", 1_800_000_000_000), ("xx", 1_800_000_000)]
    for precision, stamp in rows:
        with subtests.test(precision=precision, stamp=stamp):
            async with Workbench(Limits(ping_interval=0.001)) as bench:
                client = await bench.connect(ptp=precision)
                while "ping" not in client.seen():
                    await asyncio.sleep(0)
                assert client.connection.replies()[1] == {"type": "ping", "message": stamp}


async def test_client_can_disable_pings() -> None:
    async with Workbench(Limits(ping_interval=0.001)) as bench:
        disabled, other = await bench.connect(pi="0"), await bench.connect()
        while other.seen().count("ping") < 3:
            await asyncio.sleep(0)
        assert disabled.seen() == ["welcome"]


async def test_ping_interval_is_bounded(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, float]] = [
        ("5", 5),
        ("0", 0),
        ("-5", 0),
        ("", 7),
        ("often", 7),
        ("1e3", 7),
        ("9" * 400, 3600),
        ("-" + "9" * 400, 0),
        ("9" * 5000, 7),
    ]
    for requested, seconds in rows:
        with subtests.test(requested=requested, seconds=seconds):
            async with Workbench(Limits(ping_interval=7)) as bench:
                client = await bench.connect(pi=requested)
                assert client.seen() == ["welcome"]
                assert client.session.beat == (seconds, 1)
                client.session.connection_lost()
                assert bench.report().connections == 0


PINGED = Limits(ping_interval=0.001, pong_timeout=1)
UNPINGED = Limits(ping_interval=0, write_timeout=30)


async def _wait_for_ping(client: Client) -> None:
    while "ping" not in client.seen():
        await asyncio.sleep(0)


def _record_ping(bench: Workbench, client: Client) -> None:
    """Record one ping, as the heartbeat does once in a long interval."""
    bench.node.timeouts.pinged(client.session)


# --- pongs ----------------------------------------------------------------------------------------------------------------


async def test_client_that_does_not_answer_pings_is_closed() -> None:
    async with Workbench(PINGED) as bench:
        silent, answering = await bench.connect(), await bench.connect()
        await _wait_for_ping(silent)
        await _wait_for_ping(answering)
        bench.pass_time(0.75)
        await answering.send(command="pong")
        bench.pass_time(0.5)
        assert silent.connection.replies()[-1] == {"type": "disconnect", "reason": "no_pong", "reconnect": True}
        assert answering.connection.closed is None
        assert bench.stats.refusals == {Refusal.PONG_TIMEOUT: 1}


async def test_unanswered_ping_closes_the_connection_after_the_timeout_for_any_interval(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["1", "3", "3600"]
    for interval in rows:
        with subtests.test(interval=interval):
            async with Workbench(PINGED) as bench:
                client = await bench.connect(pi=interval)
                _record_ping(bench, client)
                bench.pass_time(1)
                assert client.connection.closed is None
                bench.pass_time(TICK)
                assert client.connection.closed == (1000, "No Pong")


async def test_later_pings_do_not_extend_the_deadline_of_the_first() -> None:
    async with Workbench(PINGED) as bench:
        client = await bench.connect()
        for _ in range(6):
            _record_ping(bench, client)
            bench.pass_time(TICK)
        assert client.connection.closed == (1000, "No Pong")


async def test_client_with_pings_disabled_needs_no_pong() -> None:
    async with Workbench(PINGED) as bench:
        disabled, other = await bench.connect(pi="0"), await bench.connect()
        await _wait_for_ping(other)
        bench.pass_time(60)
        assert disabled.connection.closed is None
        assert other.connection.closed is not None


async def test_paused_client_is_not_closed_for_a_missing_pong() -> None:
    async with Workbench(Limits(ping_interval=0.001, pong_timeout=1, command_rate=1, command_burst=1)) as bench:
        client = await bench.connect()
        await _wait_for_ping(client)
        for _ in range(100):
            client.session.receive(b'{"command":"ping"}')
        assert not client.connection.reading
        _record_ping(bench, client)
        bench.pass_time(30)
        assert client.connection.closed is None


async def test_only_clients_that_can_send_a_pong_need_one() -> None:
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


# --- writes -----------------------------------------------------------------------------------------------------------------


async def test_client_that_reads_nothing_for_too_long_is_closed_without_pings() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect(pi="0")
        client.connection.untaken = 100_000
        client.session.pause_writing()
        bench.pass_time(30)
        assert client.connection.closed is None
        bench.pass_time(1)
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "too_slow", "reconnect": True}
        assert bench.stats.refusals == {Refusal.WRITE_TIMEOUT: 1}


async def test_slow_but_steady_reader_is_not_closed() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect()
        client.connection.untaken = 100_000
        client.session.pause_writing()
        for _ in range(10):
            bench.pass_time(25)
            client.connection.untaken -= 1
        assert client.connection.closed is None
        bench.pass_time(31)
        assert client.connection.closed is not None


async def test_client_that_caught_up_is_no_longer_watched() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        bench.pass_time(20)
        client.session.resume_writing()
        bench.pass_time(60)
        await bench.publish("s", "1")
        assert client.seen() == ["welcome", "confirm_subscription", 1]


async def test_each_pause_restarts_the_write_timeout() -> None:
    async with Workbench(UNPINGED) as bench:
        client = await bench.connect()
        for _ in range(4):
            client.session.pause_writing()
            bench.pass_time(20)
            client.session.resume_writing()
        assert client.connection.closed is None


async def test_wall_clock_change_closes_no_connection() -> None:
    async with Workbench(PINGED) as bench:
        client = await bench.connect()
        await _wait_for_ping(client)
        client.session.pause_writing()
        bench.clock.now += 86_400
        bench.pass_time(TICK)
        await settle()
        assert client.connection.closed is None
