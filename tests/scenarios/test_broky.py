"""Broky on real sockets: conversations, WebSocket and HTTP clients on the same stream, access, and malformed frames."""

import asyncio
import base64
import random
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ropewalk.core.signatures import BROADCAST_PHRASE, derive
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
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, answered_refs, client, new_key, one_by_one, stranger
from tests.broky_frames import damaged
from tests.cable import cable
from tests.certificates import trusting_context
from tests.clients.credentials import FOREIGN_SECRET, SECRET, signed, token
from tests.metrics import metrics
from tests.scenarios.shared_servers import SHORT_HISTORY, ServerWith
from tests.server import Address, RunningServer, publish, running_server
from tests.services import free_port

PUBLISHING_KEY = derive(SECRET, BROADCAST_PHRASE)


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with(*SHORT_HISTORY)


@pytest.fixture(scope="module")
def any_server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*SHORT_HISTORY, *worker_flags)


@pytest.fixture
async def broky(any_server: RunningServer) -> AsyncIterator[BrokyClient]:
    async with client(any_server) as connection:
        yield connection


# --- conversations ----------------------------------------------------------------------------------------------------


async def test_push_is_answered_with_the_position_of_its_delivery(broky: BrokyClient) -> None:
    stream = new_key()
    begun = await broky.subscribe(stream)
    broky.send(build_run(stream, [b"\x00one", b"two"], ref=7))
    got = {type(body): body for body in [await broky.receive(), await broky.receive()]}
    assert set(got) == {Pushed, Run}
    pushed = got[Pushed]
    assert isinstance(pushed, Pushed)
    assert (pushed.refs, pushed.offsets) == ((7,), (begun.offset + 1,))
    run = got[Run]
    assert isinstance(run, Run)  # what was pushed together is delivered together
    assert (run.key, split_payloads(run), run.offset, run.format) == (
        stream,
        [b"\x00one", b"two"],
        begun.offset + 1,
        Format.BYTES,
    )
    assert pushed.epochs == len(run.epoch).to_bytes() + run.epoch
    assert abs(run.ts_broker / 1e6 - time.time()) < 60


async def test_push_without_a_ref_gets_no_answer_and_a_pong_follows_the_answers_before_it(broky: BrokyClient) -> None:
    stream = new_key()
    broky.send(build_run(stream, [b"silent"]), build_run(stream, [b"x"], ref=1), build_run(stream, [b"y"], ref=2), Ping(9))
    answers, pong = await broky.until(Pong)
    offsets = [offset for body in answers if isinstance(body, Pushed) for offset in body.offsets]
    assert (answered_refs(answers), offsets, pong.ref) == ([1, 2], [2, 3], 9)


async def test_unsubscribe_stops_deliveries(broky: BrokyClient, any_server: RunningServer) -> None:
    stream = new_key()
    await broky.subscribe(stream)
    broky.send(Unsubscribe(2, stream), Ping(1))
    await broky.expect(Pong)
    await publish(any_server, stream.decode(), "1")
    broky.send(Ping(2))
    assert (await broky.expect(Pong)).ref == 2


async def test_subscription_with_a_position_replays_later_messages_and_continues_live(broky: BrokyClient) -> None:
    stream = new_key()
    broky.send(build_run(stream, [b"1", b"2", b"3", b"4"], ref=1))
    epoch = (await broky.expect(Pushed)).epochs[1:]
    subscribed = await broky.subscribe(stream, epoch, 2)
    assert (subscribed.epoch, subscribed.offset) == (epoch, 4)
    assert [(run.payload, run.offset) for run in await broky.messages(2)] == [(b"3", 3), (b"4", 4)]
    broky.send(build_run(stream, [b"5"]))
    live = await broky.expect(Run)
    assert (live.payload, live.offset, live.epoch) == (b"5", 5, epoch)


