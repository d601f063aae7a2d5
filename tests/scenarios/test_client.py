"""Both Python clients against the real server: subscriptions, resumption after lost connections, tokens, and errors."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ropewalk.client import (
    AlreadySubscribed,
    Client,
    Ended,
    Gap,
    KeyRefused,
    Message,
    NoAnswer,
    Position,
    PublicationRefused,
    Stream,
    SubscriptionRejected,
    TokenExpired,
    Unauthorized,
    Unreachable,
)
from ropewalk.model.errors import UserMistake
from tests.broky_client import new_key
from tests.clients.credentials import FOREIGN_SECRET, SHORT_LIFE, signed, token
from tests.metrics import metrics
from tests.scenarios.python_clients import (
    API_KEY,
    CABLE,
    SECONDS,
    TCP,
    Wire,
    take,
    take_event,
    take_offsets,
)
from tests.scenarios.relay import Relay, relay_to
from tests.scenarios.shared_servers import LONG_HISTORY, SHORT_HISTORY, ServerWith
from tests.server import Address, RunningServer, publish, running_server


@pytest.fixture(params=[CABLE, TCP], ids=["cable", "tcp"])
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*LONG_HISTORY, *worker_flags)


@pytest.fixture
async def client(server: RunningServer, wire: Wire) -> AsyncIterator[Client]:
    async with wire.client(server) as client:
        yield client


@pytest.fixture
async def relayed(relay: Relay, wire: Wire) -> AsyncIterator[Client]:
    """A client whose connection a test can break."""
    async with wire.client(relay) as client:
        yield client


@pytest.fixture
def name() -> str:
    return new_key().decode()


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def test_history_is_replayed_by_time_by_position_and_from_the_beginning(
    server: RunningServer, wire: Wire, client: Client, name: str
) -> None:
    await wire.publish(server, name, 5)
    stream = await client.subscribe(name, since=time.time() - 3600)
    messages = [await take(stream) for _ in range(5)]
    assert [(message.offset, message.replayed) for message in messages] == [(n, True) for n in range(1, 6)]
    await stream.unsubscribe()
    for position, offsets in ((messages[2].position, [4, 5]), (Position("", 0), [1, 2, 3, 4, 5])):
        stream = await client.subscribe(name, position=position)
        assert await take_offsets(stream, len(offsets)) == offsets
        await stream.unsubscribe()


async def test_number_out_of_range_is_infinite(server: RunningServer, client: Client, name: str) -> None:
    """The server forwards the JSON text unchanged."""
    stream = await client.subscribe(name)
    for data in ('{"high": 1e400, "low": -1e400}', "2"):
        await publish(server, name, data)
    assert [(await take(stream)).data for _ in range(2)] == [{"high": math.inf, "low": -math.inf}, 2]


async def test_iteration_ends_with_the_subscription_and_with_the_client(server: RunningServer, wire: Wire, name: str) -> None:
    async with wire.client(server) as client:
        first, second = await client.subscribe(name), await client.subscribe(name + "/2")
        with pytest.raises(AlreadySubscribed):
            await client.subscribe(name)
        with pytest.raises(AlreadySubscribed):
            await client.subscribe(name.encode())
        await first.unsubscribe()
        assert [event async for event in first] == []
        assert isinstance(await client.subscribe(name), Stream)
    assert [event async for event in second] == []
    with pytest.raises(Ended):
        await client.subscribe(name)


async def test_none_means_no_token_no_key_and_no_ca_file(server: RunningServer, wire: Wire, name: str) -> None:
    nothing: Any = None
    async with wire.client(server, nothing, key=None, ca_file=None) as client:
        assert (await client.publish(name, 1)).epoch


async def test_publication_to_an_invalid_stream_name_is_refused(client: Client) -> None:
    with pytest.raises(PublicationRefused):
        await client.publish("~b64:!!", 1)


async def test_stream_name_that_is_not_a_text_is_a_user_mistake(client: Client) -> None:
    wrong: Any = 5
    for subscribe in (client.subscribe, client.subscribe_signed):
        with pytest.raises(UserMistake, match="5"):
            await subscribe(wrong)


async def test_unread_stream_does_not_delay_other_answers(server: RunningServer, wire: Wire, name: str) -> None:
    await wire.publish(server, name, 500, size=1000)
    async with wire.client(server, inbox_size=4) as client:
        unread = await client.subscribe(name, position=Position("", 0))
        another = await client.subscribe(name + "/2")
        assert (await client.publish(name + "/2", 1)).offset == 1
        if wire is CABLE:
            assert (await another.presence()).total == 0
        else:
            await client.flush()
        assert await take_offsets(unread, 500) == list(range(1, 501))


# --- lost connections -------------------------------------------------------------------------------------------------


async def test_lost_connection_is_resumed_and_each_message_comes_once(
    server: RunningServer, wire: Wire, client: Client, name: str
) -> None:
    stream = await client.subscribe(name)
    for _ in range(5):
        await wire.publish(server, name, 3)
        client.cut()
        await wire.publish(server, name, 3)
    assert await take_offsets(stream, 30) == list(range(1, 31))


async def test_messages_of_the_time_without_a_connection_are_replayed(
    server: RunningServer, relay: Relay, wire: Wire, relayed: Client, name: str
) -> None:
    stream = await relayed.subscribe(name)
    await wire.publish(server, name, 1)
    await take(stream)
    with relay.closed():
        await wire.publish(server, name, 4)
    messages = [await take(stream) for _ in range(4)]
    assert [(message.offset, message.replayed) for message in messages] == [(n, True) for n in (2, 3, 4, 5)]


async def test_first_message_of_a_silent_stream_is_not_missed(
    server: RunningServer, relay: Relay, wire: Wire, relayed: Client, name: str
) -> None:
    """Also of one that had messages before the subscription."""
    silent, used = name + "/silent", name + "/used"
    await wire.publish(server, used, 3)
    streams = [await relayed.subscribe(each) for each in (silent, used)]
    with relay.closed():
        for each in (silent, used):
            await wire.publish(server, each, 2)
    assert [await take_offsets(stream, 2) for stream in streams] == [[1, 2], [4, 5]]


async def test_silent_link_is_given_up(server: RunningServer, relay: Relay, wire: Wire, name: str) -> None:
    async with wire.client(relay, ping_interval=1) as client:
        stream = await client.subscribe(name)
        before = relay.accepted
        relay.freeze()
        await wire.publish(server, name, 1)
        await relay.wait(lambda: relay.accepted > before)
        relay.thaw()
        assert await take_offsets(stream, 1) == [1]


async def test_trimmed_messages_are_a_gap_and_the_kept_ones_follow(server_with: ServerWith, wire: Wire, name: str) -> None:
    server = server_with(*SHORT_HISTORY)
    async with relay_to(server.port) as relay, wire.client(relay) as client:
        stream = await client.subscribe(name)
        await wire.publish(server, name, 1)
        first = await take(stream)
        with relay.closed():
            await wire.publish(server, name, 20)
        gap = await take_event(stream)
        assert gap == Gap(name, "trimmed", first.position, first.epoch, 17, 21)
        assert gap.missed == 15
        await wire.publish(server, name, 1)
        assert await take_offsets(stream, 6) == [17, 18, 19, 20, 21, 22]


async def test_restart_without_a_journal_is_a_gap_after_a_kill_and_loses_no_subscription(
    wire: Wire, worker_flags: tuple[str, ...]
) -> None:
    flags = ("--public", *worker_flags)
    with running_server(*flags) as first_life:
        port = str(first_life.port)
        async with wire.client(first_life) as client:
            stream, silent = await client.subscribe("restarted"), await client.subscribe("silent")
            before = await client.publish("restarted", "before")
            assert (await take(stream)).data == "before"
            first_life.kill()
            with running_server(*flags, "--port", port) as second_life:
                after = await client.publish("restarted", "after")
                gap = await take_event(stream)
                assert isinstance(gap, Gap)
                assert (gap.reason, gap.known) == ("epoch_changed", Position(before.epoch, before.offset))
                message = await take(stream)
                assert (message.data, message.position) == ("after", Position(after.epoch, 1))
                assert second_life.stop() == 0
                with running_server(*flags, "--port", port):
                    await client.publish("silent", "after a graceful restart")
                    event = await take_event(silent)
                    while wire is TCP and isinstance(event, Gap):  # it has no position to continue from
                        event = await take_event(silent)
                    assert isinstance(event, Message)
                    assert event.data == "after a graceful restart"


@pytest.mark.tier("all")
async def test_slow_reader_gets_every_message(wire: Wire) -> None:
    """Also those after the server closed its connection, which happens once the kernel's buffers are full."""
    most = 60_000
    with running_server("--public", "--history_limit", str(most), "--ws_max_pending_size", "65536") as server:
        async with wire.client(server, inbox_size=4) as client:
            stream = await client.subscribe("slow")
            published = 0
            while not (await metrics(server))["slow_disconnects_total"]:
                assert published < most, "the server closed no slow consumer"
                await wire.publish(server, "slow", 2000, size=1000)
                published += 2000
            assert await take_offsets(stream, published) == list(range(1, published + 1))


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_signed_stream_is_followed_and_a_forged_one_is_rejected(guarded: RunningServer, wire: Wire, name: str) -> None:
    async with wire.client(guarded, token(), key=API_KEY) as client:
        receipt = await client.publish(name, 1)
        stream = await client.subscribe_signed(signed(name), position=Position(receipt.epoch, 0))
        assert (await take(stream)).stream == name
        other = name + "/2"
        for refused in (client.subscribe_signed(signed(other, FOREIGN_SECRET)), client.subscribe(other)):
            with pytest.raises(SubscriptionRejected):
                await refused
        if wire is CABLE:
            with pytest.raises(SubscriptionRejected):
                await client.subscribe_channel("ChatChannel", id=1)


