"""Credit over real sockets: a subscriber decides how much comes, and grants that mean no good cost nobody else anything."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
from ropewalk.protocol.broky.frames import Credit, Error, Gap, Ping, Pong, Pushed, Reason, Run, Subscribe, Subscribed
from ropewalk.protocol.broky.runs import encode_run, payloads_of, run_of
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, client
from tests.server import RunningServer, running_server

PAYLOAD = 1000
SECRET = "a secret that is long enough for everybody"


@pytest.fixture(scope="module")
def server(processes: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file: Path = tmp_path_factory.mktemp("settings") / "ropewalk.toml"
    file.write_text('[[streams]]\npattern = "ticker/*"\nslow_consumer = "drop"\n')
    with running_server("--public", "--config_path", str(file), "--ws_max_pending_size", "100kb") as running:
        yield running


def key(prefix: str = "") -> bytes:
    """Of a stream that nobody else uses."""
    return f"{prefix}{random.randbytes(12).hex()}".encode()


def message(number: int) -> bytes:
    return b"%d " % number + bytes(PAYLOAD)


def numbers(runs: list[Run]) -> list[int]:
    return [int(payload.split(b" ")[0]) for run in runs for payload in payloads_of(run)]


async def push(producer: BrokyClient, stream: bytes, *wanted: int) -> None:
    for number in wanted:
        producer.send(run_of(stream, [message(number)], ref=number + 1))
        await producer.expect(Pushed)


async def told(connection: BrokyClient) -> list[Run]:
    """The runs that come before the answer to a ping."""
    connection.send(Ping(1))
    runs: list[Run] = []
    while not isinstance(body := await connection.receive(), Pong):
        assert isinstance(body, Run)
        runs.append(body)
    return runs


async def test_no_more_comes_than_was_granted_but_for_one_run_and_the_rest_follows(server: RunningServer) -> None:
    stream, granted = key(), 5 * PAYLOAD
    async with client(server) as producer, client(server) as witness, client(server, credit=granted) as subscriber:
        for connection in (witness, subscriber):
            await connection.subscribe(stream)
        await push(producer, stream, *range(40))
        while (await witness.expect(Run)).offset < 40:
            pass  # then it was delivered to the other one too, or waits for it
        got = [await subscriber.expect(Run), *await told(subscriber)]
        while numbers(got)[-1] < 39:
            received = sum(len(encode_run(run)) for run in got)
            assert received - len(encode_run(got[-1])) < granted
            subscriber.send(Credit(3 * PAYLOAD))
            granted += 3 * PAYLOAD
            got.append(await subscriber.expect(Run))
            got += await told(subscriber)
        assert numbers(got) == list(range(40))


async def test_a_run_larger_than_all_credit_comes_and_is_paid_for_later(server: RunningServer) -> None:
    stream = key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        await subscriber.subscribe(stream)
        await push(producer, stream, 0, 1)
        size = len(encode_run(await subscriber.expect(Run)))
        subscriber.send(Credit(size - 1))
        assert await told(subscriber) == []
        subscriber.send(Credit(1))
        assert numbers([await subscriber.expect(Run)]) == [1]


async def test_a_history_larger_than_the_credit_comes_as_it_is_granted_and_live_messages_follow(server: RunningServer) -> None:
    stream = key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        producer.send(run_of(stream, [message(number) for number in range(90)], ref=1))
        await producer.expect(Pushed)
        subscriber.send(Subscribe(1, stream, history=True), Ping(2))
        await subscriber.expect(Subscribed)
        await push(producer, stream, 90, 91)
        got: list[int] = []
        while not got or got[-1] < 91:
            match await subscriber.receive():
                case Run() as run:
                    got += numbers([run])
                    subscriber.send(Credit(len(encode_run(run))))
                case body:
                    assert isinstance(body, Pong)
        assert got == list(range(92))


async def test_credit_is_read_however_many_commands_wait_before_it(server: RunningServer) -> None:
    """The first of them waits for the credit."""
    stream = key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        producer.send(run_of(stream, [message(number) for number in range(90)], ref=1))
        await producer.expect(Pushed)
        subscriber.send(Subscribe(1, stream, history=True), *[Ping(number) for number in range(150)], Credit(1_000_000))
        await subscriber.expect(Subscribed)
        runs: list[Run] = []
        while not isinstance(body := await subscriber.receive(), Pong):
            assert isinstance(body, Run)
            runs.append(body)
        assert numbers(runs) == list(range(90))
        assert [pong.ref for pong in await subscriber.some(Pong, 149)] == list(range(1, 150))


async def test_a_subscriber_that_grants_nothing_is_ended_and_its_producer_is_not_held_up(server: RunningServer) -> None:
    stream = key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        await subscriber.subscribe(stream)
        await push(producer, stream, *range(150))
        assert numbers([await subscriber.expect(Run)]) == [0]
        error = await subscriber.ended()
        assert (error.reason, error.reconnect) == (Reason.SLOW, True)


async def test_where_the_stream_may_skip_a_gap_says_what_is_missing(server: RunningServer) -> None:
    stream = key("ticker/")
    async with client(server) as producer, client(server, credit=1) as subscriber:
        await subscriber.subscribe(stream)
        await push(producer, stream, *range(200))
        assert (await subscriber.expect(Run)).offset == 1
        subscriber.send(Credit(10_000_000))
        gaps, offset = 0, 1
        while offset < 200:
            body = await subscriber.receive()
            if isinstance(body, Gap):
                assert body.reason is Reason.SLOW
                gaps, offset = gaps + 1, body.last
            else:
                assert isinstance(body, Run)
                assert body.offset == offset + 1
                offset += body.count
        assert gaps


@pytest.mark.parametrize("grants", [[2**32 - 1], [2**31, 2**31]])
async def test_credit_that_overflows_ends_its_connection(server: RunningServer, grants: list[int]) -> None:
    async with client(server, credit=1) as hostile:
        hostile.send(*map(Credit, grants))
        assert (await hostile.ended()).reason is Reason.MALFORMED


async def test_a_publishing_key_takes_no_deliveries_and_has_no_credit_to_grant() -> None:
    with running_server("--secret", SECRET) as guarded:
        async with client(guarded, derive(SECRET, BROADCAST_PHRASE), credit=5) as producer:
            producer.send(run_of(b"k", [b"x"], ref=1))
            await producer.expect(Pushed)
            producer.send(Credit(1))
            assert (await producer.expect(Error)).reason is Reason.MALFORMED


async def test_a_flood_of_grants_adds_up_and_costs_nobody_else_anything(server: RunningServer) -> None:
    stream = key()
    async with client(server) as neighbour, client(server, credit=1) as hostile:
        for connection in (neighbour, hostile):
            await connection.subscribe(stream)
        await push_unanswered(neighbour, stream, 0)
        first = await hostile.expect(Run)
        hostile.writer.write(encode(Credit(1)) * 100_000)
        await push_unanswered(neighbour, stream, *range(1, 50))
        rest = await hostile.messages(49)
        assert numbers([first, *rest]) == numbers(await neighbour.messages(50)) == list(range(50))
        hostile.send(Ping(9))
        assert (await hostile.expect(Pong)).ref == 9


async def push_unanswered(producer: BrokyClient, stream: bytes, *wanted: int) -> None:
    for number in wanted:
        producer.send(run_of(stream, [message(number)]))
        await producer.writer.drain()
