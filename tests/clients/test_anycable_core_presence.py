"""`@anycable/core` presence: who joins and leaves, seen by others, and held while a client resumes."""

import pytest

from tests.clients.script import Client, Script
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


def changes(client: Client) -> list[tuple[str, str]]:
    return [(event["type"], event["id"]) for event in client.all("presence") if event["type"] in ("join", "leave")]


async def arrive(script: Script, server: RunningServer, name: str, stream: str) -> Client:
    client = await script.connect(name, server.cable)
    await client.subscribe("room", stream=stream)
    return client


async def members(client: Client) -> object:
    """Who is there, by the client's first question; what was sent to it before the answer has arrived too."""
    await client.order("members", channel="room")
    return (await client.sees("members"))["members"]


async def test_joins_and_leaves_are_seen_by_everyone_in_the_room(
    anycable: Script, public_server: RunningServer, stream: str
) -> None:
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


async def test_an_empty_room_is_an_answer(anycable: Script, public_server: RunningServer, stream: str) -> None:
    alice = await arrive(anycable, public_server, "alice", stream)

    assert await members(alice) == {}


async def test_a_member_with_two_connections_leaves_with_the_last_one(
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


async def test_presence_is_held_through_a_resume_and_ends_for_those_who_stay_away(anycable: Script, stream: str) -> None:
    with running_server("--public", "--presence_ttl", "5s") as server:
        bob, alice, carol = [await arrive(anycable, server, name, stream) for name in ("bob", "alice", "carol")]
        for client in (alice, carol):
            await client.order("join", channel="room", id=client.name, info={"name": client.name})
            await bob.sees("presence", type="join", id=client.name)

        # Carol goes after Alice: when Carol's time is over, Alice's would be too if nobody held it.
        await alice.lose()
        await carol.lose()
        restored = await alice.come_back()
        await bob.sees("presence", type="leave", id="carol")

        assert restored["restored"] is True
        assert await members(bob) == {"alice": {"name": "alice"}}
        assert changes(bob) == [("join", "alice"), ("join", "carol"), ("leave", "carol")]
