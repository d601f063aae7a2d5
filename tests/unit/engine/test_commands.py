"""Commands: effects, replies and refusals."""

import asyncio
import json

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import SessionSnapshot, Subscribed
from tests.unit.engine.script import Script
from tests.unit.engine.workbench import Workbench, public, settle


async def test_commands_sent_before_the_welcome_are_handled_after_it() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        assert client.seen() == ["welcome"]
        await client.send(command="ping")
        assert client.seen() == ["welcome", "pong"]


async def test_unsubscribed_client_receives_nothing_and_the_stream_is_released() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        await client.send(command="unsubscribe", identifier=public("s"))
        await bench.publish("s", "1")
        assert client.seen() == ["welcome", "confirm_subscription"]
        assert bench.report().streams_listened == 0


async def test_messages_of_one_tick_are_one_write_per_connection() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        before = len(client.connection.written)
        await bench.publish("s", *["0"] * 10)
        assert len(client.connection.written) == before + 1
        assert client.seen()[-10:] == list(range(1, 11))


async def test_deeply_nested_identifier_is_rejected_and_counted() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier='{"channel":"$pubsub","stream_name":' + "[" * 128 + "]" * 128 + "}")
        assert client.seen() == ["welcome", "reject_subscription"]
        assert bench.stats.refusals == {Refusal.NESTING: 1}


async def test_deeply_nested_frame_closes_the_connection_and_is_counted() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        client.session.receive(b'{"command":"whisper","identifier":"i","data":' + b"[" * 129 + b"]" * 129 + b"}")
        await settle()
        assert client.connection.closed == (1007, "whisper is nested more than 128 deep")
        assert bench.stats.refusals == {Refusal.NESTING: 1}


async def test_whisper_reaches_other_clients_without_a_position_or_history() -> None:
    async with Workbench() as bench:
        speaker, listener = await bench.connect(), await bench.connect()
        for client in (speaker, listener):
            await client.send(command="subscribe", identifier=public("s"))
        await speaker.send(command="whisper", identifier=public("s"), data={"typing": True})
        assert listener.connection.replies()[-1] == {"identifier": public("s"), "message": {"typing": True}}
        assert speaker.seen() == ["welcome", "confirm_subscription"]
        assert (await bench.backend.streams.tip("s")).offset == 0


async def test_command_without_a_subscription_is_counted_and_keeps_the_connection(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, object]] = [
        {"command": "whisper", "identifier": public("s"), "data": 1},
        {"command": "unsubscribe", "identifier": public("s")},
        {"command": "message", "identifier": public("s"), "data": "{}"},
        {"command": "join", "identifier": public("s"), "presence": {"id": "1"}},
        {"command": "leave", "identifier": public("s")},
        {"command": "dance"},
        {},
    ]
    for command in rows:
        with subtests.test(command=command):
            async with Workbench() as bench:
                client = await bench.connect()
                await client.send(**command)
                assert client.seen() == ["welcome"]
                assert client.connection.closed is None
                assert bench.stats.commands_failed == 1


async def test_history_and_presence_without_a_subscription_are_answered() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="history", identifier=public("s"), history={"since": 1})
        await client.send(command="presence", identifier=public("s"))
        assert client.seen() == ["welcome", "reject_history", "presence"]
        assert client.connection.replies()[-1]["message"] == {"type": "error", "total": 0}


async def test_subscription_above_the_limit_is_rejected() -> None:
    async with Workbench(Limits(ping_interval=0, max_subscriptions=1)) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("a"))
        await client.send(command="subscribe", identifier=public("b"))
        assert client.seen() == ["welcome", "confirm_subscription", "reject_subscription"]


async def test_client_over_tcp_has_limits_of_its_own() -> None:
    limits = Limits(ping_interval=0, max_subscriptions=1, tcp_max_subscriptions=3, command_rate=0.001, command_burst=1)
    async with Workbench(limits) as bench:
        client = await bench.connect(tcp=True)
        for name in "abcd":
            await client.send(command="subscribe", identifier=public(name))
        while "reject_subscription" not in client.seen():
            await asyncio.sleep(0)
        assert client.seen() == ["welcome", *["confirm_subscription"] * 3, "reject_subscription"]


async def test_subscription_to_an_unknown_channel_is_rejected() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier='{"channel":"ChatChannel"}')
        assert client.seen() == ["welcome", "reject_subscription"]


async def test_members_are_listed_only_if_records_are_requested() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"), presence={"id": "bo", "info": {"n": 1}})
        await client.send(command="presence", identifier=public("s"), data={"return_records": False})
        await client.send(command="presence", identifier=public("s"))
        brief, full = client.connection.replies()[-2:]
        assert brief["message"] == {"type": "info", "total": 1}
        assert full["message"] == {"type": "info", "total": 1, "records": [{"info": {"n": 1}, "id": "bo"}]}


