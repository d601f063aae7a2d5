"""Broky on real sockets: conversations, clients of several kinds on one stream, and bytes of people who mean no good."""

import asyncio
import base64
import random
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.adapters.apps.jwt import issue
from ropewalk.core.signatures import BROADCAST_PHRASE, derive, sign_stream
from ropewalk.protocol.broky.frames import (
    Credit,
    Error,
    Format,
    Gap,
    Hello,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Subscribe,
    Unsubscribe,
    Welcome,
)
from ropewalk.protocol.broky.ksuid import new_ksuid
from ropewalk.protocol.broky.runs import encode_run, payloads_of, run_of
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, client, one_by_one, stranger
from tests.broky_frames import damaged
from tests.cable import Cable, identifier
from tests.server import Address, RunningServer, publish, running_server
from tests.services import free_port

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"
SECRET = "a secret that is long enough for everybody"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "5") as running:
        yield running


@pytest.fixture(scope="module", params=["one process", "two workers"])
def any_server(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[RunningServer]:
    if request.param == "one process":
        yield server
    else:
        with running_server("--public", "--history_limit", "5", "--workers", "2") as running:
            yield running


@pytest.fixture
async def broky(any_server: RunningServer) -> AsyncIterator[BrokyClient]:
    async with client(any_server) as connection:
        yield connection


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--enforce_jwt") as running:
        yield running


def token() -> str:
    return issue(SECRET, '{"user":1}', int(time.time()) + 600)


def key() -> bytes:
    """Of a stream that nobody else uses."""
    return random.randbytes(12).hex().encode()


# --- conversations ----------------------------------------------------------------------------------------------------


async def test_a_push_is_answered_with_its_position_and_delivered_under_the_same(broky: BrokyClient) -> None:
    stream = key()
    begun = await broky.subscribe(stream)
    broky.send(run_of(stream, [b"\x00one", b"two"], ref=7))
    got = {type(body): body for body in [await broky.receive(), await broky.receive()]}
    assert set(got) == {Pushed, Run}
    pushed = got[Pushed]
    assert isinstance(pushed, Pushed)
    assert (pushed.refs, pushed.offsets) == ((7,), (begun.offset + 1,))
    run = got[Run]
    assert isinstance(run, Run)  # what was pushed together is delivered together
    assert (run.key, payloads_of(run), run.offset, run.format) == (stream, [b"\x00one", b"two"], begun.offset + 1, Format.BYTES)
    assert pushed.epochs == len(run.epoch).to_bytes() + run.epoch
    assert abs(run.ts_broker / 1e6 - time.time()) < 60


async def test_a_push_without_a_ref_is_not_answered_and_a_pong_comes_behind_what_was_pushed(broky: BrokyClient) -> None:
    stream = key()
    broky.send(run_of(stream, [b"silent"]), run_of(stream, [b"x"], ref=1), run_of(stream, [b"y"], ref=2), Ping(9))
    answers = [await broky.receive()]
    while not isinstance(answers[-1], Pong):
        answers.append(await broky.receive())
    refs = [ref for body in answers[:-1] if isinstance(body, Pushed) for ref in body.refs]
    offsets = [offset for body in answers[:-1] if isinstance(body, Pushed) for offset in body.offsets]
    assert (refs, offsets) == ([1, 2], [2, 3])
    assert isinstance(answers[-1], Pong)
    assert answers[-1].ref == 9


async def test_nothing_comes_after_an_unsubscribe(broky: BrokyClient, any_server: RunningServer) -> None:
    stream = key()
    await broky.subscribe(stream)
    broky.send(Unsubscribe(2, stream), Ping(1))
    await broky.expect(Pong)
    await publish(any_server, stream.decode(), "1")
    broky.send(Ping(2))
    assert (await broky.expect(Pong)).ref == 2


async def test_a_subscription_with_a_position_replays_what_came_since_and_goes_on_live(broky: BrokyClient) -> None:
    stream = key()
    broky.send(run_of(stream, [b"1", b"2", b"3", b"4"], ref=1))
    epoch = (await broky.expect(Pushed)).epochs[1:]
    subscribed = await broky.subscribe(stream, epoch, 2)
    assert (subscribed.epoch, subscribed.offset) == (epoch, 4)
    assert [(run.payload, run.offset) for run in await broky.messages(2)] == [(b"3", 3), (b"4", 4)]
    broky.send(run_of(stream, [b"5"]))
    live = await broky.expect(Run)
    assert (live.payload, live.offset, live.epoch) == (b"5", 5, epoch)


@pytest.mark.parametrize(
    ("offset", "other_epoch", "reason", "last", "following"),
    [(1, False, Reason.TRIMMED, 3, 5), (0, True, Reason.EPOCH_CHANGED, 3, 5), (99, False, Reason.AHEAD, 8, 0)],
)
async def test_what_cannot_be_replayed_is_said(
    broky: BrokyClient, offset: int, other_epoch: bool, reason: Reason, last: int, following: int
) -> None:
    stream = key()
    broky.send(run_of(stream, [b"%d" % number for number in range(1, 9)], ref=1))
    epoch = (await broky.expect(Pushed)).epochs[1:]
    await broky.subscribe(stream, b"other" if other_epoch else epoch, offset)
    gap = await broky.expect(Gap)
    assert (gap.key, gap.reason, gap.epoch, gap.last) == (stream, reason, epoch, last)
    assert [run.offset for run in await broky.messages(following)] == list(range(4, 9))[:following]


async def test_a_subscription_may_ask_for_all_that_is_kept(broky: BrokyClient) -> None:
    stream = key()
    broky.send(run_of(stream, [b"1", b"2", b"3"], ref=1))
    await broky.expect(Pushed)
    assert (await broky.subscribe(stream, history=True)).offset == 3
    assert [run.payload for run in await broky.messages(3)] == [b"1", b"2", b"3"]


async def test_a_join_in_the_middle_of_pushes_has_no_hole_and_no_double(any_server: RunningServer) -> None:
    stream = key()
    async with client(any_server) as producer, client(any_server) as subscriber:
        producer.send(run_of(stream, [b"0"], ref=1))
        epoch = (await producer.expect(Pushed)).epochs[1:]

        async def push() -> None:
            for number in range(1, 300):
                producer.send(run_of(stream, [b"%d" % number], ref=number))
                if number % 4 == 0:
                    await asyncio.sleep(0)

        pushing = asyncio.create_task(push())
        await asyncio.sleep(0)
        subscriber.send(Subscribe(1, stream, epoch=epoch, offset=1))
        got: list[int] = []
        gaps: list[Gap] = []
        while not got or got[-1] < 300:
            match await subscriber.receive():
                case Run() as run:
                    got += [each.offset for each in one_by_one(run)]
                case Gap() as gap:
                    gaps.append(gap)
        await pushing
        missing = gaps[0].last if gaps else 1
        assert got == list(range(missing + 1, 301))


async def test_a_uid_registers_a_message_once(broky: BrokyClient) -> None:
    stream, uid = key(), new_ksuid(time.time())
    broky.send(run_of(stream, [b"once"], ref=1, uid=uid))
    first = await broky.expect(Pushed)
    broky.send(run_of(stream, [b"once"], ref=2, uid=uid))
    again = await broky.expect(Pushed)
    assert (again.refs, again.offsets, again.epochs) == ((2,), first.offsets, first.epochs)


async def test_another_partition_key_for_a_stream_is_refused_and_the_connection_lives(broky: BrokyClient) -> None:
    stream = key()
    broky.send(run_of(stream, [b"1"], ref=1, key_partition=b"\xff"))
    await broky.expect(Pushed)
    other = run_of(stream, [b"2"], ref=2, key_partition=b"other")
    broky.send(other, run_of(stream, [b"3"], ref=3))
    answers = {type(body): body for body in (await broky.receive(), await broky.receive())}
    refused = answers[Refused]
    assert isinstance(refused, Refused)
    assert (refused.ref, refused.reason) == (2, Reason.PARTITION_CHANGED)
    pushed = answers[Pushed]
    assert isinstance(pushed, Pushed)
    assert (pushed.refs, pushed.offsets) == ((3,), (2,))


async def test_json_that_is_none_is_refused_by_its_place_and_nothing_of_the_run_is_registered(broky: BrokyClient) -> None:
    stream = key()
    broky.send(run_of(stream, [b"1", b"{", b"3"], ref=5, format=Format.JSON))
    refused = await broky.expect(Refused)
    assert (refused.ref, refused.index, refused.reason) == (5, 1, Reason.MALFORMED)
    broky.send(run_of(stream, [b"1"], ref=6, format=Format.JSON))
    assert (await broky.expect(Pushed)).offsets == (1,)


@pytest.mark.parametrize("wrong", [run_of(b"", [b"x"], 1), run_of(b"k" * 600, [b"x"], 1), run_of(b"k", [b""] * 1001, 1)])
async def test_a_run_beyond_the_limits_is_refused(broky: BrokyClient, wrong: Run) -> None:
    broky.send(wrong)
    assert (await broky.expect(Refused)).reason is Reason.MALFORMED


# --- clients of several kinds on one stream ---------------------------------------------------------------------------


async def test_what_is_pushed_reaches_web_socket_clients_and_what_they_publish_comes_here(any_server: RunningServer) -> None:
    stream = key().decode()
    async with client(any_server) as broky:
        cable = await Cable.connect(any_server.cable)
        try:
            await cable.expect("welcome")
            await cable.send(command="subscribe", identifier=identifier(stream))
            await cable.expect("confirm_subscription")
            begun = await broky.subscribe(stream.encode())
            broky.send(run_of(stream.encode(), [b"\x00\xff"]))
            assert (await broky.expect(Run)).offset == begun.offset + 1
            first = await cable.expect("message")
            assert first["message"] == {"$bytes": base64.b64encode(b"\x00\xff").decode()}
            texts = [b' {"a": 1.0e3}', b"null", b'{"$bytes":"aGk="}', b'{"$json":null}']
            broky.send(run_of(stream.encode(), texts, format=Format.JSON))
            delivered = await broky.messages(4)
            assert [(run.payload, run.format) for run in delivered] == [(text, Format.JSON) for text in texts]
            shown = [(await cable.expect("message"))["message"] for _ in texts]
            assert shown == [{"a": 1000.0}, {"$json": None}, {"$json": {"$bytes": "aGk="}}, {"$json": {"$json": None}}]
            position = await publish(any_server, stream, '{"from": "http"}')
            run = await broky.expect(Run)
            assert (run.payload, run.format, run.offset) == (b'{"from": "http"}', Format.JSON, position["offset"])
            assert run.epoch.decode() == position["epoch"] == (await cable.expect("message"))["epoch"]
            await publish(any_server, stream, '{"$bytes": "aGk="}')
            run = await broky.expect(Run)
            assert (run.payload, run.format) == (b"hi", Format.BYTES)
        finally:
            await cable.close()


async def test_a_key_that_is_no_text_is_a_stream_like_any_other(any_server: RunningServer) -> None:
    stream = b"\xff\x00" + random.randbytes(6)
    name = "~b64:" + base64.urlsafe_b64encode(stream).rstrip(b"=").decode()
    async with client(any_server) as broky:
        await broky.subscribe(stream)
        await publish(any_server, name, '"by name"')
        run = await broky.expect(Run)
        assert (run.key, run.payload) == (stream, b'"by name"')


# --- who may ----------------------------------------------------------------------------------------------------------


async def test_without_a_token_nobody_is_let_in(guarded: RunningServer) -> None:
    for wrong in ("", "nonsense", issue("another secret, which is also long", "{}")):
        async with stranger(guarded) as connection:
            connection.send(Hello(token=wrong.encode()))
            error = await connection.ended()
            assert (error.reason, error.reconnect) == (Reason.UNAUTHORIZED, False)


async def test_a_token_subscribes_to_signed_names_only_and_does_not_push(guarded: RunningServer) -> None:
    stream = key().decode()
    async with client(guarded, token()) as subscriber, client(guarded, derive(SECRET, BROADCAST_PHRASE)) as producer:
        subscriber.send(Subscribe(4, stream.encode()))
        refused = await subscriber.expect(Refused)
        assert (refused.ref, refused.reason) == (4, Reason.FORBIDDEN)
        subscriber.send(run_of(stream.encode(), [b"x"], ref=5))
        refused = await subscriber.expect(Refused)
        assert (refused.ref, refused.reason) == (5, Reason.FORBIDDEN)
        producer.send(run_of(stream.encode(), [b"1", b"2"], ref=6))
        epoch = (await producer.expect(Pushed)).epochs[1:]
        await subscriber.subscribe(sign_stream(stream, SECRET).encode(), epoch, 1)
        run = await subscriber.expect(Run)
        assert (run.key, run.payload, run.offset) == (stream.encode(), b"2", 2)


async def test_a_publishing_key_is_for_pushes_only(guarded: RunningServer) -> None:
    async with client(guarded, derive(SECRET, BROADCAST_PHRASE)) as producer:
        producer.send(Subscribe(4, b"any"), Ping(5))
        assert (await producer.expect(Refused)).reason is Reason.FORBIDDEN
        assert (await producer.expect(Pong)).ref == 5


async def test_another_version_is_refused(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.send(Hello(version=2))
        assert (await connection.ended()).reason is Reason.UNKNOWN_VERSION


async def test_it_is_spoken_over_tls() -> None:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    trust.check_hostname = False
    with running_server("--public", "--ssl_cert", str(CERTIFICATE), "--ssl_key", str(KEY)) as server:
        async with client(server, tls=trust) as broky:
            broky.send(run_of(b"k", [b"x"], ref=1))
            assert (await broky.expect(Pushed)).offsets == (1,)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_second_port_may_be_opened(workers: str) -> None:
    port = free_port()
    with running_server("--public", "--workers", workers, "--tcp_port", str(port)) as server:
        second = f"tcp://127.0.0.1:{port}"
        assert f"ropewalk listening on {server.url}\nropewalk listening on {second}\n" in server.log()
        assert f'addresses="{server.url} {second}"' in server.log()
        async with client(Address(second)) as here, client(server) as there:
            await there.subscribe(b"k")
            here.send(run_of(b"k", [b"x"]))
            assert (await there.expect(Run)).payload == b"x"


async def test_there_are_no_more_clients_than_the_settings_allow() -> None:
    with running_server("--public", "--max_conn", "1") as server:
        async with client(server), stranger(server) as second:
            second.send(Hello())
            error = await second.expect(Error)
            assert (error.reason, error.reconnect) == (Reason.OVERFLOW, True)


async def test_a_server_that_ends_says_so_to_sessions_and_to_producers() -> None:
    with running_server("--secret", SECRET) as server:
        async with client(server, token()) as subscriber, client(server, derive(SECRET, BROADCAST_PHRASE)) as producer:
            server.process.terminate()
            for connection in (subscriber, producer):
                error = await connection.ended()
                assert (error.reason, error.reconnect) == (Reason.DRAINING, True)


# --- bytes that are no conversation -----------------------------------------------------------------------------------

MALFORMED = {
    "a frame of another protocol": b"\x10\0\0\0" + bytes(4) + b"BRK2" + bytes(8),
    "a frame that is too short": bytes(4),
    "nothing but a head": b"\x08\0\0\0" + bytes(4) + b"BRK1",
    "a run without a message": encode_run(Run(count=0)),
    "what only a server says": encode(Welcome()),
    "a second hello": encode(Hello()),
    "credit that the hello did not ask for": encode(Credit(1)),
    "an epoch that is none": encode(Subscribe(1, b"k", epoch=b"\xff")),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_bad_frame_ends_the_connection_with_an_error(broky: BrokyClient, data: bytes) -> None:
    broky.writer.write(encode(Ping(3)) + data + encode(Ping(4)))
    answers = [await broky.receive()]
    if isinstance(answers[0], Pong):  # a session handles its commands in order, but the end of it may come before
        answers[0] = await broky.receive()
    assert isinstance(answers[0], Error)
    assert (answers[0].reason, answers[0].reconnect) == (Reason.MALFORMED, False)
    assert answers[0].text
    assert await broky.receive() is None


async def test_what_was_delivered_comes_before_the_error_and_nothing_after_it(server: RunningServer) -> None:
    async with client(server) as broky:
        await broky.subscribe(b"last words")
        broky.writer.write(encode_run(run_of(b"last words", [b"1", b"2"])) + bytes(4))
        assert [run.payload for run in await broky.messages(2)] == [b"1", b"2"]
        assert (await broky.ended()).reason is Reason.MALFORMED
    assert "delivery failed" not in server.log()


async def test_a_frame_that_is_too_big_is_refused_by_its_size_alone(broky: BrokyClient) -> None:
    broky.writer.write((5 << 20).to_bytes(4, "little"))
    error = await broky.ended()
    assert (error.reason, error.reconnect) == (Reason.TOO_BIG, False)


async def test_strangers_have_room_for_a_hello_only(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.writer.write((17 << 10).to_bytes(4, "little") + bytes(4) + b"BRK1")
        assert (await connection.ended()).reason is Reason.TOO_BIG


async def test_a_second_hello_is_told_that_it_is_the_second(broky: BrokyClient) -> None:
    broky.send(Hello())
    assert (await broky.ended()).text == "Hello is only the first frame"


async def test_the_first_frame_is_a_hello(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.send(Ping(1))
        assert (await connection.ended()).reason is Reason.NOT_READY


async def test_a_hello_that_does_not_come_is_not_waited_for_for_ever(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.writer.write(encode(Hello())[:12])
        assert (await connection.ended()).reason is Reason.NOT_READY


async def test_damaged_frames_cost_their_sender_the_connection_and_nobody_else_anything(server: RunningServer) -> None:
    async with client(server) as witness:
        await witness.subscribe(b"witnessed")
        for frame in damaged(20261116, 150):
            async with client(server) as hostile:
                hostile.writer.write(frame)
                hostile.writer.write_eof()
                while await hostile.receive() is not None:
                    pass
        witness.send(run_of(b"witnessed", [b"still here"]))
        assert (await witness.expect(Run)).payload == b"still here"


async def test_the_port_still_speaks_http(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as response:
        assert response.status == 200


async def test_a_subscriber_that_does_not_read_is_ended_and_its_producer_is_not_held_up() -> None:
    with running_server("--public", "--ws_max_pending_size", "100kb", "--history_limit", "1") as server:
        async with client(server) as producer, client(server) as slow:
            await slow.subscribe(b"k")
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]  # the stream reader's own transport
            for number in range(1, 400):
                producer.send(run_of(b"k", [bytes(100_000)], ref=number))
                assert (await producer.expect(Pushed)).refs == (number,)
            async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
                text = await response.text()
    assert 'ropewalk_refusals_total{reason="outbox_full"} 1.0' in text
