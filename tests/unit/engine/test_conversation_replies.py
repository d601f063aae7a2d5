"""Replies to actions, senders of whispers, and member ids given by the application."""

from typing import Any

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.model.application import CommandResult, PresenceUpdate, Reply
from ropewalk.model.errors import ApplicationError
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.refusals import Refusal
from ropewalk.model.rules import StreamRules
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.unit.engine.conversations import PATIENT, chatting, make_bench, message_text, received
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle

ANSWERED = Reply("add", b'"c-1"', b'{"sum":3}')


async def act(client: Client) -> None:
    await client.send(command="message", identifier=CHAT, data="{}")


def last(client: Client) -> dict[str, Any]:
    return client.connection.replies()[-1]


def presence(client: Client) -> list[Any]:
    return [event["message"] for event in client.connection.replies() if event.get("type") == "presence"]


async def test_reply_follows_the_effects_of_its_action_and_goes_to_the_caller_only() -> None:
    published = (Publication("s", b'"received"'),)
    script = Script(
        CommandResult(streams=("s",)),
        CommandResult(streams=("s",)),
        CommandResult(transmissions=(message_text("x"),), publications=published, reply=ANSWERED),
    )
    async with make_bench(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await act(one)
        frame = next(reply for reply in one.connection.replies() if reply.get("type") == "reply")
        assert frame == {
            "type": "reply",
            "identifier": CHAT,
            "message": {"$reply_to": "c-1", "action": "add", "result": {"sum": 3}},
        }
        assert received(one)[2:] in (["x", "reply", "received"], ["x", "received", "reply"])
        assert received(two)[2:] == ["received"]


async def test_failed_action_is_answered_with_an_error() -> None:
    failed, refused = ApplicationError("the database's password is wrong"), Reply("add", b"1", code="too_long", text="too long")
    failed.reply = Reply("add", b"1", code="failed")
    script = Script(CommandResult(), failed, CommandResult(False, reply=refused))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await act(client)
        assert last(client)["message"] == {"$reply_to": 1, "action": "add", "error": {"code": "failed"}}
        await act(client)
        error = {"code": "too_long", "message": "too long"}
        assert last(client)["message"] == {"$reply_to": 1, "action": "add", "error": error}
        assert bench.stats.commands_failed == 2


async def test_action_that_exceeds_a_limit_is_answered_with_an_error() -> None:
    script = Script(
        CommandResult(),
        CommandResult(streams=("x" * 513,), reply=ANSWERED),
        CommandResult(reply=Reply("add", b"2", b'"%b"' % (b"x" * PATIENT.max_payload))),
    )
    async with make_bench(script) as bench:
        client = await chatting(bench)
        for name in ("c-1", 2):
            await act(client)
            assert last(client)["message"] == {"$reply_to": name, "action": "add", "error": {"code": "failed"}}


async def test_action_whose_broadcast_is_lost_is_answered_with_an_error() -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(publications=(Publication("s", b"1"),), reply=ANSWERED))
    clock, journal = Clock(), FakeJournal(hold=True)
    backend = MemoryBackend(Rulebook(StreamRules()), clock, journal=journal)
    async with Workbench(PATIENT, authenticators=(), backend=backend, clock=clock, application=script) as bench:
        client = await chatting(bench)
        await act(client)
        await journal.refuse()
        await settle()
        assert last(client)["message"] == {"$reply_to": "c-1", "action": "add", "error": {"code": "unavailable"}}


async def test_whisper_is_wrapped_with_the_sender_given_by_the_application() -> None:
    marked = {"$w": "s", "$f": '"bo"'}
    script = Script(CommandResult(streams=("s",), own=marked), CommandResult(streams=("s",), own=marked))
    async with make_bench(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        for payload in ({"name": "ann", "text": "forged"}, None, {"$whisper": 1, "from": "ann"}):
            await one.send(command="whisper", identifier=CHAT, data=payload)
            assert last(two) == {"type": "whisper", "identifier": CHAT, "message": {"$whisper": payload, "from": "bo"}}


async def test_sender_that_is_not_json_is_sent_as_text() -> None:
    marked = {"$w": "s", "$f": "bo } ,"}
    script = Script(CommandResult(streams=("s",), own=marked), CommandResult(streams=("s",), own=marked))
    async with make_bench(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await one.send(command="whisper", identifier=CHAT, data=1)
        assert last(two)["message"] == {"$whisper": 1, "from": "bo } ,"}


async def test_whispers_without_a_sender_are_sent_unchanged() -> None:
    script = Script(*[CommandResult(streams=("s",), own={"$w": "s"})] * 2)
    async with make_bench(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await one.send(command="whisper", identifier=CHAT, data={"typing": True})
        assert last(two) == {"identifier": CHAT, "message": {"typing": True}}
        for each in (one, two):
            await each.send(command="subscribe", identifier=public("open"))
        await one.send(command="whisper", identifier=public("open"), data="psst")
        assert last(two) == {"identifier": public("open"), "message": "psst"}


@pytest.mark.parametrize("method", ["declared", "seated"])
async def test_client_known_to_the_application_cannot_join_with_another_id(method: str) -> None:
    given = CommandResult(streams=("s",), own={"$p": "s", **({"$m": "bo"} if method == "declared" else {})})
    presence_update = PresenceUpdate(True, Member("bo")) if method == "seated" else None
    script = Script(
        CommandResult(streams=("s",), own={"$p": "s"}),
        CommandResult(streams=("s",), own=given.own, presence_update=presence_update),
    )
    async with make_bench(script) as bench:
        watcher = await chatting(bench)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=CHAT, presence={"id": "ann"})
        await client.send(command="join", identifier=CHAT, presence={"id": "admin"})
        await client.send(command="join", identifier=CHAT, presence={"id": "bo", "info": {"mood": "fine"}})
        await watcher.send(command="presence", identifier=CHAT)
        assert presence(watcher)[-1]["records"] == [{"info": {"mood": "fine"}, "id": "bo"}]
        assert {event["id"] for event in presence(watcher)[:-1]} == {"bo"}
        assert bench.stats.refusals == {Refusal.MEMBER_ID: 2}


async def test_member_id_given_by_the_application_survives_a_reconnect() -> None:
    script = Script(CommandResult(streams=("s",), own={"$p": "s"}, presence_update=PresenceUpdate(True, Member("bo"))))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        await back.send(command="join", identifier=CHAT, presence={"id": "ann"})
        assert bench.stats.refusals == {Refusal.MEMBER_ID: 1}


async def test_member_leaves_when_presence_is_revoked() -> None:
    granted = CommandResult(streams=("s",), own={"$p": "s"}, presence_update=PresenceUpdate(True, Member("bo")))
    script = Script(CommandResult(streams=("s",)), granted, CommandResult(own={"$p": ""}))
    async with make_bench(script) as bench:
        watcher, client = await chatting(bench), await chatting(bench)
        await act(client)
        assert presence(watcher)[-1] == {"type": "leave", "id": "bo"}
        assert not client.session.members
