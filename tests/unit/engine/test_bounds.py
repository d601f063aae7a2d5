"""What a channel's answer may hold, and what its client may not do in another's name: replies, whispers, members' ids."""

from typing import Any

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.engine.bounds import MOST_STREAMS
from ropewalk.model.application import CommandResult, ConnectResult, PresenceUpdate, Reply, RestoreResult
from ropewalk.model.errors import ApplicationError
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.refusals import Refusal
from ropewalk.model.rules import StreamRules
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.test_conversation import PATIENT, bench_of, chatting, heard, said
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle

ANSWERED = Reply("add", b'"c-1"', b'{"sum":3}')


async def act(client: Client) -> None:
    await client.send(command="message", identifier=CHAT, data="{}")


def last(client: Client) -> dict[str, Any]:
    return client.connection.replies()[-1]


def presence(client: Client) -> list[Any]:
    return [event["message"] for event in client.connection.replies() if event.get("type") == "presence"]


# --- replies ----------------------------------------------------------------------------------------------------------


async def test_a_reply_comes_after_all_that_its_action_did_and_to_its_caller_alone() -> None:
    published = (Publication("s", b'"heard"'),)
    script = Script(
        CommandResult(streams=("s",)),
        CommandResult(streams=("s",)),
        CommandResult(transmissions=(said("x"),), publications=published, reply=ANSWERED),
    )
    async with bench_of(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await act(one)
        frame = next(reply for reply in one.connection.replies() if reply.get("type") == "reply")
        assert frame == {
            "type": "reply",
            "identifier": CHAT,
            "message": {"$reply_to": "c-1", "action": "add", "result": {"sum": 3}},
        }
        assert heard(one)[2:] in (["x", "reply", "heard"], ["x", "heard", "reply"])
        assert heard(two)[2:] == ["heard"]


async def test_an_error_is_told_as_one() -> None:
    failed, refused = ApplicationError("the database's password is wrong"), Reply("add", b"1", code="too_long", text="too long")
    failed.reply = Reply("add", b"1", code="failed")
    script = Script(CommandResult(), failed, CommandResult(False, reply=refused))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await act(client)
        assert last(client)["message"] == {"$reply_to": 1, "action": "add", "error": {"code": "failed"}}
        await act(client)
        error = {"code": "too_long", "message": "too long"}
        assert last(client)["message"] == {"$reply_to": 1, "action": "add", "error": error}
        assert bench.stats.commands_failed == 2


async def test_an_action_that_asks_for_too_much_is_answered_with_an_error() -> None:
    script = Script(
        CommandResult(),
        CommandResult(streams=("x" * 513,), reply=ANSWERED),
        CommandResult(reply=Reply("add", b"2", b'"%b"' % (b"x" * PATIENT.max_payload))),
    )
    async with bench_of(script) as bench:
        client = await chatting(bench)
        for name in ("c-1", 2):
            await act(client)
            assert last(client)["message"] == {"$reply_to": name, "action": "add", "error": {"code": "failed"}}


async def test_an_action_whose_broadcast_is_lost_is_no_success() -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(publications=(Publication("s", b"1"),), reply=ANSWERED))
    clock, journal = Clock(), FakeJournal(hold=True)
    backend = MemoryBackend(Rulebook(StreamRules()), clock, journal=journal)
    async with Workbench(PATIENT, authenticators=(), backend=backend, clock=clock, application=script) as bench:
        client = await chatting(bench)
        await act(client)
        await journal.refuse()
        await settle()
        assert last(client)["message"] == {"$reply_to": "c-1", "action": "add", "error": {"code": "unavailable"}}


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "hello", "{", '"a string"', "[1]", "null", '{"type":"ping"} {}', '{"a":"\ud800"}'])
async def test_a_transmission_that_no_client_could_read_is_refused(text: str) -> None:
    script = Script(CommandResult(transmissions=(text,)), CommandResult(), CommandResult(transmissions=(said("first"), text)))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        assert heard(client) == ["welcome", "reject_subscription"]
        await client.send(command="subscribe", identifier=CHAT)
        await act(client)
        assert heard(client)[2:] == ["confirm_subscription"]
        script.restore_result = RestoreResult((text,))
        client.session.lost()
        back = await bench.connect(client.sid)
        await settle()
        assert heard(back) == ["welcome"]
        script.connect_result = ConnectResult(True, "bo", (text,))
        assert (await bench.connect()).connection.closed == (1011, "Auth Error")


async def test_a_transmission_is_not_larger_than_a_message() -> None:
    script = Script(CommandResult(transmissions=(said("x" * PATIENT.max_payload),)))
    async with bench_of(script) as bench:
        assert heard(await chatting(bench)) == ["welcome", "reject_subscription"]


