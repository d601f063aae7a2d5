"""Reading history over Broky without a subscription: pages, positions that are gone, and who may read."""

import random
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from ropewalk.adapters.apps.jwt import issue
from ropewalk.core.signatures import BROADCAST_PHRASE, derive, sign_stream
from ropewalk.protocol.broky.frames import (
    Credit,
    History,
    HistoryPage,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Unsubscribe,
)
from ropewalk.protocol.broky.runs import encode_run, payloads_of, run_of
from tests.broky_client import BrokyClient, client
from tests.metrics import metrics_when
from tests.server import RunningServer, publish, running_server

SECRET = "a secret that is long enough for everybody"
KEPT = 50


@pytest.fixture(scope="module")
def server(processes: str) -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", str(KEPT)) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(processes: str) -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--enforce_jwt") as running:
        yield running


@pytest.fixture
async def broky(server: RunningServer) -> AsyncIterator[BrokyClient]:
    async with client(server) as connection:
        yield connection


def key() -> bytes:
    """Of a stream that nobody else uses."""
    return random.randbytes(12).hex().encode()


async def pushed(connection: BrokyClient, stream: bytes, count: int, size: int = 0) -> bytes:
    """Messages with their offsets as their content. Returns the epoch."""
    connection.send(run_of(stream, [b"%d " % number + bytes(size) for number in range(1, count + 1)], ref=1))
    return (await connection.expect(Pushed)).epochs[1:]


def offsets(runs: list[Run]) -> list[int]:
    """After it was looked at that each message has the offset that it says."""
    told = [run.offset + place for run in runs for place in range(run.count)]
    assert [int(payload.split(b" ")[0]) for run in runs for payload in payloads_of(run)] == told
    return told


async def part(connection: BrokyClient, ref: int = 7) -> tuple[list[int], HistoryPage]:
    """The rest of an answer: its offsets, and its end."""
    runs: list[Run] = []
    while not isinstance(body := await connection.receive(), HistoryPage):
        assert isinstance(body, Run)
        assert body.ref == ref
        runs.append(body)
    assert body.ref == ref
    return offsets(runs), body


async def test_history_is_read_page_by_page_and_has_no_hole_and_no_double(broky: BrokyClient) -> None:
    stream = key()
    epoch = await pushed(broky, stream, 45)
    got: list[int] = []
    end = HistoryPage(tip=1)
    while end.last < end.tip:
        broky.send(History(7, stream, end.epoch, end.last, 20))
        page, end = await part(broky)
        assert len(page) <= 20
        assert (end.reason, end.epoch, end.oldest, end.tip) == (Reason.NONE, epoch, 1, 45)
        got += page
    assert got == list(range(1, 46))
    broky.send(History(7, stream, epoch, 45), Ping(1))
    assert (await part(broky))[0] == []
    await broky.expect(Pong)


async def test_reading_is_no_subscription_and_disturbs_none(broky: BrokyClient, server: RunningServer) -> None:
    stream, other = key(), key()
    await pushed(broky, stream, 2)
    await broky.subscribe(other)
    broky.send(History(7, stream))
    assert (await part(broky))[0] == [1, 2]
    await publish(server, stream.decode(), "3")
    await publish(server, other.decode(), "1")
    live = await broky.expect(Run)
    assert (live.key, live.ref) == (other, 0)


@pytest.mark.parametrize(
    ("position", "reason", "first"),
    [
        (("", 0), Reason.NONE, 11),
        (("", 5), Reason.TRIMMED, 11),
        (("its own", 0), Reason.TRIMMED, 11),
        (("its own", 9), Reason.TRIMMED, 11),
        (("its own", 10), Reason.NONE, 11),
        (("its own", 40), Reason.NONE, 41),
        (("its own", 61), Reason.AHEAD, 0),
        (("another", 40), Reason.EPOCH_CHANGED, 11),
        (("its own", 2**64 - 1), Reason.AHEAD, 0),
    ],
)
async def test_that_an_answer_does_not_follow_the_position_is_said(
    broky: BrokyClient, position: tuple[str, int], reason: Reason, first: int
) -> None:
    stream = key()
    epoch = await pushed(broky, stream, KEPT + 10)
    asked = {"": b"", "its own": epoch, "another": b"another"}[position[0]]
    broky.send(History(7, stream, asked, position[1], 1000))
    page, end = await part(broky)
    assert page == (list(range(first, KEPT + 11)) if first else [])
    assert (end.reason, end.epoch, end.oldest, end.last, end.tip) == (reason, epoch, 11, KEPT + 10, KEPT + 10)