async def test_subscription_at_a_lost_position_gets_a_gap_and_the_kept_messages(broky: BrokyClient) -> None:
    stream = new_key()
    broky.send(build_run(stream, [b"%d" % number for number in range(1, 9)], ref=1))
    epoch = (await broky.expect(Pushed)).epochs[1:]
    for asked, offset, reason, last, following in (
        (epoch, 1, Reason.TRIMMED, 3, 5),
        (b"other", 0, Reason.EPOCH_CHANGED, 3, 5),
        (epoch, 99, Reason.AHEAD, 8, 0),
    ):
        await broky.subscribe(stream, asked, offset)
        gap = await broky.expect(Gap)
        assert (gap.key, gap.reason, gap.epoch, gap.last) == (stream, reason, epoch, last)
        assert [run.offset for run in await broky.messages(following)] == list(range(4, 9))[:following]
        broky.send(Unsubscribe(1, stream))


async def test_subscription_with_history_replays_all_kept_messages(broky: BrokyClient) -> None:
    stream = new_key()
    broky.send(build_run(stream, [b"1", b"2", b"3"], ref=1))
    await broky.expect(Pushed)
    assert (await broky.subscribe(stream, history=True)).offset == 3
    assert [run.payload for run in await broky.messages(3)] == [b"1", b"2", b"3"]


async def test_subscription_during_pushes_misses_and_repeats_no_message(any_server: RunningServer) -> None:
    stream = new_key()
    async with client(any_server) as producer, client(any_server) as subscriber:
        producer.send(build_run(stream, [b"0"], ref=1))
        epoch = (await producer.expect(Pushed)).epochs[1:]

        async def push() -> None:
            for number in range(1, 300):
                producer.send(build_run(stream, [b"%d" % number], ref=number))
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


async def test_repeated_uid_gets_the_first_position(broky: BrokyClient) -> None:
    stream, uid = new_key(), new_ksuid(time.time())
    broky.send(build_run(stream, [b"once"], ref=1, uid=uid))
    first = await broky.expect(Pushed)
    broky.send(build_run(stream, [b"once"], ref=2, uid=uid))
    again = await broky.expect(Pushed)
    assert (again.refs, again.offsets, again.epochs) == ((2,), first.offsets, first.epochs)


async def test_changed_partition_key_is_refused_and_the_connection_stays(broky: BrokyClient) -> None:
    stream = new_key()
    broky.send(build_run(stream, [b"1"], ref=1, key_partition=b"\xff"))
    await broky.expect(Pushed)
    other = build_run(stream, [b"2"], ref=2, key_partition=b"other")
    broky.send(other, build_run(stream, [b"3"], ref=3))
    answers = {type(body): body for body in (await broky.receive(), await broky.receive())}
    refused = answers[Refused]
    assert isinstance(refused, Refused)
    assert (refused.ref, refused.reason) == (2, Reason.PARTITION_CHANGED)
    pushed = answers[Pushed]
    assert isinstance(pushed, Pushed)
    assert (pushed.refs, pushed.offsets) == ((3,), (2,))


async def test_run_with_invalid_json_is_refused_as_a_whole_with_the_index(broky: BrokyClient) -> None:
    stream = new_key()
    broky.send(build_run(stream, [b"1", b"{", b"3"], ref=5, format=Format.JSON))
    refused = await broky.expect(Refused)
    assert (refused.ref, refused.index, refused.reason) == (5, 1, Reason.MALFORMED)
    broky.send(build_run(stream, [b"1"], ref=6, format=Format.JSON))
    assert (await broky.expect(Pushed)).offsets == (1,)


async def test_run_beyond_the_limits_is_refused(broky: BrokyClient) -> None:
    broky.send(build_run(b"", [b"x"], 1), build_run(b"k" * 600, [b"x"], 2), build_run(b"k", [b""] * 1001, 3))
    refused = await broky.some(Refused, 3)
    assert [(each.ref, each.reason) for each in refused] == [(ref, Reason.MALFORMED) for ref in (1, 2, 3)]


# --- other kinds of clients ---------------------------------------------------------------------------


