"""Broky subscriptions by prefix on real sockets: which keys they match, who may subscribe, and their limits."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator

import pytest

from ropewalk.engine.prefixes import MAX_PREFIXES, MAX_PREFIXES_PER_CONNECTION
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
from ropewalk.protocol.broky.runs import build_run
from tests.broky_client import BrokyClient, client
from tests.clients.credentials import signed, token
from tests.process_tree import store
from tests.scenarios.shared_servers import SMALL_OUTBOX, ServerWith
from tests.server import RunningServer, publish, running_server
from tests.services import redis_server


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*SMALL_OUTBOX, *worker_flags)


@pytest.fixture
async def broky(server: RunningServer) -> AsyncIterator[BrokyClient]:
    async with client(server) as connection:
        yield connection


def unique(prefix: str = "") -> bytes:
    """A prefix that no other test uses."""
    return f"{prefix}{random.randbytes(8).hex()}/".encode()


async def subscribed(connection: BrokyClient, prefix: bytes) -> None:
    connection.send(Subscribe(1, prefix, Match.PREFIX))
    assert await connection.expect(Subscribed) == Subscribed(1)


async def push(producer: BrokyClient, *messages: tuple[bytes, bytes]) -> None:
    for stream, payload in messages:
        producer.send(build_run(stream, [payload], ref=1))
        await producer.expect(Pushed)


async def test_prefix_delivers_new_messages_of_matching_keys_only(broky: BrokyClient, server: RunningServer) -> None:
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


async def test_prefix_is_bytes_and_may_split_a_character(broky: BrokyClient, server: RunningServer) -> None:
    prefix = unique() + "é".encode()[:1]
    async with client(server) as producer:
        await subscribed(broky, prefix)
        whole, torn = prefix + "é".encode()[1:], prefix + b"\xff"
        await push(producer, (prefix[:-1] + b"e", b"no"), (whole, b"1"), (torn, b"2"))
        assert [run.key for run in await broky.messages(2)] == [whole, torn]


async def test_prefix_matches_ephemeral_streams(broky: BrokyClient, server: RunningServer) -> None:
    prefix = unique("ephemeral/")
    async with client(server) as producer:
        await subscribed(broky, prefix)
        producer.send(
            build_run(prefix + b"a", [b"1", b"2"]), build_run(prefix + b"b", [b"3"]), build_run(b"ephemeral/else", [b"no"])
        )
        producer.send(build_run(prefix + b"a", [b"4"], ref=1))
        runs = await broky.messages(4)
        assert [(run.key[-1:], run.payload) for run in runs] == [(b"a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b"4")]


async def test_empty_prefix_matches_every_key(broky: BrokyClient, server: RunningServer) -> None:
    async with client(server) as producer:
        await subscribed(broky, b"")
        await push(producer, (b"one", b"1"), (b"\xff", b"2"))
        assert [run.key for run in await broky.messages(2)] == [b"one", b"\xff"]


async def test_prefix_delivers_everything_after_its_answer_while_others_come_and_go(
    server: RunningServer,
) -> None:
    prefix = unique()
    async with client(server) as producer:

        async def subscribe_and_leave(name: bytes) -> None:
            async with client(server) as subscriber:
                for turn in range(15):
                    await subscribed(subscriber, prefix)
                    key = prefix + b"%b%d" % (name, turn)
                    producer.send(build_run(key, [b"x"]))
                    while (await subscriber.expect(Run)).key != key:
                        pass
                    subscriber.send(Unsubscribe(2, prefix, Match.PREFIX), Ping(3))
                    while not isinstance(await subscriber.receive(), Pong):
                        pass

        await asyncio.gather(*(subscribe_and_leave(b"%d-" % number) for number in range(6)))


async def test_unsubscribe_stops_deliveries_of_its_own_prefix_only(broky: BrokyClient, server: RunningServer) -> None:
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


async def test_message_is_delivered_once_for_each_matching_subscription(broky: BrokyClient, server: RunningServer) -> None:
    prefix = unique()
    async with client(server) as producer:
        await subscribed(broky, prefix)
        await subscribed(broky, prefix[:-1])
        await broky.subscribe(prefix + b"a")
        await subscribed(broky, prefix)  # a repeated subscription is answered and does not count twice
        await push(producer, (prefix + b"a", b"1"))
        assert [run.payload for run in await broky.messages(3)] == [b"1"] * 3
        broky.send(Ping(1))
        await broky.expect(Pong)


async def test_history_by_prefix_is_refused(broky: BrokyClient) -> None:
    for position in ({"history": True}, {"epoch": b"e"}, {"epoch": b"e", "offset": 3}, {"offset": 1}):
        broky.send(Subscribe(4, b"k", Match.PREFIX, **position))
        refused = await broky.expect(Refused)
        assert (refused.ref, refused.reason, "history" in refused.text) == (4, Reason.MALFORMED, True), position
        broky.send(Ping(1))
        await broky.expect(Pong)


async def test_prefix_is_forbidden_where_streams_are_not_public(guarded: RunningServer) -> None:
    async with client(guarded, token()) as broky:
        for prefix in (b"", b"private", signed("private").encode()):
            broky.send(Subscribe(4, prefix, Match.PREFIX))
            refused = await broky.expect(Refused)
            assert (refused.ref, refused.reason) == (4, Reason.FORBIDDEN)
            assert "public" in refused.text


async def test_prefixes_are_limited_in_length_and_by_connection_and_by_process(broky: BrokyClient) -> None:
    broky.send(Subscribe(4, bytes(513), Match.PREFIX))
    assert (await broky.expect(Refused)).reason is Reason.MALFORMED
    with running_server("--public", "--command_rate", "0", "--workers", "1") as bounded:
        async with contextlib.AsyncExitStack() as stack:
            for turn in range(MAX_PREFIXES // MAX_PREFIXES_PER_CONNECTION):
                connection = await stack.enter_async_context(client(bounded))
                for number in range(MAX_PREFIXES_PER_CONNECTION):
                    connection.send(Subscribe(1, b"%d %d" % (turn, number), Match.PREFIX))
                await connection.some(Subscribed, MAX_PREFIXES_PER_CONNECTION)
                connection.send(Subscribe(4, b"one more", Match.PREFIX))
                refused = await connection.expect(Refused)
                assert (refused.ref, refused.reason) == (4, Reason.OVERFLOW)
                assert "in one connection" in refused.text
            late = await stack.enter_async_context(client(bounded))
            late.send(Subscribe(4, b"one more", Match.PREFIX))
            refused = await late.expect(Refused)
            assert (refused.ref, refused.reason) == (4, Reason.OVERFLOW)
            connection.send(Unsubscribe(0, b"%d 1" % turn, Match.PREFIX), Subscribe(5, b"one more", Match.PREFIX))
            assert (await connection.expect(Subscribed)).ref == 5


async def test_slow_prefix_subscriber_is_closed_or_gets_a_gap(server: RunningServer) -> None:
    prefix, skips = unique(), unique("ticker/")
    async with client(server) as producer, client(server) as slow, client(server, credit=1) as skipping:
        await subscribed(slow, prefix)
        slow.pause_reading()
        await subscribed(skipping, skips)
        for number in range(120):
            await push(
                producer, (prefix + b"%d" % number, bytes(100_000)), (skips + b"%d" % number, b"%d" % number + bytes(2000))
            )
        slow.resume_reading()
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


@pytest.mark.tier("all")
async def test_lost_store_process_is_reported_as_a_gap_and_deliveries_continue() -> None:
    prefix = unique()
    with running_server("--public", "--workers", "2") as server:
        async with client(server) as broky:
            await subscribed(broky, prefix)
            os.kill(store(server), signal.SIGKILL)
            assert await broky.expect(Gap) == Gap(prefix, Reason.TRIMMED)
            async with client(server) as producer:
                await push(producer, (prefix + b"a", b"1"))
            assert (await broky.expect(Run)).payload == b"1"


async def test_broker_without_prefixes_refuses_them() -> None:
    with redis_server() as redis, running_server("--public", "--broker", "redis", "--redis_url", redis.url) as server:
        async with client(server) as broky:
            broky.send(Subscribe(4, b"k", Match.PREFIX))
            refused = await broky.expect(Refused)
            assert (refused.ref, refused.reason) == (4, Reason.UNAVAILABLE)
            assert "broker" in refused.text
