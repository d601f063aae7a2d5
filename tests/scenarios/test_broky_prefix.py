"""Subscriptions by prefix over real sockets: which keys come, who may ask, and what it costs a server to be asked too much."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ropewalk.adapters.apps.jwt import issue
from ropewalk.core.signatures import sign_stream
from ropewalk.protocol.broky.frames import (
    Credit,
    Gap,
    Match,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from ropewalk.protocol.broky.runs import run_of
from tests.broky_client import BrokyClient, client
from tests.process_tree import store
from tests.server import RunningServer, publish, running_server
from tests.services import redis_server

SECRET = "a secret that is long enough for everybody"


@pytest.fixture(scope="module")
def server(processes: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file: Path = tmp_path_factory.mktemp("settings") / "ropewalk.toml"
    file.write_text(
        '[[streams]]\npattern = "nothing/*"\nhistory_limit = 0\n\n[[streams]]\npattern = "ticker/*"\nslow_consumer = "drop"\n'
    )
    with running_server("--public", "--config_path", str(file), "--ws_max_pending_size", "100kb") as running:
        yield running


@pytest.fixture
async def broky(server: RunningServer) -> AsyncIterator[BrokyClient]:
    async with client(server) as connection:
        yield connection


def unique(prefix: str = "") -> bytes:
    """A prefix that nobody else uses."""
    return f"{prefix}{random.randbytes(8).hex()}/".encode()


async def subscribed(connection: BrokyClient, prefix: bytes) -> None:
    connection.send(Subscribe(1, prefix, Match.PREFIX))
    assert await connection.expect(Subscribed) == Subscribed(1)


async def push(producer: BrokyClient, *messages: tuple[bytes, bytes]) -> None:
    for stream, payload in messages:
        producer.send(run_of(stream, [payload], ref=1))
        await producer.expect(Pushed)


async def test_everything_new_on_keys_that_begin_with_it_comes_and_nothing_else(
    broky: BrokyClient, server: RunningServer
) -> None:
    prefix = unique()
    async with client(server) as producer:
        await push(producer, (prefix + b"old", b"0"))
        await subscribed(broky, prefix)
        sent = [(prefix + b"a", b"1"), (prefix[:-1], b"no"), (prefix + b"b", b"2"), (prefix + b"a", b"3"), (prefix, b"4")]
        await push(producer, *sent, (prefix + b"\xff\x00", b"5"), (prefix + b"old", b"6"))
        await publish(server, (prefix + b"web").decode(), "7")
        runs = await broky.messages(7)
        assert [(run.key[len(prefix) :], run.payload, run.offset) for run in runs] == [
            (b"a", b"1", 1),
            (b"b", b"2", 1),
            (b"a", b"3", 2),
            (b"", b"4", 1),
            (b"\xff\x00", b"5", 1),
            (b"old", b"6", 2),
            (b"web", b"7", 1),
        ]
        assert all(run.epoch for run in runs)


async def test_a_prefix_is_bytes_and_may_end_in_the_middle_of_a_character(broky: BrokyClient, server: RunningServer) -> None:
    prefix = unique() + "é".encode()[:1]
    async with client(server) as producer:
        await subscribed(broky, prefix)
        whole, torn = prefix + "é".encode()[1:], prefix + b"\xff"
        await push(producer, (prefix[:-1] + b"e", b"no"), (whole, b"1"), (torn, b"2"))
        assert [run.key for run in await broky.messages(2)] == [whole, torn]


async def test_streams_that_keep_nothing_come_too(broky: BrokyClient, server: RunningServer) -> None:
    prefix = unique("nothing/")
    async with client(server) as producer:
        await subscribed(broky, prefix)
        producer.send(run_of(prefix + b"a", [b"1", b"2"]), run_of(prefix + b"b", [b"3"]), run_of(b"nothing/else", [b"no"]))
        producer.send(run_of(prefix + b"a", [b"4"], ref=1))
        runs = await broky.messages(4)
        assert [(run.key[-1:], run.payload) for run in runs] == [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"4")]


async def test_the_empty_prefix_is_everything() -> None:
    with running_server("--public") as server:
        async with client(server) as broky, client(server) as producer:
            await subscribed(broky, b"")
            await push(producer, (b"one", b"1"), (b"\xff", b"2"))
            assert [run.key for run in await broky.messages(2)] == [b"one", b"\xff"]


async def test_what_is_pushed_after_the_answer_comes_however_many_subscribe_and_leave_meanwhile(server: RunningServer) -> None:
    prefix = unique()
    async with client(server) as producer:

        async def subscribe_and_leave(name: bytes) -> None:
            async with client(server) as subscriber:
                for turn in range(15):
                    await subscribed(subscriber, prefix)
                    key = prefix + b"%b%d" % (name, turn)
                    producer.send(run_of(key, [b"x"]))
                    while (await subscriber.expect(Run)).key != key:
                        pass
                    subscriber.send(Unsubscribe(2, prefix, Match.PREFIX), Ping(3))
                    while not isinstance(await subscriber.receive(), Pong):
                        pass

        await asyncio.gather(*(subscribe_and_leave(b"%d-" % number) for number in range(6)))


async def test_after_an_unsubscribe_nothing_comes_and_one_of_what_was_never_subscribed_does_no_harm(
    broky: BrokyClient, server: RunningServer
) -> None:
    prefix = unique()
    async with client(server) as producer:
        await subscribed(broky, prefix)
        broky.send(Unsubscribe(2, prefix[:3], Match.PREFIX), Unsubscribe(2, prefix), Ping(1))
        await broky.expect(Pong)
        await push(producer, (prefix + b"a", b"1"))
        assert (await broky.expect(Run)).payload == b"1"
        broky.send(Unsubscribe(2, prefix, Match.PREFIX), Unsubscribe(2, prefix, Match.PREFIX), Ping(2))
        assert (await broky.expect(Pong)).ref == 2
        await push(producer, (prefix + b"a", b"2"))
        broky.send(Ping(3))
        assert (await broky.expect(Pong)).ref == 3


async def test_a_message_comes_once_for_each_subscription_that_it_fits(broky: BrokyClient, server: RunningServer) -> None:
    prefix = unique()
    async with client(server) as producer:
        await subscribed(broky, prefix)
        await subscribed(broky, prefix[:-1])
        await broky.subscribe(prefix + b"a")
        await subscribed(broky, prefix)  # a repeated one is answered, and is no other
        await push(producer, (prefix + b"a", b"1"))
        assert [run.payload for run in await broky.messages(3)] == [b"1"] * 3
        broky.send(Ping(1))
        await broky.expect(Pong)


@pytest.mark.parametrize("past", [{"history": True}, {"epoch": b"e"}, {"epoch": b"e", "offset": 3}, {"offset": 1}])
async def test_there_is_no_history_by_prefix(broky: BrokyClient, past: dict[str, object]) -> None:
    broky.send(Subscribe(4, b"k", Match.PREFIX, **past))  # type: ignore[arg-type]
    refused = await broky.expect(Refused)
    assert (refused.ref, refused.reason) == (4, Reason.MALFORMED)
    assert "history" in refused.text
    broky.send(Ping(1))
    await broky.expect(Pong)


async def test_only_where_streams_are_public() -> None:
    with running_server("--secret", SECRET, "--enforce_jwt") as guarded:
        async with client(guarded, issue(SECRET, '{"user":1}', int(time.time()) + 600)) as broky:
            for prefix in (b"", b"private", sign_stream("private", SECRET).encode()):
                broky.send(Subscribe(4, prefix, Match.PREFIX))
                refused = await broky.expect(Refused)
                assert (refused.ref, refused.reason) == (4, Reason.FORBIDDEN)
                assert "public" in refused.text


async def test_prefixes_are_bounded_in_length_by_connection_and_by_process(broky: BrokyClient) -> None:
    broky.send(Subscribe(4, bytes(513), Match.PREFIX))
    assert (await broky.expect(Refused)).reason is Reason.MALFORMED
    with running_server("--public", "--max_subscriptions", "200", "--command_rate", "0", "--workers", "1") as server:
        async with client(server) as first, client(server) as second:
            for connection, most in ((first, 200), (second, 56)):
                for number in range(most):
                    connection.send(Subscribe(1, b"%d %d" % (most, number), Match.PREFIX))
                await connection.some(Subscribed, most)
                connection.send(Subscribe(4, b"one more", Match.PREFIX))
                refused = await connection.expect(Refused)
                assert (refused.ref, refused.reason) == (4, Reason.OVERFLOW)
            second.send(Unsubscribe(0, b"56 1", Match.PREFIX), Subscribe(5, b"one more", Match.PREFIX))
            assert (await second.expect(Subscribed)).ref == 5


async def test_a_prefix_of_a_busy_server_is_bounded_as_any_other_slow_subscriber(server: RunningServer) -> None:
    prefix, skips = unique(), unique("ticker/")
    async with client(server) as producer, client(server) as slow, client(server, credit=1) as skipping:
        await subscribed(slow, prefix)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]  # the stream reader's own transport
        await subscribed(skipping, skips)
        for number in range(120):
            await push(
                producer, (prefix + b"%d" % number, bytes(100_000)), (skips + b"%d" % number, b"%d" % number + bytes(2000))
            )
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while isinstance(body := await slow.receive(), Run):
            pass
        assert getattr(body, "reason", None) is Reason.SLOW
        skipping.send(Credit(10_000_000))
        assert (await skipping.expect(Run)).payload[:1] == b"0"
        rest = [await skipping.receive()]
        while not isinstance(rest[-1], Run) or not rest[-1].payload.startswith(b"119"):
            rest.append(await skipping.receive())
        gaps = [body for body in rest if isinstance(body, Gap)]
        assert gaps
        assert set(gaps) == {Gap(skips, Reason.SLOW)}


async def test_after_the_store_process_was_lost_it_is_said_and_what_is_new_comes() -> None:
    prefix = unique()
    with running_server("--public", "--workers", "2") as server:
        async with client(server) as broky:
            await subscribed(broky, prefix)
            os.kill(store(server), signal.SIGKILL)
            assert await broky.expect(Gap) == Gap(prefix, Reason.TRIMMED)
            async with client(server) as producer:
                await push(producer, (prefix + b"a", b"1"))
            assert (await broky.expect(Run)).payload == b"1"


async def test_a_broker_that_cannot_says_so() -> None:
    with redis_server() as redis, running_server("--public", "--broker", "redis", "--redis_url", redis.url) as server:
        async with client(server) as broky:
            broky.send(Subscribe(4, b"k", Match.PREFIX))
            refused = await broky.expect(Refused)
            assert (refused.ref, refused.reason) == (4, Reason.UNAVAILABLE)
            assert "broker" in refused.text