async def test_client_without_a_valid_token_is_unauthorized(guarded: RunningServer, wire: Wire) -> None:
    for bad in ("", "nonsense"):
        with pytest.raises(Unauthorized):
            async with wire.client(guarded, bad):
                pass


async def test_refresh_that_returns_an_expired_token_is_called_once(guarded: RunningServer, wire: Wire) -> None:
    calls = 0

    async def refresh() -> str:
        nonlocal calls
        calls += 1
        return token(expires_in=-60)

    with pytest.raises(TokenExpired if wire is CABLE else Unauthorized):
        async with wire.client(guarded, token(expires_in=-60), refresh_token=refresh):
            pass
    assert calls == 1


async def test_expired_token_ends_the_iteration_or_is_refreshed(guarded: RunningServer, name: str) -> None:
    """All cases wait for the same moment, so they run at the same time."""
    async with asyncio.TaskGroup() as cases:
        for wire in (CABLE, TCP):
            for case in (_expire, _refresh, _fail_to_refresh):
                cases.create_task(case(guarded, wire, f"{name}/{wire.scheme}/{case.__name__}"))


async def _expire(guarded: RunningServer, wire: Wire, name: str) -> None:
    async with wire.client(guarded, token(expires_in=SHORT_LIFE)) as client:
        stream = await client.subscribe_signed(signed(name))
        with pytest.raises(TokenExpired):
            await take_event(stream)
        if wire is CABLE:
            with pytest.raises(TokenExpired):
                await stream.whisper("too late")
        else:
            with pytest.raises(KeyRefused):
                await client.push(name, b"too late")
        with pytest.raises(TokenExpired):
            await client.subscribe(name + "/2")


