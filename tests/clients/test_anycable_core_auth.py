"""`@anycable/core` with tokens and signed streams: authentication, expiry, and authorized streams."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.clients.credentials import BROADCAST_KEY, FOREIGN_SECRET, signed, token
from tests.clients.publishers import broadcast, publish
from tests.clients.script import Client, Script, offsets, texts
from tests.server import RunningServer

pytestmark = pytest.mark.needs_node

TOKEN_SECONDS = (2, 8, 32)
"""Lives of tokens that expire during a test. The first that is long enough on this machine is used."""


async def member(script: Script, server: RunningServer, name: str, stream: str, **args: object) -> Client:
    """A client of a signed stream."""
    client = await script.connect(name, server.cable, **{"token": token(), **args})
    await client.subscribe("chat", signed=signed(stream))
    return client


async def test_valid_token_is_accepted_from_query_header_and_subprotocol(
    anycable: Script, guarded_server: RunningServer
) -> None:
    for strategy in ("param", "header", "sub-protocol"):
        alice = await anycable.connect(f"by {strategy}", guarded_server.cable, token=token(), authStrategy=strategy)

        opened = await alice.sees("open")
        assert opened["protocol"] == "actioncable-v1-ext-json", strategy
        assert ("jid=" in opened["url"]) is (strategy == "param"), strategy


@pytest.mark.parametrize("bad", [None, "not-a-token", token(secret=FOREIGN_SECRET)], ids=["none", "garbage", "forged"])
async def test_client_without_a_valid_token_gets_reconnect_false(
    anycable: Script, guarded_server: RunningServer, bad: str | None
) -> None:
    alice = await anycable.open("alice", guarded_server.cable, **({"token": bad} if bad else {}))

    assert (await alice.sees("close"))["reason"] == "unauthorized"
    assert alice.frames() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
    assert (await alice.sees("socket_close"))["code"] == 1000


async def test_expired_token_is_reported_as_expired(anycable: Script, guarded_server: RunningServer) -> None:
    alice = await anycable.open("alice", guarded_server.cable, token=token(expires_in=-5))

    assert (await alice.sees("close"))["reason"] == "token_expired"
    assert alice.frames() == [{"type": "disconnect", "reason": "token_expired", "reconnect": False}]


async def test_client_with_an_expired_token_connects_with_a_refreshed_one(
    anycable: Script, guarded_server: RunningServer, stream: str
) -> None:
    alice = await anycable.open("alice", guarded_server.cable, token=token(expires_in=-5), freshToken=token())

    await alice.sees("connect")
    await alice.subscribe("chat", signed=signed(stream))
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)

    assert texts(await alice.gets("chat", 1)) == ["one"]
    assert [event["reason"] for event in alice.all("close")] == ["token_expired"]


async def subscribed_before_expiry(
    script: Script, server: RunningServer, name: str, stream: str, **args: object
) -> AsyncIterator[tuple[Client, str]]:
    """Clients of a signed stream with their short-lived tokens, each longer than the one before. A client whose token expires
    before it has subscribed is skipped."""
    for seconds in TOKEN_SECONDS:
        brief = token(expires_in=seconds)
        client = await script.open(f"{name}-{seconds}", server.cable, token=brief, **args)
        await client.order("subscribe", channel="chat", signed=signed(stream))
        await script.until(lambda client=client: bool(client.all("subscribed") or client.all("close")), "subscribed or closed")  # type: ignore[misc]
        if client.all("subscribed"):
            yield client, brief
    raise AssertionError(f"{name} did not get far enough within {TOKEN_SECONDS[-1]} s")


async def check_live_connection(script: Script, server: RunningServer, stream: str) -> None:
    """It ends with its token and resumes with the next one."""
    alice, _ = await anext(subscribed_before_expiry(script, server, "live", stream, freshToken=token()))
    await publish(server, stream, "one", key=BROADCAST_KEY)

    closed = await alice.sees("close")
    await publish(server, stream, "two", key=BROADCAST_KEY)
    await alice.sees("connect", times=2)
    await publish(server, stream, "three", key=BROADCAST_KEY)

    assert closed["reason"] == "token_expired"
    assert offsets(await alice.gets("chat", 3)) == [1, 2, 3]


async def check_lost_session(script: Script, server: RunningServer, stream: str) -> None:
    """It is not restored after its token has expired."""
    alice, brief = await anext(subscribed_before_expiry(script, server, "lost", stream))
    witness = await script.open("witness", server.cable, token=brief)

    await alice.order("cut", how="fin")
    await witness.sees("close", reason="token_expired")
    await script.until(lambda: bool(alice.all("disconnect") or alice.all("close")), "the link of alice is lost")
    await alice.order("reconnect")

    assert (await alice.sees("close"))["reason"] == "token_expired"
    assert alice.all("connect", restored=True) == []


async def check_restored_session(script: Script, server: RunningServer, stream: str) -> None:
    """It is restored within the life of its token and still ends with it."""
    async for alice, _ in subscribed_before_expiry(script, server, "restored", stream):
        await alice.order("cut", how="fin")
        await script.until(lambda alice=alice: bool(alice.all("disconnect") or alice.all("close")), "the link is lost")  # type: ignore[misc]
        await alice.order("reconnect")

        assert (await alice.sees("close"))["reason"] == "token_expired"
        if alice.all("connect", restored=True):
            return


async def test_sessions_end_with_their_tokens(anycable: Script, guarded_server: RunningServer, stream: str) -> None:
    checks = (check_live_connection, check_lost_session, check_restored_session)
    async with asyncio.TaskGroup() as group:
        for check in checks:
            group.create_task(check(anycable, guarded_server, f"{stream}/{check.__name__}"))


@pytest.mark.parametrize("encode", ["b64encode", "urlsafe_b64encode"])
async def test_signed_stream_is_accepted_in_both_base64_alphabets(
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
async def test_stream_without_a_valid_signature_is_rejected(
    anycable: Script, guarded_server: RunningServer, args: dict[str, str]
) -> None:
    alice = await anycable.connect("alice", guarded_server.cable, token=token())

    await alice.order("subscribe", channel="chat", **args)

    assert (await alice.sees("channel_close", channel="chat"))["error"] == "SubscriptionRejectedError"


async def test_signed_stream_has_no_whispers_by_default(anycable: Script, guarded_server: RunningServer, stream: str) -> None:
    alice, bob = [await member(anycable, guarded_server, name, stream) for name in ("alice", "bob")]

    await alice.order("whisper", channel="chat", data="psst")
    await alice.subscribe("fence", signed=signed(f"{stream}/fence"))  # confirmed after the whisper was handled
    await publish(guarded_server, stream, "one", key=BROADCAST_KEY)

    assert texts(await bob.gets("chat", 1)) == ["one"]


async def test_remote_disconnect_ends_all_sessions_of_the_identifier(
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


async def test_remote_disconnect_with_reconnect_loses_no_message(
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
    assert back["restored"] is False  # the server ended the session
    assert offsets(await alice.gets("chat", 2)) == [1, 2]
