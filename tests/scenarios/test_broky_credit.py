"""Broky credit on real sockets: a subscriber limits its deliveries, and invalid grants do not affect other clients."""

import pytest

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
from ropewalk.protocol.broky.frames import Credit, Error, Gap, Ping, Pong, Pushed, Reason, Run, Subscribe, Subscribed
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, client, new_key
from tests.clients.credentials import SECRET
from tests.metrics import metrics_when
from tests.scenarios.shared_servers import SMALL_OUTBOX, ServerWith
from tests.server import RunningServer, running_server

PAYLOAD = 1000


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*SMALL_OUTBOX, *worker_flags)


def message(number: int) -> bytes:
    return b"%d " % number + bytes(PAYLOAD)


def numbers(runs: list[Run]) -> list[int]:
    return [int(payload.split(b" ")[0]) for run in runs for payload in split_payloads(run)]


async def push(producer: BrokyClient, stream: bytes, *wanted: int) -> None:
    for number in wanted:
        producer.send(build_run(stream, [message(number)], ref=number + 1))
        await producer.expect(Pushed)


async def runs_before_pong(connection: BrokyClient) -> list[Run]:
    """The runs that come before the answer to a ping."""
    connection.send(Ping(1))
    bodies, _ = await connection.until(Pong)
    runs = [body for body in bodies if isinstance(body, Run)]
    assert runs == bodies
    return runs


async def test_deliveries_exceed_the_credit_by_at_most_one_run_and_continue_with_new_credit(server: RunningServer) -> None:
    stream, granted = new_key(), 5 * PAYLOAD
    async with client(server) as producer, client(server) as witness, client(server, credit=granted) as subscriber:
        for connection in (witness, subscriber):
            await connection.subscribe(stream)
        await push(producer, stream, *range(40))
        while (await witness.expect(Run)).offset < 40:
            pass  # then it was delivered to the other one too, or waits for it
        got = [await subscriber.expect(Run), *await runs_before_pong(subscriber)]
        while numbers(got)[-1] < 39:
            received = sum(len(encode_run(run)) for run in got)
            assert received - len(encode_run(got[-1])) < granted
            subscriber.send(Credit(3 * PAYLOAD))
            granted += 3 * PAYLOAD
            got.append(await subscriber.expect(Run))
            got += await runs_before_pong(subscriber)
        assert numbers(got) == list(range(40))


async def test_run_larger_than_the_credit_is_delivered_and_leaves_a_debt(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        await subscriber.subscribe(stream)
        await push(producer, stream, 0, 1)
        size = len(encode_run(await subscriber.expect(Run)))
        subscriber.send(Credit(size - 1))
        assert await runs_before_pong(subscriber) == []
        subscriber.send(Credit(1))
        assert numbers([await subscriber.expect(Run)]) == [1]


async def test_history_larger_than_the_credit_is_delivered_before_live_messages(
    server: RunningServer,
) -> None:
    stream = new_key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        producer.send(build_run(stream, [message(number) for number in range(90)], ref=1))
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


async def test_credit_is_read_ahead_of_pending_commands(server: RunningServer) -> None:
    """The first of them waits for the credit."""
    stream = new_key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        producer.send(build_run(stream, [message(number) for number in range(90)], ref=1))
        await producer.expect(Pushed)
        subscriber.send(Subscribe(1, stream, history=True), *[Ping(number) for number in range(150)], Credit(1_000_000))
        await subscriber.expect(Subscribed)
        bodies, _ = await subscriber.until(Pong)
        assert numbers([body for body in bodies if isinstance(body, Run)]) == list(range(90))
        assert [pong.ref for pong in await subscriber.some(Pong, 149)] == list(range(1, 150))


async def test_subscriber_that_grants_no_credit_is_closed_and_the_producer_is_not_delayed(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as producer, client(server, credit=1) as subscriber:
        await subscriber.subscribe(stream)
        await push(producer, stream, *range(150))
        assert numbers([await subscriber.expect(Run)]) == [0]
        error = await subscriber.ended()
        assert (error.reason, error.reconnect) == (Reason.SLOW, True)


async def test_dropping_stream_reports_a_gap_to_a_subscriber_without_credit(server: RunningServer) -> None:
    stream = b"ticker/" + new_key()
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


async def test_credit_overflow_ends_the_connection(server: RunningServer) -> None:
    for grants in ([2**32 - 1], [2**31, 2**31]):
        async with client(server, credit=1) as hostile:
            hostile.send(*map(Credit, grants))
            assert (await hostile.ended()).reason is Reason.MALFORMED


async def test_publishing_key_may_not_grant_credit(guarded: RunningServer) -> None:
    async with client(guarded, derive(SECRET, BROADCAST_PHRASE), credit=5) as producer:
        producer.send(build_run(new_key(), [b"x"], ref=1))
        await producer.expect(Pushed)
        producer.send(Credit(1))
        assert (await producer.expect(Error)).reason is Reason.MALFORMED


async def test_flood_of_grants_adds_up_and_does_not_affect_other_clients(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as neighbour, client(server, credit=1) as hostile:
        for connection in (neighbour, hostile):
            await connection.subscribe(stream)
        await push_without_ref(neighbour, stream, 0)
        first = await hostile.expect(Run)
        hostile.writer.write(encode(Credit(10)) * 10_000)
        await push_without_ref(neighbour, stream, *range(1, 50))
        rest = await hostile.messages(49)
        assert numbers([first, *rest]) == numbers(await neighbour.messages(50)) == list(range(50))
        hostile.send(Ping(9))
        assert (await hostile.expect(Pong)).ref == 9


async def push_without_ref(producer: BrokyClient, stream: bytes, *wanted: int) -> None:
    for number in wanted:
        producer.send(build_run(stream, [message(number)]))
        await producer.writer.drain()


async def test_client_that_grants_nothing_for_its_history_is_disconnected(worker_flags: tuple[str, ...]) -> None:
    stream, limits = new_key(), ("--history_limit", "1000", "--ws_write_timeout", "1s")
    with running_server("--public", *limits, *worker_flags) as server:
        async with client(server) as producer, client(server, credit=1) as subscriber:
            for start in range(0, 1000, 50):
                producer.send(build_run(stream, [message(number) for number in range(start, start + 50)], ref=start + 1))
                await producer.expect(Pushed)
            subscriber.send(Subscribe(1, stream, history=True))
            await subscriber.expect(Subscribed)
            _, error = await subscriber.until(Error)
            assert (error.reason, error.reconnect) == (Reason.SLOW, True)
        found = await metrics_when(server, lambda now: now["refusals_total{write_timeout}"] == 1)
        assert found["history_waiting_bytes"] == 0