async def test_member_leaves_with_the_last_of_its_connections() -> None:
    async with Workbench() as bench:
        watcher, one, two = [await bench.connect() for _ in range(3)]
        await watcher.send(command="subscribe", identifier=public("s"))
        for client in (one, two):
            await client.send(command="subscribe", identifier=public("s"), presence={"id": "bo"})
        await one.send(command="leave", identifier=public("s"))
        assert [reply["message"]["type"] for reply in watcher.connection.replies()[2:]] == ["join"]
        await two.send(command="unsubscribe", identifier=public("s"))
        assert [reply["message"]["type"] for reply in watcher.connection.replies()[2:]] == ["join", "leave"]


async def test_malformed_frame_closes_only_its_own_connection() -> None:
    async with Workbench() as bench:
        client, neighbour = await bench.connect(), await bench.connect()
        await neighbour.send(command="subscribe", identifier=public("s"))
        client.session.receive(b"{")
        await settle()
        assert client.connection.closed is not None
        assert client.connection.closed[0] == 1007
        await bench.publish("s", "1")
        assert neighbour.seen()[-1] == 1


async def test_flooding_client_is_paused_and_loses_nothing() -> None:
    async with Workbench(Limits(ping_interval=0, command_rate=1e9, command_burst=10)) as bench:
        client = await bench.connect()
        for _ in range(100):
            client.session.receive(b'{"command":"ping"}')
        assert not client.connection.reading
        while client.seen().count("pong") < 100:
            await settle()
        assert client.connection.reading


async def test_repeated_uid_is_registered_once_and_not_delivered_again() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        (first,) = await bench.publish("s", "1", uid="u")
        (again,) = await bench.publish("s", "1", uid="u")
        assert (again.epoch, again.offset, again.duplicate) == (first.epoch, first.offset, True)
        assert client.seen() == ["welcome", "confirm_subscription", 1]


async def test_long_identifier_is_rejected_with_the_identifier(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bool]] = [("x" * 40, True), ("x" * 41, False), ("ü" * 21, False)]
    for name, granted in rows:
        with subtests.test(name=name, granted=granted):
            longest = len(public("x" * 40))
            async with Workbench(Limits(ping_interval=0, max_identifier=longest)) as bench:
                client = await bench.connect()
                wanted = json.dumps({"channel": "$pubsub", "stream_name": name}, ensure_ascii=False)
                await client.send(command="subscribe", identifier=wanted)
                reply = client.connection.replies()[-1]
                assert (reply["type"], reply["identifier"]) == (
                    "confirm_subscription" if granted else "reject_subscription",
                    wanted,
                )
                assert bench.stats.refusals[Refusal.IDENTIFIER] == (not granted)
                assert len(client.session.subscriptions) == granted


async def test_application_is_not_called_for_a_long_identifier() -> None:
    script = Script()
    async with Workbench(Limits(ping_interval=0), authenticators=(), application=script) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=json.dumps({"channel": "Chat", "padding": "x" * 2048}))
        assert client.seen() == ["welcome", "reject_subscription"]
        assert script.calls == []


async def test_restored_session_drops_identifiers_above_the_limit() -> None:
    async with Workbench(Limits(ping_interval=0, resume_timeout=3600, max_identifier=100)) as bench:
        granted = Subscribed(("s",))
        long, short = "l" * 101, "s" * 100
        await bench.backend.sessions.save("sid", SessionSnapshot("bo", {long: granted, short: granted}), 60)
        back = await bench.connect("sid")
        assert back.connection.replies()[0]["restored_ids"] == [short]


async def test_client_above_its_rate_for_too_long_is_closed() -> None:
    """Its socket is not read meanwhile, so a dead client would keep its place indefinitely."""
    limits = Limits(ping_interval=0, command_rate=1000, command_burst=1, command_backlog=0.02)
    async with Workbench(limits) as bench:
        client = await bench.connect()
        for _ in range(1000):
            client.session.receive(b'{"command":"pong"}')
        while client.connection.closed is None:
            await asyncio.sleep(0)
        assert client.connection.closed[0] == 1008
        assert bench.stats.refusals[Refusal.BACKLOG] == 1
        assert bench.report().connections == 0


async def test_burst_above_the_rate_is_delayed_and_handled() -> None:
    async with Workbench(Limits(ping_interval=0, command_rate=10_000, command_burst=1)) as bench:
        client = await bench.connect()
        for number in range(20):
            await client.send(command="subscribe", identifier=public(f"s{number}"))
        while len(client.session.subscriptions) < 20:
            await asyncio.sleep(0)
        assert client.connection.closed is None