async def test_broky_websocket_and_http_clients_share_a_stream(any_server: RunningServer) -> None:
    stream = new_key().decode()
    async with client(any_server) as broky, cable(any_server) as browser:
        await browser.subscribe(stream)
        begun = await broky.subscribe(stream.encode())
        broky.send(build_run(stream.encode(), [b"\x00\xff"]))
        assert (await broky.expect(Run)).offset == begun.offset + 1
        first = await browser.expect("message")
        assert first["message"] == {"$bytes": base64.b64encode(b"\x00\xff").decode()}
        texts = [b' {"a": 1.0e3}', b"null", b'{"$bytes":"aGk="}', b'{"$json":null}']
        broky.send(build_run(stream.encode(), texts, format=Format.JSON))
        delivered = await broky.messages(4)
        assert [(run.payload, run.format) for run in delivered] == [(text, Format.JSON) for text in texts]
        shown = [(await browser.expect("message"))["message"] for _ in texts]
        assert shown == [{"a": 1000.0}, {"$json": None}, {"$json": {"$bytes": "aGk="}}, {"$json": {"$json": None}}]
        position = await publish(any_server, stream, '{"from": "http"}')
        run = await broky.expect(Run)
        assert (run.payload, run.format, run.offset) == (b'{"from": "http"}', Format.JSON, position["offset"])
        assert run.epoch.decode() == position["epoch"] == (await browser.expect("message"))["epoch"]
        await publish(any_server, stream, '{"$bytes": "aGk="}')
        run = await broky.expect(Run)
        assert (run.payload, run.format) == (b"hi", Format.BYTES)


async def test_binary_key_has_a_stream_name(any_server: RunningServer) -> None:
    stream = b"\xff\x00" + random.randbytes(6)
    name = "~b64:" + base64.urlsafe_b64encode(stream).rstrip(b"=").decode()
    async with client(any_server) as broky:
        await broky.subscribe(stream)
        await publish(any_server, name, '"by name"')
        run = await broky.expect(Run)
        assert (run.key, run.payload) == (stream, b'"by name"')


# --- access ----------------------------------------------------------------------------------------------------------


async def test_hello_without_a_valid_token_is_unauthorized(guarded: RunningServer) -> None:
    for wrong in ("", "nonsense", token(secret=FOREIGN_SECRET)):
        async with stranger(guarded) as connection:
            connection.send(Hello(token=wrong.encode()))
            error = await connection.ended()
            assert (error.reason, error.reconnect) == (Reason.UNAUTHORIZED, False)


async def test_token_may_subscribe_to_signed_names_only_and_may_not_push(guarded: RunningServer) -> None:
    stream = new_key().decode()
    async with client(guarded, token()) as subscriber, client(guarded, PUBLISHING_KEY) as producer:
        subscriber.send(Subscribe(4, stream.encode()))
        refused = await subscriber.expect(Refused)
        assert (refused.ref, refused.reason) == (4, Reason.FORBIDDEN)
        subscriber.send(build_run(stream.encode(), [b"x"], ref=5))
        refused = await subscriber.expect(Refused)
        assert (refused.ref, refused.reason) == (5, Reason.FORBIDDEN)
        producer.send(build_run(stream.encode(), [b"1", b"2"], ref=6))
        epoch = (await producer.expect(Pushed)).epochs[1:]
        await subscriber.subscribe(signed(stream).encode(), epoch, 1)
        run = await subscriber.expect(Run)
        assert (run.key, run.payload, run.offset) == (stream.encode(), b"2", 2)


async def test_publishing_key_may_not_subscribe(guarded: RunningServer) -> None:
    async with client(guarded, PUBLISHING_KEY) as producer:
        producer.send(Subscribe(4, b"any"), Ping(5))
        assert (await producer.expect(Refused)).reason is Reason.FORBIDDEN
        assert (await producer.expect(Pong)).ref == 5


async def test_unknown_version_is_refused(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.send(Hello(version=2))
        assert (await connection.ended()).reason is Reason.UNKNOWN_VERSION


async def test_push_over_tls_is_registered(tls_server: RunningServer) -> None:
    async with client(tls_server, tls=trusting_context()) as broky:
        broky.send(build_run(new_key(), [b"x"], ref=1))
        assert (await broky.expect(Pushed)).offsets == (1,)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.tier("all"))])
async def test_tcp_port_opens_a_second_listener(workers: str) -> None:
    port = free_port()
    with running_server("--public", "--workers", workers, "--tcp_port", str(port)) as server:
        second = f"tcp://127.0.0.1:{port}"
        assert f"ropewalk listening on {server.url}\nropewalk listening on {second}\n" in server.log()
        assert f'addresses="{server.url} {second}"' in server.log()
        async with client(Address(second)) as here, client(server) as there:
            await there.subscribe(b"k")
            here.send(build_run(b"k", [b"x"]))
            assert (await there.expect(Run)).payload == b"x"


