"""`@anycable/core` with tokens and signed streams: who may come in, for how long, and what may be read."""

from collections.abc import Iterator

import pytest

from tests.clients.credentials import BROADCAST_KEY, FOREIGN_SECRET, SECRET, SHORT_LIFE, signed, token
from tests.clients.publishers import broadcast, publish
from tests.clients.script import Client, Script, offsets, texts
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[RunningServer]:
    with running_server("--secret", SECRET) as server:
        yield server


async def member(script: Script, server: RunningServer, name: str, stream: str, **args: object) -> Client:
    """A client of a signed stream."""
    client = await script.connect(name, server.cable, **{"token": token(), **args})
    await client.subscribe("chat", signed=signed(stream))
    return client


@pytest.mark.parametrize("strategy", ["param", "header", "sub-protocol"])
async def test_a_valid_token_is_accepted_wherever_the_client_puts_it(
    anycable: Script, guarded_server: RunningServer, strategy: str
) -> None:
    alice = await anycable.connect("alice", guarded_server.cable, token=token(), authStrategy=strategy)

    opened = await alice.sees("open")
    assert opened["protocol"] == "actioncable-v1-ext-json"
    assert ("jid=" in opened["url"]) is (strategy == "param")


@pytest.mark.parametrize("bad", [None, "not-a-token", token(secret=FOREIGN_SECRET)], ids=["none", "garbage", "forged"])
async def test_a_client_without_a_valid_token_is_refused_for_good(
    anycable: Script, guarded_server: RunningServer, bad: str | None
) -> None:
    alice = await anycable.open("alice", guarded_server.cable, **({"token": bad} if bad else {}))

    assert (await alice.sees("close"))["reason"] == "unauthorized"
    assert alice.frames() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
    assert (await alice.sees("socket_close"))["code"] == 1000


async def test_an_expired_token_is_told_apart(anycable: Script, guarded_server: RunningServer) -> None:
    alice = await anycable.open("alice", guarded_server.cable, token=token(expires_in=-5))

    assert (await alice.sees("close"))["reason"] == "token_expired"
    assert alice.frames() == [{"type": "disconnect", "reason": "token_expired", "reconnect": False}]


async def test_a_client_with_an_expired_token_comes_in_with_a_refreshed_one(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    alice = await anycable.open("alice", guarded_server.cable, token=token(expires_in=-5), freshToken=token())

    await alice.sees("connect")
    await alice.subscribe("chat", signed=signed(stream))
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)

    assert texts(await alice.gets("chat", 1)) == ["one"]
    assert [event["reason"] for event in alice.all("close")] == ["token_expired"]


async def test_a_live_connection_ends_with_its_token_and_goes_on_with_the_next_one(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    alice = await member(anycable, guarded_server, "alice", stream, token=token(expires_in=SHORT_LIFE), freshToken=token())
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)

    closed = await alice.sees("close")
    await publish(guarded_server, stream, "two", key=BROADCAST_KEY)
    await alice.sees("connect", times=2)
    await publish(guarded_server, stream, "three", key=BROADCAST_KEY)

    assert closed["reason"] == "token_expired"
    assert offsets(await alice.gets("chat", 3)) == [1, 2, 3]


async def test_a_session_is_not_restored_past_the_life_of_its_token(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    brief = token(expires_in=SHORT_LIFE)
    alice, witness = [await member(anycable, guarded_server, name, stream, token=brief) for name in ("alice", "witness")]

    await alice.lose()
    await witness.sees("close", reason="token_expired")
    await alice.order("reconnect")

    assert (await alice.sees("close"))["reason"] == "token_expired"
    assert alice.all("connect", restored=True) == []


async def test_a_session_is_restored_within_the_life_of_its_token_and_then_still_ends_with_it(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    alice = await member(anycable, guarded_server, "alice", stream, token=token(expires_in=SHORT_LIFE))

    await alice.lose()
    restored = await alice.come_back()

    assert restored["restored"] is True
    assert (await alice.sees("close"))["reason"] == "token_expired"


@pytest.mark.parametrize("encode", ["b64encode", "urlsafe_b64encode"])
async def test_a_signed_stream_is_received_in_either_base64_alphabet(
    anycable: Script, guarded_server: RunningServer, encode: str
) -> None:
    stream = f"{encode}/Ã¿>?~"  # its encodings differ in the alphabets
    assert signed(stream, encode="b64encode") != signed(stream, encode="urlsafe_b64encode")
    alice = await anycable.connect("alice", guarded_server.cable, token=token())

    await alice.subscribe("chat", signed=signed(stream, encode=encode))
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)

    received = await alice.gets("chat", 1)
    assert texts(received) == ["one"]
    assert received[0]["meta"]["stream"] == stream


@pytest.mark.parametrize(
    "args",
    [
        {"signed": signed("chat/1", secret=FOREIGN_SECRET)},
        {"signed": signed("chat/1").replace("--", "-")},
        {"signed": signed("chat/1").split("--")[0] + "--"},
        {"stream": "chat/1"},
    ],
    ids=["forged", "misshapen", "without a signature", "public name"],
)
async def test_a_stream_that_is_not_signed_by_us_is_rejected(
    anycable: Script, guarded_server: RunningServer, args: dict[str, str]
) -> None:
    alice = await anycable.connect("alice", guarded_server.cable, token=token())

    await alice.order("subscribe", channel="chat", **args)

    assert (await alice.sees("channel_close", channel="chat"))["error"] == "SubscriptionRejectedError"


async def test_a_signed_stream_carries_no_whispers_unless_the_server_allows_them(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    alice, bob = [await member(anycable, guarded_server, name, stream) for name in ("alice", "bob")]

    await alice.order("whisper", channel="chat", data="psst")
    await alice.subscribe("fence", signed=signed(f"{stream}/fence"))  # confirmed after the whisper was handled
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)

    assert texts(await bob.gets("chat", 1)) == ["one"]


async def test_a_remote_disconnect_ends_all_sessions_of_that_identifier_and_no_other(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    target = '{"user":"42"}'
    phone, laptop, tablet = [
        await member(anycable, guarded_server, name, stream, token=token(target)) for name in ("phone", "laptop", "tablet")
    ]
    other = await member(anycable, guarded_server, "other", stream, token=token('{"user":"43"}'))

    order = {"command": "disconnect", "payload": {"identifier": target, "reconnect": False}}
    await broadcast(guarded_server, order, key=BROADCAST_KEY)

    for client in (phone, laptop, tablet):
        assert (await client.sees("close"))["reason"] == "remote"
    await publish(guarded_server, stream, "still here", key=BROADCAST_KEY)
    assert texts(await other.gets("chat", 1)) == ["still here"]


async def test_a_remote_disconnect_may_let_the_client_come_back_and_it_misses_nothing(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    alice = await member(anycable, guarded_server, "alice", stream, token=token(stream))
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)
    await alice.gets("chat", 1)

    order = {"command": "disconnect", "payload": {"identifier": stream, "reconnect": True}}
    await broadcast(guarded_server, order, key=BROADCAST_KEY)
    lost = await alice.sees("disconnect")
    await publish(guarded_server, stream, "two", key=BROADCAST_KEY)
    back = await alice.come_back()

    assert lost["reason"] == "remote"
    assert back["restored"] is False  # a session that the server ended is over
    assert offsets(await alice.gets("chat", 2)) == [1, 2]