async def test_streams_are_bounded_by_subscription_and_not_by_answer() -> None:
    def streams(first: int, count: int) -> tuple[str, ...]:
        return tuple(f"s{number}" for number in range(first, first + count))

    most = MOST_STREAMS
    script = Script(
        CommandResult(streams=streams(0, most)),
        CommandResult(streams=("one more",)),
        CommandResult(streams=streams(0, most)),
        CommandResult(streams=("another",), stopped=("s0",)),
        CommandResult(streams=streams(most, most), stop_all=True),
    )
    async with bench_of(script) as bench:
        client = await chatting(bench)
        granted = client.session.subscriptions[CHAT]
        failed = []
        for _ in range(4):
            await act(client)
            failed.append(bench.stats.commands_failed)
            assert len(granted.granted.streams) == most
        assert failed == [1, 1, 1, 1], "only the one more is refused"


# --- whispers ---------------------------------------------------------------------------------------------------------


async def test_a_whisper_is_marked_where_the_application_says_who_whispers() -> None:
    marked = {"$w": "s", "$f": '"bo"'}
    script = Script(CommandResult(streams=("s",), own=marked), CommandResult(streams=("s",), own=marked))
    async with bench_of(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        for payload in ({"name": "ann", "text": "forged"}, None, {"$whisper": 1, "from": "ann"}):
            await one.send(command="whisper", identifier=CHAT, data=payload)
            assert last(two) == {"type": "whisper", "identifier": CHAT, "message": {"$whisper": payload, "from": "bo"}}


async def test_a_sender_that_is_no_json_is_text() -> None:
    marked = {"$w": "s", "$f": "bo } ,"}
    script = Script(CommandResult(streams=("s",), own=marked), CommandResult(streams=("s",), own=marked))
    async with bench_of(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await one.send(command="whisper", identifier=CHAT, data=1)
        assert last(two)["message"] == {"$whisper": 1, "from": "bo } ,"}


async def test_other_whispers_are_what_they_are_with_the_reference() -> None:
    script = Script(*[CommandResult(streams=("s",), own={"$w": "s"})] * 2)
    async with bench_of(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await one.send(command="whisper", identifier=CHAT, data={"typing": True})
        assert last(two) == {"identifier": CHAT, "message": {"typing": True}}
        for each in (one, two):
            await each.send(command="subscribe", identifier=public("open"))
        await one.send(command="whisper", identifier=public("open"), data="psst")
        assert last(two) == {"identifier": public("open"), "message": "psst"}


# --- members ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["declared", "seated"])
async def test_a_client_whom_the_application_knows_is_present_under_no_other_id(how: str) -> None:
    given = CommandResult(streams=("s",), own={"$p": "s", **({"$m": "bo"} if how == "declared" else {})})
    presence_update = PresenceUpdate(True, Member("bo")) if how == "seated" else None
    script = Script(
        CommandResult(streams=("s",), own={"$p": "s"}),
        CommandResult(streams=("s",), own=given.own, presence_update=presence_update),
    )
    async with bench_of(script) as bench:
        watcher = await chatting(bench)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=CHAT, presence={"id": "ann"})
        await client.send(command="join", identifier=CHAT, presence={"id": "admin"})
        await client.send(command="join", identifier=CHAT, presence={"id": "bo", "info": {"mood": "fine"}})
        await watcher.send(command="presence", identifier=CHAT)
        assert presence(watcher)[-1]["records"] == [{"info": {"mood": "fine"}, "id": "bo"}]
        assert {event["id"] for event in presence(watcher)[:-1]} == {"bo"}
        assert bench.stats.refusals == {Refusal.MEMBER_ID: 2}


async def test_the_id_that_the_application_gave_outlives_the_connection() -> None:
    script = Script(CommandResult(streams=("s",), own={"$p": "s"}, presence_update=PresenceUpdate(True, Member("bo"))))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        client.session.lost()
        back = await bench.connect(client.sid)
        await back.send(command="join", identifier=CHAT, presence={"id": "ann"})
        assert bench.stats.refusals == {Refusal.MEMBER_ID: 1}


async def test_who_can_be_present_no_longer_has_left() -> None:
    granted = CommandResult(streams=("s",), own={"$p": "s"}, presence_update=PresenceUpdate(True, Member("bo")))
    script = Script(CommandResult(streams=("s",)), granted, CommandResult(own={"$p": ""}))
    async with bench_of(script) as bench:
        watcher, client = await chatting(bench), await chatting(bench)
        await act(client)
        assert presence(watcher)[-1] == {"type": "leave", "id": "bo"}
        assert not client.session.members