async def test_stopping_server_sends_a_draining_error_to_sessions_and_producers() -> None:
    with running_server("--secret", SECRET) as server:
        async with client(server, token()) as subscriber, client(server, PUBLISHING_KEY) as producer:
            server.process.terminate()
            for connection in (subscriber, producer):
                error = await connection.ended()
                assert (error.reason, error.reconnect) == (Reason.DRAINING, True)


# --- malformed frames -------------------------------------------------------------------------------------------------

MALFORMED = {
    "a frame of another protocol": b"\x10\0\0\0" + bytes(4) + b"BRK2" + bytes(8),
    "a frame that is too short": bytes(4),
    "a head without a body": b"\x08\0\0\0" + bytes(4) + b"BRK1",
    "a run without a message": encode_run(Run(count=0)),
    "a frame that only servers send": encode(Welcome()),
    "a second hello": encode(Hello()),
    "credit that the hello did not ask for": encode(Credit(1)),
    "an epoch that is not ASCII": encode(Subscribe(1, b"k", epoch=b"\xff")),
    "a frame that is too big, refused by its size alone": (5 << 20).to_bytes(4, "little"),
}
REASONS = {"a frame that is too big, refused by its size alone": Reason.TOO_BIG}
TEXTS = {"a second hello": "Hello is only the first frame"}


async def test_bad_frame_ends_the_connection_with_an_error(any_server: RunningServer) -> None:
    failed = []
    for name, data in MALFORMED.items():
        async with client(any_server) as broky:
            broky.writer.write(encode(Ping(3)) + data + encode(Ping(4)))
            *before, error = await broky.rest()
            # The error may overtake the answer to the command before it.
            match error:
                case Error(reason=reason, text=text, reconnect=False) if (
                    [type(body) for body in before] in ([], [Pong])
                    and reason is REASONS.get(name, Reason.MALFORMED)
                    and text == TEXTS.get(name, text) != ""
                ):
                    pass
                case _:
                    failed.append((name, before, error))
    assert not failed


async def test_deliveries_come_before_the_error_and_none_after_it(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as broky:
        await broky.subscribe(stream)
        broky.writer.write(encode_run(build_run(stream, [b"1", b"2"])) + bytes(4))
        assert [run.payload for run in await broky.messages(2)] == [b"1", b"2"]
        assert (await broky.ended()).reason is Reason.MALFORMED
    assert "delivery failed" not in server.log()


async def test_frame_before_the_hello_may_not_be_larger_than_a_hello(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.writer.write((17 << 10).to_bytes(4, "little") + bytes(4) + b"BRK1")
        assert (await connection.ended()).reason is Reason.TOO_BIG


async def test_first_frame_must_be_a_hello(server: RunningServer) -> None:
    async with stranger(server) as connection:
        connection.send(Ping(1))
        assert (await connection.ended()).reason is Reason.NOT_READY


async def test_damaged_frames_do_not_affect_other_clients(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as witness:
        await witness.subscribe(stream)
        for frame in damaged(20261116, 150):
            async with client(server) as hostile:
                hostile.writer.write(frame)
                hostile.writer.write_eof()
                await hostile.rest()
        witness.send(build_run(stream, [b"still here"]))
        assert (await witness.expect(Run)).payload == b"still here"


async def test_same_port_serves_http(server: RunningServer) -> None:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as response:
        assert response.status == 200


@pytest.mark.tier("all")
async def test_subscriber_that_does_not_read_is_closed_and_the_producer_is_not_delayed() -> None:
    with running_server("--public", "--ws_max_pending_size", "100kb", "--history_limit", "1") as server:
        async with client(server) as producer, client(server) as slow:
            await slow.subscribe(b"k")
            slow.pause_reading()
            for number in range(1, 400):
                producer.send(build_run(b"k", [bytes(100_000)], ref=number))
                assert (await producer.expect(Pushed)).refs == (number,)
            assert (await metrics(server))["refusals_total{outbox_full}"] == 1
