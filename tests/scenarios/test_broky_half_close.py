"""A client over TCP that ends its side of the connection: everything that came whole before is answered, then comes our end."""

import random
from collections.abc import Iterator

import pytest

from ropewalk.protocol.broky.frames import (
    Body,
    Credit,
    History,
    HistoryPage,
    Ping,
    Pong,
    Pushed,
    Run,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from ropewalk.protocol.broky.runs import run_of
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, client
from tests.metrics import metrics_when
from tests.server import RunningServer, running_server


@pytest.fixture(scope="module", params=["alone", "workers", "journal"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One where nothing takes a while, one where every command does, and one where a push does."""
    more = {"workers": ("--workers", "2"), "journal": ("--data_dir", str(tmp_path_factory.mktemp("data")))}
    with running_server("--public", *more.get(request.param, ())) as running:
        yield running
        assert "Traceback" not in running.log(), running.log()


@pytest.fixture
def key() -> bytes:
    return random.randbytes(12).hex().encode()


async def said_last(broky: BrokyClient, *bodies: Body) -> list[Body]:
    """What comes after these, and after the end of our side."""
    broky.send(*bodies)
    broky.writer.write_eof()
    answers: list[Body] = []
    while (answer := await broky.receive()) is not None:
        answers.append(answer)
    return answers


def refs_of(answers: list[Body]) -> list[int]:
    return [ref for answer in answers if isinstance(answer, Pushed) for ref in answer.refs]


async def test_a_pong_comes_behind_the_answers_to_pushes(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        answers = await said_last(broky, *[run_of(key, [b"x"], ref=ref) for ref in range(1, 6)], Ping(9))
        assert refs_of(answers) == [1, 2, 3, 4, 5]
        assert isinstance(answers[-1], Pong)


async def test_a_subscription_and_the_history_that_it_asks_for_are_answered(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        answers = await said_last(broky, run_of(key, [b"x"], ref=1), Subscribe(2, key, history=True), Ping(3))
        assert [type(answer) for answer in answers] == [Pushed, Subscribed, Run, Pong]
    async with client(server) as broky:
        answers = await said_last(broky, Subscribe(1, key, history=True))
        assert [type(answer) for answer in answers] == [Subscribed, Run]


async def test_history_that_is_read_is_answered(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        answers = await said_last(broky, run_of(key, [b"x"], ref=1), History(2, key))
        assert [type(answer) for answer in answers] == [Pushed, Run, HistoryPage]
    async with client(server) as broky:
        assert [type(answer) for answer in await said_last(broky, History(2, key))] == [Run, HistoryPage]


async def test_more_commands_than_a_session_takes_at_once_are_all_answered(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        commands: list[Body] = [Subscribe(1, key + b"%d" % number) for number in range(200)]
        answers = await said_last(broky, *commands, Ping(1))
        assert [type(answer) for answer in answers] == [Subscribed] * 200 + [Pong]


async def test_the_beginning_of_a_frame_is_not_waited_for(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        broky.send(Subscribe(1, key), Ping(1))
        broky.writer.write(encode(Ping(2))[:-1])
        assert [type(answer) for answer in await said_last(broky)] == [Subscribed, Pong]


async def test_deliveries_end_with_the_answers(server: RunningServer, key: bytes) -> None:
    """And so does the session, with nobody left behind."""
    async with client(server) as busy:
        for _ in range(5):
            async with client(server) as broky:
                await broky.subscribe(key)
                busy.send(run_of(key, [b"x"]))
                answers = await said_last(broky, Unsubscribe(1, b"unknown"), Ping(1))
                assert [type(answer) for answer in answers if not isinstance(answer, Run)] == [Pong]
        await metrics_when(server, lambda now: now["connections"] == 1)


async def test_what_there_is_credit_for_is_sent_and_answers_are_too(server: RunningServer, key: bytes) -> None:
    async with client(server) as producer:
        producer.send(*[run_of(key, [bytes(1000)], ref=ref) for ref in range(1, 101)], Ping(1))
        while not isinstance(await producer.receive(), Pong):
            pass
    async with client(server, credit=1) as broky:
        answers = await said_last(broky, Subscribe(1, key, history=True), Credit(50_000), Subscribe(2, key + b"2"), Ping(3))
        kinds = [type(answer) for answer in answers]
        assert kinds[0] is Subscribed
        assert kinds[-2:] == [Subscribed, Pong]
        assert set(kinds[1:-2]) == {Run}
        assert 0 < sum(answer.count for answer in answers if isinstance(answer, Run)) < 100


async def test_all_of_a_long_history_comes(server: RunningServer, key: bytes) -> None:
    """More than the kernel's buffers hold, so that some of it still waits when all commands are handled."""
    messages = 100
    async with client(server) as producer:
        for ref in range(1, messages + 1):
            producer.send(run_of(key, [bytes(60_000)], ref=ref))
            await producer.expect(Pushed)
    async with client(server) as broky:
        broky.send(Subscribe(1, key, history=True), Ping(2))
        broky.writer.write_eof()
        await broky.expect(Subscribed)
        assert len(await broky.messages(messages)) == messages
        await broky.expect(Pong)
        assert await broky.receive() is None