async def _refresh(guarded: RunningServer, wire: Wire, name: str) -> None:
    """The new token is requested once, and no message is missed."""
    refreshed = asyncio.Event()
    calls = 0

    async def refresh() -> str:
        nonlocal calls
        calls += 1
        refreshed.set()
        return token()

    async with wire.client(guarded, token(expires_in=SHORT_LIFE), key=API_KEY, refresh_token=refresh) as client:
        stream = await client.subscribe_signed(signed(name))
        await client.publish(name, "before")
        await asyncio.wait_for(refreshed.wait(), SECONDS)
        await client.publish(name, "after")
        assert [(await take(stream)).data for _ in range(2)] == ["before", "after"]
        assert calls == 1


async def _fail_to_refresh(guarded: RunningServer, wire: Wire, name: str) -> None:
    async def refresh() -> str:
        raise ZeroDivisionError

    async with wire.client(guarded, token(expires_in=SHORT_LIFE), refresh_token=refresh) as client:
        stream = await client.subscribe_signed(signed(name))
        with pytest.raises(ZeroDivisionError):
            await take_event(stream)


# --- unreachable servers ----------------------------------------------------------------------------------------------


async def test_server_that_does_not_listen_is_unreachable(wire: Wire) -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        async with wire.client(Address("http://127.0.0.1:1")):
            pass


async def test_missing_answer_is_reported_after_the_timeout(relay: Relay, wire: Wire, name: str) -> None:
    async with wire.client(relay, answer_timeout=0.1) as client:
        relay.freeze()
        with pytest.raises(NoAnswer, match=r"within 0.1 seconds: it may be waiting for the store or the node .* /health"):
            await client.subscribe(name)
