"""The Python client over TCP against the real server, over a network that breaks."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.adapters.apps.jwt import issue
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
    NoAnswer,
    NotSupported,
    Position,
    PublicationRefused,
    Publisher,
    PublishUnavailable,
    Pusher,
    Stream,
    SubscriptionRejected,
    TlsFailed,
    TokenExpired,
    Unauthorized,
    Unreachable,
    connect,
    new_uid,
)
from ropewalk.core.signatures import API_PHRASE, derive, sign_stream
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.broky.ksuid import ksuid_text, new_ksuid
from tests.clients.credentials import SHORT_LIFE
from tests.metrics import metrics
from tests.scenarios.relay import Relay, relay_to
from tests.server import Address, RunningServer, running_server

SECONDS = 20
SECRET = "qwerty"
QUICK = Backoff(first=0.02, cap=0.2)
FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")


def tcp(address: Address | Relay) -> str:
    return address.url.replace("http", "tcp")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "1000") as server:
        yield server


@pytest.fixture(scope="module", params=["one process", "two workers"])
def any_server(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[RunningServer]:
    if request.param == "one process":
        yield server
    else:
        with running_server("--public", "--history_limit", "1000", "--workers", "2") as running:
            yield running


@pytest.fixture
async def client(any_server: RunningServer) -> AsyncIterator[Client]:
    async with connect(tcp(any_server), backoff=QUICK) as client:
        yield client


@pytest.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    async with relay_to(server.port) as relay:
        yield relay


@pytest.fixture
async def pusher(server: RunningServer) -> AsyncIterator[Pusher]:
    async with Pusher(tcp(server)) as pusher:
        yield pusher


async def take(stream: Stream) -> BrokyMessage:
    event = await asyncio.wait_for(anext(stream), SECONDS)
    assert isinstance(event, BrokyMessage), event
    return event


async def take_offsets(stream: Stream, count: int) -> list[int]:
    return [(await take(stream)).offset for _ in range(count)]


# --- following and pushing --------------------------------------------------------------------------------------------


async def test_what_is_pushed_comes_with_the_position_that_was_answered(client: Client) -> None:
    stream = await client.subscribe("tcp/one")
    first = await client.push("tcp/one", [b"\xff", b""])
    second = await client.push(b"tcp/one", b'{"a": 1}', format=Format.JSON)
    messages = [await take(stream) for _ in range(3)]
    assert [message.data for message in messages] == [b"\xff", b"", {"a": 1}]
    assert [message.position for message in messages] == [first, Position(first.epoch, first.offset + 1), second]
    assert messages[2].payload == b'{"a": 1}'
    assert {message.key for message in messages} == {b"tcp/one"}
    assert abs(messages[0].ts_broker / 1e6 - time.time()) < 60


async def test_clients_over_tcp_and_over_web_socket_share_a_stream(any_server: RunningServer, client: Client) -> None:
    async with connect(any_server.url) as other:
        here, there = await client.subscribe("tcp/mixed"), await other.subscribe("tcp/mixed")
        pushed = await client.push("tcp/mixed", b"bytes")
        assert (await take(here)).position == pushed
        shown = await asyncio.wait_for(anext(there), SECONDS)
        assert shown == Message({"$bytes": "Ynl0ZXM="}, "tcp/mixed", pushed.epoch, pushed.offset)
        receipt = await other.publish("tcp/mixed", {"text": "hi"})
        published = await take(here)
        assert (published.data, published.epoch, published.offset) == ({"text": "hi"}, receipt.epoch, receipt.offset)
        receipts = await client.publish_batch([Draft("tcp/mixed", {"n": n}) for n in range(2)])
        assert [(await take(here)).data for _ in receipts] == [{"n": 0}, {"n": 1}]
        await anext(there)
        assert [await anext(there), await anext(there)] == [
            Message({"n": n}, "tcp/mixed", receipt.epoch, receipt.offset) for n, receipt in enumerate(receipts)
        ]


@pytest.mark.parametrize("scheme", ["http", "tcp"])
async def test_none_is_no_token_no_key_and_no_file(scheme: str, server: RunningServer) -> None:
    async with connect(server.url.replace("http", scheme), None, key=None, ca_file=None) as client:
        assert (await client.publish("tcp/none", 1)).epoch
    async with Pusher(tcp(server), None, ca_file=None) as pusher, Publisher(server.url, None, ca_file=None) as publisher:
        first = await pusher.push("tcp/none", b"1")
        assert (await publisher.publish("tcp/none", 1)).offset == first.offset + 1


@pytest.mark.parametrize("scheme", ["http", "tcp"])
async def test_a_publication_to_a_name_that_no_stream_has_is_refused(scheme: str, server: RunningServer) -> None:
    async with connect(server.url.replace("http", scheme)) as client:
        with pytest.raises(PublicationRefused):
            await client.publish("~b64:!!", 1)


@pytest.mark.parametrize("scheme", ["http", "tcp"])
async def test_what_can_name_no_stream_is_a_mistake(scheme: str, server: RunningServer) -> None:
    wrong: Any = 5
    async with connect(server.url.replace("http", scheme)) as client:
        for subscribe in (client.subscribe, client.subscribe_signed):
            with pytest.raises(UserMistake, match="5"):
                await subscribe(wrong)


async def test_a_key_may_be_bytes_that_are_no_text(any_server: RunningServer, client: Client) -> None:
    async with connect(any_server.url) as other:
        here, there = await client.subscribe(b"\xff\x00"), await other.subscribe(b"\xff\x00")
        await client.push(b"\xff\x00", b"x")
        message = await take(here)
        assert (message.key, message.stream) == (b"\xff\x00", "~b64:_wA")
        assert (await asyncio.wait_for(anext(there), SECONDS)) == Message(
            {"$bytes": "eA=="}, "~b64:_wA", message.epoch, message.offset
        )


async def test_history_is_asked_for_by_position_and_by_time(client: Client) -> None:
    first = await client.push("tcp/past", [b"1", b"2"])
    await asyncio.sleep(0.05)
    moment = time.time()
    await client.push("tcp/past", b"3")
    for wish, payloads in (
        ({"position": first}, [b"2", b"3"]),
        ({"position": Position("", 0)}, [b"1", b"2", b"3"]),
        ({"since": moment}, [b"3"]),
    ):
        stream = await client.subscribe("tcp/past", **wish)
        messages = [await take(stream) for _ in payloads]
        assert [(message.payload, message.replayed) for message in messages] == [(payload, True) for payload in payloads]
        await stream.unsubscribe()


async def test_an_offset_without_an_epoch_is_a_gap_as_over_web_socket(any_server: RunningServer, client: Client) -> None:
    name = f"offset/{any_server.port}"
    await client.push(name, [b"1", b"2"])
    async with connect(any_server.url) as other:
        gaps = []
        for one in (client, other):
            stream = await one.subscribe(name, position=Position("", 9998))
            gaps.append(await asyncio.wait_for(anext(stream), SECONDS))
            message = await asyncio.wait_for(anext(stream), SECONDS)
            assert isinstance(message, Message)
            assert message.offset == 1
    assert gaps[0] == gaps[1]
    assert isinstance(gaps[0], Gap)
    assert gaps[0].reason == "epoch_changed"


async def test_events_come_in_batches_too(client: Client) -> None:
    stream = await client.subscribe("tcp/batches")
    for first in range(0, 1000, 100):
        await client.send("tcp/batches", [b"%d" % number for number in range(first, first + 100)])
    await client.flush()
    got: list[bytes] = []
    async for batch in stream.batches():
        got += [event.payload for event in batch if isinstance(event, BrokyMessage)]
        if len(got) == 1000:
            break
    assert got == [b"%d" % number for number in range(1000)]


async def test_a_stream_may_be_left_and_followed_again_at_once(client: Client) -> None:
    for number in range(20):
        stream = await client.subscribe("tcp/again")
        pushed = await client.push("tcp/again", b"%d" % number)
        assert (await take(stream)).position == pushed
        await stream.unsubscribe()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_subscription_that_was_given_up_does_not_spoil_the_next(client: Client) -> None:
    for number in range(20):
        given_up = asyncio.create_task(client.subscribe("tcp/given-up"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        stream = await client.subscribe("tcp/given-up")
        await client.push("tcp/given-up", b"%d" % number)
        assert (await take(stream)).payload == b"%d" % number
        await stream.unsubscribe()


async def test_one_stream_has_one_object(client: Client) -> None:
    await client.subscribe("tcp/twice")
    with pytest.raises(AlreadySubscribed):
        await client.subscribe(b"tcp/twice")


async def test_what_broky_has_no_word_for_says_what_to_connect_to(server: RunningServer, client: Client) -> None:
    stream = await client.subscribe("tcp/verbs")
    for verb in (
        stream.join("ann"),
        stream.leave(),
        stream.presence(),
        stream.whisper(1),
        stream.perform("speak"),
        client.subscribe_channel("ChatChannel"),
        client.subscribe("tcp/presence", presence_events=True),
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
    async with connect(server.url) as other:
        for push in (other.push("a", b"x"), other.send("a", b"x"), other.flush()):
            with pytest.raises(NotSupported, match="tcp://"):
                await push


async def test_a_program_that_errs_is_told_before_anything_is_sent(client: Client) -> None:
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
        with pytest.raises(TypeError, match=f"a push takes bytes, or a sequence of bytes, and not {given};"):
            await client.push("a", payloads)  # type: ignore[arg-type]
    with pytest.raises(UserMistake, match="new_uid"):
        await client.publish("a", 1, uid="order-7")
    with pytest.raises(PublicationRefused, match="at most"):
        await client.push("a", bytes(5 << 20))
    assert (await client.push("tcp/errs", b"x")).offset == 1


async def test_a_uid_registers_once(client: Client) -> None:
    uid = new_ksuid(time.time())
    first = await client.push("tcp/uid", b"x", uids=[uid])
    assert await client.push("tcp/uid", b"x", uids=[uid]) == first
    assert (await client.publish("tcp/uid", 1, uid=ksuid_text(uid))).offset == first.offset
    assert await client.push("tcp/uid", b"x", uids=[ksuid_text(uid)]) == first
    own = new_uid()
    assert (await client.publish("tcp/uid", 1, uid=own)).offset == (await client.publish("tcp/uid", 1, uid=own)).offset
    assert (await client.push("tcp/uid", (b"x", b"y"))).offset == first.offset + 2


# --- a network that breaks --------------------------------------------------------------------------------------------


async def test_a_lost_connection_is_resumed_and_each_message_comes_once(client: Client) -> None:
    stream = await client.subscribe("tcp/cuts")
    for _ in range(5):
        for payload in (b"1", b"2", b"3"):
            await client.push("tcp/cuts", payload)
        client.cut()
        await client.push("tcp/cuts", [b"4", b"5", b"6"])
    assert await take_offsets(stream, 30) == list(range(1, 31))


async def test_pushes_under_way_survive_cuts_once_and_in_order(any_server: RunningServer) -> None:
    async with (
        relay_to(any_server.port) as relay,
        connect(tcp(any_server)) as witness,
        connect(tcp(relay), backoff=QUICK) as client,
    ):
        stream = await witness.subscribe("tcp/storm")
        here = await client.subscribe("tcp/storm")
        pushes = [asyncio.create_task(client.push("tcp/storm", b"%d" % number)) for number in range(300)]
        for _ in range(4):
            await asyncio.sleep(0.02)
            relay.break_links()
        positions = await asyncio.wait_for(asyncio.gather(*pushes), SECONDS)
        assert [position.offset for position in positions] == list(range(1, 301))
        for reader in (stream, here):
            messages = [await take(reader) for _ in range(300)]
            assert [message.payload for message in messages] == [b"%d" % number for number in range(300)]
            assert [message.offset for message in messages] == list(range(1, 301))


async def test_a_push_whose_answer_was_lost_is_registered_once(relay: Relay) -> None:
    relay.answers_lost = 1
    async with Pusher(tcp(relay), backoff=QUICK) as pusher:
        assert (await pusher.push("tcp/once", b"1")).offset == 1
        assert (await pusher.push("tcp/once", b"2")).offset == 2


async def test_what_was_pushed_meanwhile_is_replayed(relay: Relay, pusher: Pusher) -> None:
    async with connect(tcp(relay), backoff=QUICK) as client:
        stream = await client.subscribe("tcp/away")
        await pusher.push("tcp/away", b"1")
        await take(stream)
        relay.open = False
        relay.break_links()
        await pusher.push("tcp/away", [b"2", b"3", b"4"])
        relay.open = True
        messages = [await take(stream) for _ in range(3)]
        assert [(message.offset, message.replayed) for message in messages] == [(n, True) for n in (2, 3, 4)]


@pytest.mark.parametrize("before", [0, 3])
async def test_the_first_message_of_a_silent_stream_is_not_missed(relay: Relay, pusher: Pusher, before: int) -> None:
    name = f"tcp/silent/{before}"
    if before:
        await pusher.push(name, [b"old"] * before)
    async with connect(tcp(relay), backoff=QUICK) as client:
        stream = await client.subscribe(name)
        relay.open = False
        relay.break_links()
        await pusher.push(name, [b"1", b"2"])
        relay.open = True
        assert await take_offsets(stream, 2) == [before + 1, before + 2]


async def test_a_link_that_has_gone_silent_is_given_up(relay: Relay, pusher: Pusher) -> None:
    async with connect(tcp(relay), backoff=QUICK, ping_interval=1) as client:
        stream = await client.subscribe("tcp/frozen")
        before = relay.accepted
        relay.freeze()
        await pusher.push("tcp/frozen", b"1")
        async with asyncio.timeout(SECONDS):
            while relay.accepted == before:
                await asyncio.sleep(0.05)
        relay.thaw()
        assert await take_offsets(stream, 1) == [1]


async def test_a_quiet_link_is_kept(relay: Relay, pusher: Pusher) -> None:
    async with connect(tcp(relay), ping_interval=1) as client:
        stream = await client.subscribe("tcp/quiet")
        await asyncio.sleep(3)
        await pusher.push("tcp/quiet", b"1")
        assert await take_offsets(stream, 1) == [1]
        assert relay.accepted == 1


async def test_what_no_longer_fits_the_history_is_a_gap_and_the_rest_follows() -> None:
    with running_server("--public", "--history_limit", "5") as server:
        async with (
            relay_to(server.port) as relay,
            Pusher(tcp(server)) as pusher,
            connect(tcp(relay), backoff=QUICK) as client,
        ):
            stream = await client.subscribe("trimmed")
            await pusher.push("trimmed", b"1")
            first = await take(stream)
            relay.open = False
            relay.break_links()
            await pusher.push("trimmed", [b"x"] * 20)
            relay.open = True
            gap = await asyncio.wait_for(anext(stream), SECONDS)
            assert gap == Gap("trimmed", "trimmed", first.position, first.epoch, 17, 21)
            assert gap.missed == 15
            await pusher.push("trimmed", b"22")
            assert await take_offsets(stream, 6) == [17, 18, 19, 20, 21, 22]


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_server_that_lost_everything_is_a_gap_and_then_goes_on(workers: str) -> None:
    flags = ("--public", "--workers", workers)
    with running_server(*flags) as first_life:
        port = str(first_life.port)
        async with connect(tcp(first_life), backoff=QUICK) as client:
            stream = await client.subscribe("restarted")
            before = await client.push("restarted", b"before")
            await take(stream)
            first_life.kill()
            with running_server(*flags, "--port", port):
                async with Pusher(tcp(first_life), attempts=100, backoff=QUICK) as pusher:
                    after = await pusher.push("restarted", b"after")
                gap = await asyncio.wait_for(anext(stream), SECONDS)
                assert isinstance(gap, Gap)
                assert (gap.reason, gap.known) == ("epoch_changed", before)
                message = await take(stream)
                assert (message.data, message.position) == (b"after", after)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("way", ["killed", "stopped"])
async def test_a_server_with_a_journal_loses_nothing_when_it_is_started_again(tmp_path: Path, workers: str, way: str) -> None:
    flags = ("--public", "--workers", workers, "--data_dir", str(tmp_path), "--durability", "journal")
    with running_server(*flags) as first_life:
        url, port = tcp(first_life), str(first_life.port)
        async with (
            Pusher(url, attempts=200, backoff=Backoff(0.05, 0.2)) as pusher,
            connect(url, backoff=Backoff(0.05, 0.2), answer_timeout=60) as client,
        ):
            stream = await client.subscribe("durable")
            pushes = [asyncio.create_task(pusher.push("durable", b"%d" % number)) for number in range(100)]
            await pushes[20]
            if way == "killed":
                first_life.kill()
            else:
                assert first_life.stop() == 0
            with running_server(*flags, "--port", port):
                positions = await asyncio.wait_for(asyncio.gather(*pushes), 60)
                assert len({position.epoch for position in positions}) == 1
                messages = [await take(stream) for _ in range(100)]
                assert [message.offset for message in messages] == list(range(1, 101))
                assert sorted(int(message.payload) for message in messages) == list(range(100))
                assert [messages[position.offset - 1].payload for position in positions] == [b"%d" % n for n in range(100)]


# --- slow readers -----------------------------------------------------------------------------------------------------


async def test_a_slow_reader_gets_everything() -> None:
    flags = ("--public", "--history_limit", "10000", "--ws_max_pending_size", "65536")
    with running_server(*flags) as server:
        async with connect(tcp(server), backoff=QUICK, inbox_size=4) as client, Pusher(tcp(server)) as pusher:
            stream = await client.subscribe("slow")
            for _ in range(80):
                await pusher.push("slow", [bytes(1000)] * 100)
            assert await take_offsets(stream, 8000) == list(range(1, 8001))
        assert (await metrics(server))["slow_disconnects_total"] >= 1


async def test_an_unread_stream_keeps_neither_a_subscription_nor_a_push_from_its_answer(
    server: RunningServer, pusher: Pusher
) -> None:
    await pusher.push("tcp/unread", [bytes(1000)] * 500)
    async with connect(tcp(server), inbox_size=4, answer_timeout=SECONDS) as client:
        unread = await client.subscribe("tcp/unread", position=Position("", 0))
        await client.subscribe("tcp/another")
        assert (await client.push("tcp/another", b"x")).offset == 1
        await client.flush()
        assert await take_offsets(unread, 500) == list(range(1, 501))


async def test_a_producer_that_expects_no_answers_is_held_up_by_a_network_that_takes_no_more(relay: Relay) -> None:
    async with Pusher(tcp(relay), backoff=QUICK) as pusher:
        await pusher.push("tcp/held", b"first")
        relay.freeze()

        async def produce() -> None:
            for _ in range(40):
                await pusher.send("tcp/held", [bytes(100_000)] * 5)

        producing = asyncio.create_task(produce())
        await asyncio.sleep(0.5)
        assert not producing.done()
        relay.thaw()
        await asyncio.wait_for(producing, SECONDS)
        await pusher.flush()
        assert (await pusher.push("tcp/held", b"last")).offset == 202


async def test_what_was_sent_without_an_answer_is_handled_before_a_client_closes(server: RunningServer) -> None:
    async with Pusher(tcp(server)) as pusher:
        for number in range(500):
            await pusher.send("tcp/parting", b"%d" % number)
    async with connect(tcp(server)) as client:
        stream = await client.subscribe("tcp/parting", position=Position("", 0))
        assert await take_offsets(stream, 500) == list(range(1, 501))


# --- who may come in --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed_server() -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--enforce_jwt") as server:
        yield server


def token(seconds: int) -> str:
    return issue(SECRET, '{"user":1}', int(time.time()) + seconds)


async def test_a_signed_stream_is_followed_and_pushed_to_with_the_key(closed_server: RunningServer) -> None:
    async with connect(tcp(closed_server), token(60), key=derive(SECRET, API_PHRASE)) as client:
        first = await client.push("signed/1", [b"1", b"2"])
        stream = await client.subscribe_signed(sign_stream("signed/1", SECRET), position=first)
        message = await take(stream)
        assert (message.stream, message.payload) == ("signed/1", b"2")
        await client.send("signed/1", b"3")
        await client.flush()
        assert (await take(stream)).payload == b"3"
        for refused in (client.subscribe_signed(sign_stream("signed/2", "guess")), client.subscribe("signed/2")):
            with pytest.raises(SubscriptionRejected):
                await refused
    async with connect(tcp(closed_server), token(60)) as client:
        with pytest.raises(KeyRefused):
            await client.push("signed/1", b"x")


async def test_one_stream_by_its_name_and_by_its_signed_name_has_one_object(closed_server: RunningServer) -> None:
    """A delivery names the stream alone, so that nobody could tell for which of the two it is."""
    async with connect(tcp(closed_server), token(60), key=derive(SECRET, API_PHRASE)) as client:
        stream = await client.subscribe_signed(sign_stream("signed/named", SECRET))
        with pytest.raises(AlreadySubscribed):
            await client.subscribe("signed/named")
        await client.push("signed/named", b"1")
        assert (await take(stream)).payload == b"1"
        await stream.unsubscribe()
        with pytest.raises(SubscriptionRejected):
            await client.subscribe("signed/named")


async def test_a_client_without_a_good_token_is_unauthorized(closed_server: RunningServer) -> None:
    for bad in ("", "nonsense"):
        with pytest.raises(Unauthorized):
            async with connect(tcp(closed_server), bad):
                pass


async def test_an_expired_token_ends_the_iteration(closed_server: RunningServer) -> None:
    async with connect(tcp(closed_server), token(SHORT_LIFE)) as client:
        stream = await client.subscribe_signed(sign_stream("expires", SECRET))
        with pytest.raises(TokenExpired):
            await asyncio.wait_for(anext(stream), SECONDS)
        with pytest.raises(KeyRefused):
            await client.push("expires", b"too late")
        with pytest.raises(TokenExpired):
            await client.subscribe("expires")


async def test_a_refresher_brings_a_new_token_once_and_nothing_is_missed(closed_server: RunningServer) -> None:
    refreshed = asyncio.Event()
    calls = 0

    async def refresh() -> str:
        nonlocal calls
        calls += 1
        refreshed.set()
        return token(60)

    key = derive(SECRET, API_PHRASE)
    async with connect(tcp(closed_server), token(SHORT_LIFE), key=key, refresh_token=refresh, backoff=QUICK) as client:
        stream = await client.subscribe_signed(sign_stream("refreshed", SECRET))
        await client.push("refreshed", b"before")
        await asyncio.wait_for(refreshed.wait(), SECONDS)
        await client.push("refreshed", b"after")
        assert [(await take(stream)).data for _ in range(2)] == [b"before", b"after"]
        assert calls == 1


async def test_a_refresher_whose_token_is_no_better_is_asked_once(closed_server: RunningServer) -> None:
    calls = 0

    async def refresh() -> str:
        nonlocal calls
        calls += 1
        return token(-60)

    with pytest.raises(Unauthorized):
        async with connect(tcp(closed_server), token(-60), refresh_token=refresh, backoff=QUICK):
            pass
    assert calls == 1


async def test_what_a_refresher_raises_is_told_to_readers(closed_server: RunningServer) -> None:
    async def refresh() -> str:
        raise ZeroDivisionError

    async with connect(tcp(closed_server), token(SHORT_LIFE), refresh_token=refresh, backoff=QUICK) as client:
        stream = await client.subscribe_signed(sign_stream("unrefreshed", SECRET))
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(anext(stream), SECONDS)


async def test_it_speaks_tls() -> None:
    with running_server("--public", "--ssl_cert", CERTIFICATE, "--ssl_key", KEY) as server:
        url = f"tls://127.0.0.1:{server.port}"
        async with connect(url, ca_file=CERTIFICATE, backoff=QUICK) as client:
            stream = await client.subscribe("secure")
            await client.push("secure", [b"1", b"2"])
            client.cut()
            await client.push("secure", b"3")
            assert await take_offsets(stream, 3) == [1, 2, 3]
        with pytest.raises(Unreachable, match="not trusted"):
            async with connect(url):
                pass
        with pytest.raises(Unreachable, match=f"if TLS is spoken there, write tls://127.0.0.1:{server.port}"):
            async with connect(f"tcp://127.0.0.1:{server.port}", connect_timeout=2):
                pass


async def test_a_server_without_tls_is_said_to_be_one() -> None:
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


async def test_a_server_without_tls_says_so_to_who_begins_it(server: RunningServer) -> None:
    async with Pusher(f"tls://127.0.0.1:{server.port}", attempts=3, backoff=QUICK) as pusher:
        with pytest.raises(TlsFailed, match="if no TLS is spoken there, write tcp://"):
            await pusher.push("a", b"x")


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        async with connect("tcp://127.0.0.1:1"):
            pass
    async with Pusher("tcp://127.0.0.1:1", attempts=2, backoff=QUICK) as pusher:
        with pytest.raises(PublishUnavailable, match="gave no answer"):
            await pusher.send("a", b"x")


async def test_a_server_that_does_not_answer_in_time_is_said_so(relay: Relay) -> None:
    async with connect(tcp(relay), answer_timeout=0.1) as client:
        relay.freeze()
        with pytest.raises(NoAnswer, match=r"within 0.1 seconds: it may be waiting for the store or the node .* /health"):
            await client.subscribe("late")


async def test_a_server_of_another_protocol_is_unreachable() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail.example.com ESMTP\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with other:
        with pytest.raises(Unreachable, match="does not speak"):
            async with connect(f"tcp://127.0.0.1:{other.sockets[0].getsockname()[1]}"):
                pass


async def test_streams_and_pushes_end_with_the_client(server: RunningServer) -> None:
    async with connect(tcp(server)) as client:
        stream = await client.subscribe("tcp/ended")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    for late in (client.subscribe("tcp/late"), client.push("tcp/late", b"x"), client.send("tcp/late", b"x")):
        with pytest.raises(Ended):
            await late


async def test_it_meets_what_http_publishes(server: RunningServer) -> None:
    async with connect(tcp(server)) as client, Publisher(server.url) as publisher:
        stream = await client.subscribe("tcp/http")
        await publisher.publish("tcp/http", {"$bytes": "aGk="})
        message = await take(stream)
        assert (message.data, message.format) == (b"hi", Format.BYTES)
