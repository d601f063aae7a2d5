"""Half-closed Broky connections: the server answers all complete frames before the end, then closes its side."""

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
from ropewalk.protocol.broky.runs import build_run
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, answered_refs, client, new_key
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer


@pytest.fixture(scope="module", params=["alone", "journal", pytest.param("workers", marks=pytest.mark.tier("all"))])
def server(request: pytest.FixtureRequest, server_with: ServerWith) -> RunningServer:
    """One where nothing takes time, one where pushes do, and one where every command does."""
    flags = {"journal": ("--data_dir", "data"), "workers": ("--workers", "2")}
    return server_with("--public", *flags.get(request.param, ()))


@pytest.fixture
def key() -> bytes:
    return new_key()


async def end_with(broky: BrokyClient, *bodies: Body) -> list[Body]:
    """Sends these, ends our side, and returns everything that comes after it."""
    broky.send(*bodies)
    broky.writer.write_eof()
    return await broky.rest()


async def test_pong_comes_after_the_answers_to_pushes(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        answers = await end_with(broky, *[build_run(key, [b"x"], ref=ref) for ref in range(1, 6)], Ping(9))
        assert answered_refs(answers) == [1, 2, 3, 4, 5]
        assert isinstance(answers[-1], Pong)


async def test_subscription_and_its_history_are_answered(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        answers = await end_with(broky, build_run(key, [b"x"], ref=1), Subscribe(2, key, history=True), Ping(3))
        assert [type(answer) for answer in answers] == [Pushed, Subscribed, Run, Pong]
    async with client(server) as broky:
        answers = await end_with(broky, Subscribe(1, key, history=True))
        assert [type(answer) for answer in answers] == [Subscribed, Run]


async def test_read_of_history_is_answered(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        answers = await end_with(broky, build_run(key, [b"x"], ref=1), History(2, key))
        assert [type(answer) for answer in answers] == [Pushed, Run, HistoryPage]
    async with client(server) as broky:
        assert [type(answer) for answer in await end_with(broky, History(2, key))] == [Run, HistoryPage]


async def test_more_commands_than_a_session_handles_at_once_are_all_answered(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        commands: list[Body] = [Subscribe(1, key + b"%d" % number) for number in range(200)]
        answers = await end_with(broky, *commands, Ping(1))
        assert [type(answer) for answer in answers] == [Subscribed] * 200 + [Pong]


async def test_incomplete_last_frame_is_ignored(server: RunningServer, key: bytes) -> None:
    async with client(server) as broky:
        broky.send(Subscribe(1, key), Ping(1))
        broky.writer.write(encode(Ping(2))[:-1])
        assert [type(answer) for answer in await end_with(broky)] == [Subscribed, Pong]


async def test_deliveries_stop_with_the_answers_and_the_session_ends(server: RunningServer, key: bytes) -> None:
    async with client(server) as busy:
        before = (await metrics(server))["connections"]
        for _ in range(5):
            async with client(server) as broky:
                await broky.subscribe(key)
                busy.send(build_run(key, [b"x"]))
                answers = await end_with(broky, Unsubscribe(1, b"unknown"), Ping(1))
                assert [type(answer) for answer in answers if not isinstance(answer, Run)] == [Pong]
        await metrics_when(server, lambda now: now["connections"] == before)


async def test_deliveries_within_the_credit_and_all_answers_are_sent(server: RunningServer, key: bytes) -> None:
    async with client(server) as producer:
        producer.send(*[build_run(key, [bytes(1000)], ref=ref) for ref in range(1, 101)], Ping(1))
        await producer.until(Pong)
    async with client(server, credit=1) as broky:
        answers = await end_with(broky, Subscribe(1, key, history=True), Credit(50_000), Subscribe(2, key + b"2"), Ping(3))
        kinds = [type(answer) for answer in answers]
        assert kinds[0] is Subscribed
        assert kinds[-2:] == [Subscribed, Pong]
        assert set(kinds[1:-2]) == {Run}
        assert 0 < sum(answer.count for answer in answers if isinstance(answer, Run)) < 100


async def test_history_larger_than_the_kernel_buffers_is_sent_completely(server: RunningServer, key: bytes) -> None:
    """More than the kernel's buffers hold, so that some of it still waits when all commands are handled."""
    messages = 100
    async with client(server) as producer:
        for ref in range(1, messages + 1):
            producer.send(build_run(key, [bytes(60_000)], ref=ref))
            await producer.expect(Pushed)
    async with client(server) as broky:
        broky.send(Subscribe(1, key, history=True), Ping(2))
        broky.writer.write_eof()
        await broky.expect(Subscribed)
        assert len(await broky.messages(messages)) == messages
        await broky.expect(Pong)
        assert await broky.receive() is None
