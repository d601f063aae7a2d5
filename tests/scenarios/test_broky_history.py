"""Reads of history over Broky without a subscription: pages, lost positions, and access."""

from collections.abc import AsyncIterator

import pytest

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
from ropewalk.protocol.broky.frames import (
    Credit,
    Error,
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
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from tests.broky_client import BrokyClient, client, new_key
from tests.clients.credentials import SECRET, signed, token
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import DEFAULT_HISTORY_LIMIT, LONG_HISTORY, SLOW_COMMANDS, ServerWith
from tests.server import RunningServer, publish

KEPT = DEFAULT_HISTORY_LIMIT


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with("--public", *worker_flags)


@pytest.fixture(scope="module")
def guarded(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with("--secret", SECRET, "--enforce_jwt", *worker_flags)


@pytest.fixture
async def broky(server: RunningServer) -> AsyncIterator[BrokyClient]:
    async with client(server) as connection:
        yield connection


async def pushed(connection: BrokyClient, stream: bytes, count: int, size: int = 0) -> bytes:
    """Messages with their offsets as their content. Returns the epoch."""
    connection.send(build_run(stream, [b"%d " % number + bytes(size) for number in range(1, count + 1)], ref=1))
    return (await connection.expect(Pushed)).epochs[1:]


def offsets(runs: list[Run]) -> list[int]:
    """Also checks that each message has the offset in its payload."""
    found = [run.offset + place for run in runs for place in range(run.count)]
    assert [int(payload.split(b" ")[0]) for run in runs for payload in split_payloads(run)] == found
    return found


async def part(connection: BrokyClient, ref: int = 7) -> tuple[list[int], HistoryPage]:
    """The rest of an answer: its offsets, and its end."""
    runs: list[Run] = []
    while not isinstance(body := await connection.receive(), HistoryPage):
        assert isinstance(body, Run)
        assert body.ref == ref
        runs.append(body)
    assert body.ref == ref
    return offsets(runs), body


async def test_pages_miss_and_repeat_no_message(broky: BrokyClient) -> None:
    stream = new_key()
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


async def test_read_does_not_subscribe_and_does_not_affect_subscriptions(broky: BrokyClient, server: RunningServer) -> None:
    stream, other = new_key(), new_key()
    await pushed(broky, stream, 2)
    await broky.subscribe(other)
    broky.send(History(7, stream))
    assert (await part(broky))[0] == [1, 2]
    await publish(server, stream.decode(), "3")
    await publish(server, other.decode(), "1")
    live = await broky.expect(Run)
    assert (live.key, live.ref) == (other, 0)


async def test_page_reports_how_it_relates_to_the_requested_position(broky: BrokyClient) -> None:
    stream = new_key()
    epoch = await pushed(broky, stream, KEPT + 10)
    failed = []
    for position, reason, first in (
        ((b"", 0), Reason.NONE, 11),
        ((b"", 5), Reason.TRIMMED, 11),
        ((epoch, 0), Reason.TRIMMED, 11),
        ((epoch, 9), Reason.TRIMMED, 11),
        ((epoch, 10), Reason.NONE, 11),
        ((epoch, 40), Reason.NONE, 41),
        ((epoch, KEPT + 11), Reason.AHEAD, 0),
        ((b"another", 40), Reason.EPOCH_CHANGED, 11),
        ((epoch, 2**64 - 1), Reason.AHEAD, 0),
    ):
        broky.send(History(7, stream, *position, 1000))
        page, end = await part(broky)
        expected = list(range(first, KEPT + 11)) if first else []
        if (page, end) != (expected, HistoryPage(7, reason, epoch, 11, KEPT + 10, KEPT + 10)):
            failed.append((position, page, end))
    assert not failed


async def test_unknown_stream_has_an_empty_page(broky: BrokyClient) -> None:
    broky.send(History(7, new_key()), History(8, new_key(), b"some epoch", 3))
    assert await part(broky) == ([], HistoryPage(7, oldest=1))
    assert await part(broky, 8) == ([], HistoryPage(8, Reason.EPOCH_CHANGED, oldest=1))


async def test_page_is_limited_in_bytes_and_has_at_least_one_message(broky: BrokyClient) -> None:
    stream = new_key()
    for number in range(1, 9):
        broky.send(build_run(stream, [b"%d " % number + bytes(200_000)], ref=1))
        epoch = (await broky.expect(Pushed)).epochs[1:]
    broky.send(History(7, stream, limit=1000))
    page, end = await part(broky)
    assert 1 <= len(page) <= 5
    assert (end.last, end.tip) == (page[-1], 8)
    broky.send(History(7, stream, epoch, 7, 1000))
    assert (await part(broky))[0] == [8]


async def test_page_is_limited_in_messages(server_with: ServerWith) -> None:
    stream = new_key()
    async with client(server_with(*LONG_HISTORY)) as broky:
        for first in (1, 751):
            broky.send(build_run(stream, [b"%d " % number for number in range(first, first + 750)], ref=1))
            await broky.expect(Pushed)
        for limit, given in ((0, 100), (2**32 - 1, 1000)):
            broky.send(History(7, stream, limit=limit))
            page, end = await part(broky)
            assert (page, end.last) == (list(range(1, given + 1)), given)


async def test_pages_use_credit_and_their_end_comes_after_them(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as producer, client(server, credit=1) as reader:
        await pushed(producer, stream, 40, 3000)
        reader.send(History(7, stream))
        got: list[Run] = []
        while not isinstance(body := await reader.receive(), HistoryPage):
            assert isinstance(body, Run)
            got.append(body)
            reader.send(Credit(len(encode_run(body))))
        assert offsets(got) == list(range(1, 41))


async def test_unsubscribe_does_not_truncate_a_page(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as producer, client(server, credit=1) as reader:
        for number in range(1, 6):  # each at a time of its own, so that they are no single run
            producer.send(build_run(stream, [b"%d " % number], ref=1))
            await producer.expect(Pushed)
        await reader.subscribe(stream)
        reader.send(History(7, stream))
        first = await reader.expect(Run)
        reader.send(Unsubscribe(2, stream), Ping(3))
        await reader.expect(Pong)
        reader.send(Credit(100_000))
        rest, _ = await part(reader)
        assert [first.offset, *rest] == [1, 2, 3, 4, 5]


# --- access -----------------------------------------------------------------------------------------------------


async def test_only_clients_that_may_subscribe_may_read(guarded: RunningServer) -> None:
    publishing = derive(SECRET, BROADCAST_PHRASE)
    async with client(guarded, publishing) as producer, client(guarded, token()) as reader:
        stream = new_key()
        await pushed(producer, stream, 3)
        signed_stream = signed(stream.decode()).encode()
        reader.send(History(7, signed_stream))
        assert (await part(reader))[0] == [1, 2, 3]
        for ref, name in enumerate((stream, signed_stream[:-1], b""), 1):
            reader.send(History(ref, name))
            refused = await reader.expect(Refused)
            assert (refused.ref, refused.reason, refused.text) == (ref, Reason.FORBIDDEN, "this key may not be read")
        producer.send(History(9, signed_stream))
        assert (await producer.expect(Refused)).reason is Reason.FORBIDDEN


async def test_history_without_a_ref_is_malformed(broky: BrokyClient) -> None:
    broky.send(History(0, b"k"))
    assert (await broky.ended()).reason is Reason.MALFORMED


async def test_reads_count_against_the_command_rate(server_with: ServerWith) -> None:
    server = server_with(*SLOW_COMMANDS)
    before = (await metrics(server)).get("refusals_total{backlog}", 0)
    async with client(server) as hostile, client(server) as neighbour:
        await pushed(neighbour, stream := new_key(), 50, 1000)
        hostile.send(*[History(number, stream, limit=1000) for number in range(1, 500)])
        answers, error = await hostile.until(Error)
        assert error.reason is Reason.OVERFLOW
        assert 0 < sum(isinstance(body, HistoryPage) for body in answers) < 499
        assert {type(body) for body in answers} == {Run, HistoryPage}
        neighbour.send(Ping(1))
        await neighbour.expect(Pong)
    await metrics_when(server, lambda now: now["refusals_total{backlog}"] == before + 1)