async def test_of_a_stream_that_nobody_heard_of_there_is_nothing(broky: BrokyClient) -> None:
    broky.send(History(7, key()), History(8, key(), b"some epoch", 3))
    assert await part(broky) == ([], HistoryPage(7, oldest=1))
    assert await part(broky, 8) == ([], HistoryPage(8, Reason.EPOCH_CHANGED, oldest=1))


async def test_a_page_is_bounded_by_bytes_and_has_at_least_one_message(broky: BrokyClient) -> None:
    stream = key()
    for number in range(1, 9):
        broky.send(run_of(stream, [b"%d " % number + bytes(200_000)], ref=1))
        epoch = (await broky.expect(Pushed)).epochs[1:]
    broky.send(History(7, stream, limit=1000))
    page, end = await part(broky)
    assert 1 <= len(page) <= 5
    assert (end.last, end.tip) == (page[-1], 8)
    broky.send(History(7, stream, epoch, 7, 1000))
    assert (await part(broky))[0] == [8]


async def test_more_than_a_page_may_be_asked_for_but_is_not_given(server: RunningServer) -> None:
    stream = key()
    with running_server("--public", "--history_limit", "2000", "--max_publish_batch", "2000") as roomy:
        async with client(roomy) as broky:
            await pushed(broky, stream, 1500)
            for limit, given in ((0, 100), (2**32 - 1, 1000)):
                broky.send(History(7, stream, limit=limit))
                page, end = await part(broky)
                assert (page, end.last) == (list(range(1, given + 1)), given)


async def test_pages_count_against_credit_and_their_end_comes_behind_them(server: RunningServer) -> None:
    stream = key()
    async with client(server) as producer, client(server, credit=1) as reader:
        await pushed(producer, stream, 40, 3000)
        reader.send(History(7, stream))
        got: list[Run] = []
        while not isinstance(body := await reader.receive(), HistoryPage):
            assert isinstance(body, Run)
            got.append(body)
            reader.send(Credit(len(encode_run(body))))
        assert offsets(got) == list(range(1, 41))


async def test_an_unsubscribe_does_not_cut_a_page(server: RunningServer) -> None:
    stream = key()
    async with client(server) as producer, client(server, credit=1) as reader:
        for number in range(1, 6):  # each at a time of its own, so that they are no single run
            producer.send(run_of(stream, [b"%d " % number], ref=1))
            await producer.expect(Pushed)
        await reader.subscribe(stream)
        reader.send(History(7, stream))
        first = await reader.expect(Run)
        reader.send(Unsubscribe(2, stream), Ping(3))
        await reader.expect(Pong)
        reader.send(Credit(100_000))
        rest, _ = await part(reader)
        assert [first.offset, *rest] == [1, 2, 3, 4, 5]


# --- who may read -----------------------------------------------------------------------------------------------------


async def test_whoever_may_subscribe_may_read_and_nobody_else(guarded: RunningServer) -> None:
    publishing = derive(SECRET, BROADCAST_PHRASE)
    token = issue(SECRET, '{"user":1}', int(time.time()) + 600)
    async with client(guarded, publishing) as producer, client(guarded, token) as reader:
        await pushed(producer, b"private", 3)
        signed = sign_stream("private", SECRET).encode()
        reader.send(History(7, signed))
        assert (await part(reader))[0] == [1, 2, 3]
        for ref, name in enumerate((b"private", signed[:-1], b""), 1):
            reader.send(History(ref, name))
            refused = await reader.expect(Refused)
            assert (refused.ref, refused.reason, refused.text) == (ref, Reason.FORBIDDEN, "this key may not be read")
        producer.send(History(9, signed))
        assert (await producer.expect(Refused)).reason is Reason.FORBIDDEN


async def test_a_history_without_a_ref_is_malformed(broky: BrokyClient) -> None:
    broky.send(History(0, b"k"))
    assert (await broky.ended()).reason is Reason.MALFORMED


async def test_a_flood_of_requests_is_a_flood_of_commands() -> None:
    flags = "--public", "--command_rate", "20", "--command_backlog", "1s"
    with running_server(*flags) as server:
        async with client(server) as hostile, client(server) as neighbour:
            await pushed(neighbour, b"k", 50, 1000)
            hostile.send(*[History(number, b"k", limit=1000) for number in range(1, 500)])
            answered = 0
            while isinstance(body := await hostile.receive(), Run | HistoryPage):
                answered += isinstance(body, HistoryPage)
            assert getattr(body, "reason", None) is Reason.OVERFLOW
            assert answered < 100
            neighbour.send(Ping(1))
            await neighbour.expect(Pong)
        await metrics_when(server, lambda found: found["refusals_total{backlog}"] == 1)
