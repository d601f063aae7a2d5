"""`@anycable/core` presence: joins, leaves, members, and presence that outlasts a short disconnect."""

import time

import pytest

from tests.clients.script import Client, Script
from tests.server import RunningServer, running_server
from tests.waiting import GROWING_SECONDS

pytestmark = pytest.mark.needs_node


def changes(client: Client) -> list[tuple[str, str]]:
    return [(event["type"], event["id"]) for event in client.all("presence") if event["type"] in ("join", "leave")]


async def arrive(script: Script, server: RunningServer, name: str, stream: str) -> Client:
    client = await script.connect(name, server.cable)
    await client.subscribe("room", stream=stream)
    return client


async def members(client: Client) -> object:
    """The members, by the first request of the client. All earlier messages have arrived before the response."""
    await client.order("members", channel="room")
    return (await client.sees("members"))["members"]


async def test_joins_and_leaves_reach_everyone_in_the_room(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice, bob = [await arrive(anycable, public_server, name, stream) for name in ("alice", "bob")]

    await alice.order("join", channel="room", id="alice", info={"name": "Alice"})
    joined = await bob.sees("presence", type="join", id="alice")
    await bob.order("join", channel="room", id=42, info={"name": "Bob"})
    await alice.sees("presence", type="join", id="42")
    present = await members(bob)
    await alice.order("leave", channel="room")
    await bob.sees("presence", type="leave")

    assert joined["info"] == {"name": "Alice"}
    assert present == {"alice": {"name": "Alice"}, "42": {"name": "Bob"}}
    assert changes(bob) == [("join", "alice"), ("join", "42"), ("leave", "alice")]
    assert changes(alice)[:2] == [("join", "alice"), ("join", "42")]


async def test_empty_room_has_no_members(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await arrive(anycable, public_server, "alice", stream)

    assert await members(alice) == {}


async def test_member_with_two_connections_leaves_with_the_last(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
    bob, phone, laptop = [await arrive(anycable, public_server, name, stream) for name in ("bob", "phone", "laptop")]

    await phone.order("join", channel="room", id="alice", info={"on": "phone"})
    await bob.sees("presence", type="join")
    await laptop.order("join", channel="room", id="alice", info={"on": "laptop"})
    assert await members(laptop) == {"alice": {"on": "laptop"}}
    await phone.order("leave", channel="room")
    assert await members(phone) == await members(bob) == {"alice": {"on": "laptop"}}
    assert changes(bob) == [("join", "alice")]

    await laptop.order("unsubscribe", channel="room")
    await bob.sees("presence", type="leave")

    assert changes(bob) == [("join", "alice"), ("leave", "alice")]


async def test_presence_outlasts_a_resume_and_ends_after_its_ttl(anycable: Script, stream: str) -> None:
    for seconds in GROWING_SECONDS:
        with running_server("--public", "--presence_ttl", f"{seconds}s") as server:
            if await resumed_member_stays(anycable, server, stream, seconds):
                return
    pytest.fail("no client could resume within the TTL")


async def resumed_member_stays(script: Script, server: RunningServer, stream: str, seconds: int) -> bool:
    """False if the client resumed too late, after so many seconds."""
    bob, alice, carol = [await arrive(script, server, f"{name}-{seconds}", stream) for name in ("bob", "alice", "carol")]
    for client in (alice, carol):
        await client.order("join", channel="room", id=client.name, info={"name": client.name})
        await bob.sees("presence", type="join", id=client.name)

    # Carol leaves after Alice: when Carol's TTL ends, so would Alice's if the resume had not kept her.
    begun = time.monotonic()
    await alice.lose()
    await carol.lose()
    restored = await alice.come_back()
    if time.monotonic() - begun >= seconds:
        return False
    await bob.sees("presence", type="leave", id=carol.name)

    assert restored["restored"] is True
    assert await members(bob) == {alice.name: {"name": alice.name}}
    assert changes(bob) == [("join", alice.name), ("join", carol.name), ("leave", carol.name)]
    return True
