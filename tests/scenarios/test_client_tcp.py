"""The Python client over Broky, beyond what both clients share: pushes, binary keys, TLS, and errors of the program."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ropewalk.client import (
    AlreadySubscribed,
    Backoff,
    BrokyMessage,
    Client,
    Draft,
    Ended,
    Format,
    Gap,
    KeyRefused,
    Message,
    NotSupported,
    Position,
    PublicationRefused,
    PublishUnavailable,
    Pusher,
    SubscriptionRejected,
    TlsFailed,
    Unreachable,
    connect,
    new_uid,
    session,
)
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.broky.ksuid import ksuid_text, new_ksuid
from tests.broky_client import new_key
from tests.certificates import CERTIFICATE
from tests.clients.credentials import signed, token
from tests.scenarios.python_clients import (
    API_KEY,
    CABLE,
    PATIENT,
    QUICK,
    SECONDS,
    TCP,
    pusher_to,
    take,
    take_broky,
    take_event,
    take_offsets,
)
from tests.scenarios.relay import Relay, relay_to
from tests.scenarios.shared_servers import LONG_HISTORY, ServerWith
from tests.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with(*LONG_HISTORY)


@pytest.fixture(scope="module")
def any_server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*LONG_HISTORY, *worker_flags)


@pytest.fixture
async def client(any_server: RunningServer) -> AsyncIterator[Client]:
    async with TCP.client(any_server) as client:
        yield client


@pytest.fixture
def name() -> str:
    return new_key().decode()


# --- subscriptions and pushes --------------------------------------------------------------------------------------------


async def test_pushed_message_comes_with_the_position_of_the_answer(client: Client, name: str) -> None:
    stream = await client.subscribe(name)
    first = await client.push(name, [b"\xff", b""])
    second = await client.push(name.encode(), b'{"a": 1}', format=Format.JSON)
    messages = [await take_broky(stream) for _ in range(3)]
    assert [message.data for message in messages] == [b"\xff", b"", {"a": 1}]
    assert [message.position for message in messages] == [first, Position(first.epoch, first.offset + 1), second]
    assert messages[2].payload == b'{"a": 1}'
    assert {message.key for message in messages} == {name.encode()}
    assert abs(messages[0].ts_broker / 1e6 - time.time()) < 60


async def test_events_are_returned_in_batches(client: Client, name: str) -> None:
    stream = await client.subscribe(name)
    for first in range(0, 1000, 100):
        await client.send(name, [b"%d" % number for number in range(first, first + 100)])
    await client.flush()
    got: list[bytes] = []
    async with asyncio.timeout(SECONDS):
        async for batch in stream.batches():
            got += [event.payload for event in batch if isinstance(event, BrokyMessage)]
            if len(got) == 1000:
                break
    assert got == [b"%d" % number for number in range(1000)]


async def test_stream_can_be_subscribed_again_after_an_unsubscribe(client: Client, name: str) -> None:
    for number in range(20):
        stream = await client.subscribe(name)
        pushed = await client.push(name, b"%d" % number)
        assert (await take_broky(stream)).position == pushed
        await stream.unsubscribe()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_cancelled_subscription_does_not_affect_the_next(client: Client, name: str) -> None:
    for number in range(20):
        given_up = asyncio.create_task(client.subscribe(name))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        stream = await client.subscribe(name)
        await client.push(name, b"%d" % number)
        assert (await take_broky(stream)).payload == b"%d" % number
        await stream.unsubscribe()


async def test_unsupported_method_names_the_address_that_supports_it(server: RunningServer, client: Client, name: str) -> None:
    stream = await client.subscribe(name)
    for verb in (
        stream.join("ann"),
        stream.leave(),
        stream.presence(),
        stream.whisper(1),
        stream.perform("speak"),
        client.subscribe_channel("ChatChannel"),
        client.subscribe(name + "/presence", presence_events=True),
    ):
        with pytest.raises(NotSupported, match="ws://"):
            await verb
    for publication in (
        client.publish("a", 1, transient=True),
        client.publish_batch([Draft("a", 1), Draft("b", 1)]),
        client.publish_batch([]),
    ):
        with pytest.raises(NotSupported, match="http://"):
            await publication
    async with CABLE.client(server) as other:
        for push in (other.push("a", b"x"), other.send("a", b"x"), other.flush()):
            with pytest.raises(NotSupported, match="tcp://"):
                await push


async def test_invalid_arguments_raise_before_anything_is_sent(client: Client, name: str) -> None:
    for mistake in (client.subscribe("~b64:!"), client.subscribe_signed("no signed name")):
        with pytest.raises(UserMistake):
            await mistake
    with pytest.raises(ValueError, match="at least one"):
        await client.push("a", [])
    for wrong in (client.push("a", b"x", uids=[b"short"]), client.send("a", b"x", uids=[b"short"])):
        with pytest.raises(UserMistake, match="uids"):
            await wrong
    wrong_payloads = {
        "a text": "text",
        "dict": {"a": 1},
        "a list of str": ["text"],
        "a list of tuple": [(b"x", b"y")],
        "int": 5,
    }
    for given, payloads in wrong_payloads.items():
        with pytest.raises(TypeError, match=f"payloads must be bytes or a sequence of bytes, not {given};"):
            await client.push("a", payloads)  # type: ignore[arg-type]
    with pytest.raises(UserMistake, match="new_uid"):
        await client.publish("a", 1, uid="order-7")
    with pytest.raises(PublicationRefused, match="at most"):
        await client.push("a", bytes(5 << 20))
    assert (await client.push(name, b"x")).offset == 1


async def test_repeated_uid_gets_the_first_position(client: Client, name: str) -> None:
    uid = new_ksuid(time.time())
    first = await client.push(name, b"x", uids=[uid])
    assert await client.push(name, b"x", uids=[uid]) == first
    assert (await client.publish(name, 1, uid=ksuid_text(uid))).offset == first.offset
    assert await client.push(name, b"x", uids=[ksuid_text(uid)]) == first
    own = new_uid()
    assert (await client.publish(name, 1, uid=own)).offset == (await client.publish(name, 1, uid=own)).offset
    assert (await client.push(name, (b"x", b"y"))).offset == first.offset + 2


async def test_clients_over_broky_websocket_and_http_share_a_stream(
    any_server: RunningServer, client: Client, name: str
) -> None:
    async with CABLE.client(any_server) as other:
        here, there = await client.subscribe(name), await other.subscribe(name)
        pushed = await client.push(name, b"bytes")
        assert (await take_broky(here)).position == pushed
        assert await take_event(there) == Message({"$bytes": "Ynl0ZXM="}, name, pushed.epoch, pushed.offset)
        receipt = await other.publish(name, {"text": "hi"})
        published = await take_broky(here)
        assert (published.data, published.epoch, published.offset) == ({"text": "hi"}, receipt.epoch, receipt.offset)
        receipts = await client.publish_batch([Draft(name, {"n": n}) for n in range(2)])
        assert [(await take_broky(here)).data for _ in receipts] == [{"n": 0}, {"n": 1}]
        await take_event(there)
        assert [await take_event(there), await take_event(there)] == [
            Message({"n": n}, name, receipt.epoch, receipt.offset) for n, receipt in enumerate(receipts)
        ]
        await other.publish(name, {"$bytes": "aGk="})
        message = await take_broky(here)
        assert (message.data, message.format) == (b"hi", Format.BYTES)


async def test_binary_key_has_a_stream_name(any_server: RunningServer, client: Client) -> None:
    key = b"\xff\x00"
    async with CABLE.client(any_server) as other:
        here, there = await client.subscribe(key), await other.subscribe(key)
        await client.push(key, b"x")
        message = await take_broky(here)
        assert (message.key, message.stream) == (key, "~b64:_wA")
        assert await take_event(there) == Message({"$bytes": "eA=="}, "~b64:_wA", message.epoch, message.offset)


async def test_history_since_a_moment_has_only_later_messages(client: Client, name: str) -> None:
    stream = await client.subscribe(name)
    await client.push(name, b"0")
    before = after = await take_broky(stream)
    while after.ts_broker < before.ts_broker + 2:  # the first message of a later moment, past the rounding of microseconds
        before = after
        await client.push(name, b"%d" % before.offset)
        after = await take_broky(stream)
    await stream.unsubscribe()
    message = await take_broky(await client.subscribe(name, since=after.ts_broker / 1e6))
    assert (message.offset, message.payload, message.replayed) == (after.offset, after.payload, True)


async def test_offset_without_an_epoch_is_the_same_gap_over_both_protocols(
    any_server: RunningServer, client: Client, name: str
) -> None:
    await client.push(name, [b"1", b"2"])
    async with CABLE.client(any_server) as other:
        gaps = []
        for one in (client, other):
            stream = await one.subscribe(name, position=Position("", 9998))
            gaps.append(await take_event(stream))
            assert (await take(stream)).offset == 1
    assert gaps[0] == gaps[1]
    assert isinstance(gaps[0], Gap)
    assert gaps[0].reason == "epoch_changed"


async def test_pushes_after_the_client_closed_raise_ended(server: RunningServer, name: str) -> None:
    async with TCP.client(server) as client:
        pass
    for late in (client.push(name, b"x"), client.send(name, b"x")):
        with pytest.raises(Ended):
            await late


# --- lost connections -------------------------------------------------------------------------------------------------


async def test_pending_pushes_survive_lost_connections_once_and_in_order(any_server: RunningServer, name: str) -> None:
    async with (
        relay_to(any_server.port) as relay,
        TCP.client(any_server) as witness,
        TCP.client(relay) as client,
    ):
        stream = await witness.subscribe(name)
        here = await client.subscribe(name)
        pushes = [asyncio.create_task(client.push(name, b"%d" % number)) for number in range(300)]
        for answered in (1, 60, 120, 180):
            await asyncio.wait_for(pushes[answered], SECONDS)
            relay.break_links()
        positions = await asyncio.wait_for(asyncio.gather(*pushes), SECONDS)
        assert [position.offset for position in positions] == list(range(1, 301))
        for reader in (stream, here):
            messages = [await take_broky(reader) for _ in range(300)]
            assert [message.payload for message in messages] == [b"%d" % number for number in range(300)]
            assert [message.offset for message in messages] == list(range(1, 301))


async def test_push_whose_answer_is_lost_is_registered_once(relay: Relay, name: str) -> None:
    relay.answers_lost = 1
    async with pusher_to(relay) as pusher:
        assert (await pusher.push(name, b"1")).offset == 1
        assert (await pusher.push(name, b"2")).offset == 2


@pytest.mark.tier("all")
async def test_pings_keep_a_quiet_link(relay: Relay, name: str) -> None:
    """One that was given up after two intervals could not carry so many answers."""
    async with TCP.client(relay, ping_interval=1) as client:
        stream = await client.subscribe(name)
        await relay.wait(lambda: relay.answers >= 7)
        await client.push(name, b"1")
        assert (await take(stream)).offset == 1


@pytest.mark.parametrize(
    ("end", "workers"),
    [
        ("killed", "1"),
        pytest.param("stopped", "1", marks=pytest.mark.tier("all")),
        pytest.param("killed", "2", marks=pytest.mark.tier("all")),
        pytest.param("stopped", "2", marks=pytest.mark.tier("all")),
    ],
)
async def test_restart_with_a_journal_loses_no_push_and_no_message(tmp_path: Path, end: str, workers: str) -> None:
    flags = ("--public", "--workers", workers, "--data_dir", str(tmp_path), "--durability", "journal")
    with running_server(*flags) as first_life:
        url, port = TCP.url(first_life), str(first_life.port)
        async with Pusher(url, attempts=1000, backoff=Backoff(0.05, 0.2)) as pusher, TCP.client(first_life) as client:
            stream = await client.subscribe("durable")
            pushes = [asyncio.create_task(pusher.push("durable", b"%d" % number)) for number in range(100)]
            await asyncio.wait_for(pushes[20], SECONDS)
            if end == "killed":
                first_life.kill()
            else:
                assert first_life.stop() == 0
            with running_server(*flags, "--port", port):
                positions = await asyncio.wait_for(asyncio.gather(*pushes), SECONDS)
                assert len({position.epoch for position in positions}) == 1
                messages = [await take_broky(stream) for _ in range(100)]
                assert [message.offset for message in messages] == list(range(1, 101))
                assert sorted(int(message.payload) for message in messages) == list(range(100))
                assert [messages[position.offset - 1].payload for position in positions] == [b"%d" % n for n in range(100)]


# --- producers --------------------------------------------------------------------------------------------------------


async def test_producer_without_answers_gets_backpressure_from_the_network(relay: Relay, name: str) -> None:
    async with pusher_to(relay) as pusher:
        await pusher.push(name, b"first")
        relay.freeze()
        sent = 0

        async def produce() -> None:
            nonlocal sent
            for _ in range(40):
                await pusher.send(name, [bytes(100_000)] * 5)
                sent += 1

        producing = asyncio.create_task(produce())
        while True:  # until the kernel's buffers are full
            before = sent
            await asyncio.sleep(0.5)
            if 0 < sent == before:
                break
        assert not producing.done()
        relay.thaw()
        await asyncio.wait_for(producing, SECONDS)
        await pusher.flush()
        assert (await pusher.push(name, b"last")).offset == 202


async def test_messages_sent_without_an_answer_are_registered_before_the_client_closes(
    server: RunningServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FLUSH_SECONDS", SECONDS)
    async with pusher_to(server) as pusher:
        for number in range(500):
            await pusher.send(name, b"%d" % number)
    async with TCP.client(server) as client:
        stream = await client.subscribe(name, position=Position("", 0))
        assert await take_offsets(stream, 500) == list(range(1, 501))


# --- access -----------------------------------------------------------------------------------------------------------


async def test_signed_stream_is_followed_and_pushed_to_with_the_key(guarded: RunningServer, name: str) -> None:
    async with TCP.client(guarded, token(), key=API_KEY) as client:
        first = await client.push(name, [b"1", b"2"])
        stream = await client.subscribe_signed(signed(name), position=first)
        message = await take_broky(stream)
        assert (message.stream, message.payload) == (name, b"2")
        await client.send(name, b"3")
        await client.flush()
        assert (await take_broky(stream)).payload == b"3"
    async with TCP.client(guarded, token()) as client:
        with pytest.raises(KeyRefused):
            await client.push(name, b"x")


async def test_stream_is_already_subscribed_under_its_signed_name(guarded: RunningServer, name: str) -> None:
    """A delivery contains the name of the stream only, so it could belong to either subscription."""
    async with TCP.client(guarded, token(), key=API_KEY) as client:
        stream = await client.subscribe_signed(signed(name))
        with pytest.raises(AlreadySubscribed):
            await client.subscribe(name)
        await client.push(name, b"1")
        assert (await take_broky(stream)).payload == b"1"
        await stream.unsubscribe()
        with pytest.raises(SubscriptionRejected):
            await client.subscribe(name)


# --- TLS and other servers --------------------------------------------------------------------------------------------


def test_client_over_tls_closes_its_connection_before_the_event_loop_ends(tls_server: RunningServer, name: str) -> None:
    async def push() -> None:
        async with connect(f"tls://127.0.0.1:{tls_server.port}", ca_file=CERTIFICATE, **PATIENT) as client:
            await client.push(name, b"1")

    asyncio.run(push())
    gc.collect()  # a connection that was left open is a warning


async def test_client_over_tls_resumes_and_needs_a_trusted_certificate(tls_server: RunningServer, name: str) -> None:
    url = f"tls://127.0.0.1:{tls_server.port}"
    async with connect(url, ca_file=CERTIFICATE, backoff=QUICK, **PATIENT) as client:
        stream = await client.subscribe(name)
        await client.push(name, [b"1", b"2"])
        client.cut()
        await client.push(name, b"3")
        assert await take_offsets(stream, 3) == [1, 2, 3]
    with pytest.raises(Unreachable, match="not trusted"):
        async with connect(url):
            pass
    with pytest.raises(Unreachable, match=f"if TLS is spoken there, write tls://127.0.0.1:{tls_server.port}"):
        async with connect(f"tcp://127.0.0.1:{tls_server.port}", connect_timeout=2):
            pass


async def test_failed_tls_handshake_names_the_other_scheme() -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    asked = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read(1)
        writer.write(answer)
        writer.close()

    other = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with other:
        place = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
        async with Pusher(f"tls://{place}", attempts=3, backoff=QUICK) as pusher:
            with pytest.raises(TlsFailed, match=f"if no TLS is spoken there, write tcp://{place}"):
                await pusher.push("a", b"x")
            assert asked == 1  # another attempt would be no better
            answer = b""
            with pytest.raises(PublishUnavailable, match=f"before TLS began; if no TLS is spoken there, write tcp://{place}"):
                await pusher.push("a", b"x")
            assert asked == 4


async def test_tls_to_a_server_without_it_names_the_other_scheme(server: RunningServer) -> None:
    async with Pusher(f"tls://127.0.0.1:{server.port}", attempts=3, backoff=QUICK) as pusher:
        with pytest.raises(TlsFailed, match="if no TLS is spoken there, write tcp://"):
            await pusher.push("a", b"x")


async def test_server_of_another_protocol_is_unreachable() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail.example.com ESMTP\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with other:
        with pytest.raises(Unreachable, match="malformed message"):
            async with connect(f"tcp://127.0.0.1:{other.sockets[0].getsockname()[1]}"):
                pass


async def test_pusher_to_a_server_that_does_not_listen_is_unavailable(name: str) -> None:
    async with Pusher("tcp://127.0.0.1:1", attempts=2, backoff=QUICK) as pusher:
        with pytest.raises(PublishUnavailable, match="gave no answer"):
            await pusher.send(name, b"x")
