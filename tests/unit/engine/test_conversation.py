"""The application decides; the session carries it out, in order, and never leaves its client without an answer."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.backoff import Backoff
from ropewalk.core.rules import Rulebook
from ropewalk.engine import disconnect_queue
from ropewalk.model.application import Action, CommandResult, ConnectResult, PresenceUpdate, RestoreResult
from ropewalk.model.errors import ApplicationError, Unanswered, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.unit.engine.script import CHAT, NEWS, Script
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle

PATIENT = Limits(ping_interval=0, resume_timeout=3600, disconnect_rate=0)


def bench_of(script: Script, limits: Limits = PATIENT) -> Workbench:
    return Workbench(limits, authenticators=(), application=script)


def said(text: str) -> str:
    return json.dumps({"identifier": CHAT, "message": text})


def control(kind: str, identifier: str = CHAT) -> str:
    return json.dumps({"type": kind, "identifier": identifier})


async def chatting(bench: Workbench, cookie: str = "") -> Client:
    client = await bench.connect(cookie=cookie)
    await client.send(command="subscribe", identifier=CHAT)
    return client


def heard(client: Client) -> list[object]:
    """Types, and texts of messages, in order."""
    return [reply.get("type") or reply["message"] for reply in client.connection.replies()]


# --- connecting ------------------------------------------------------------------------------------------------------


async def test_an_accepted_client_is_welcomed_with_its_sid_whatever_the_application_said() -> None:
    script = Script()
    async with bench_of(script) as bench:
        plain = await bench.connect(cookie="user=bo")
        script.connect_result = ConnectResult(True, "bo", ('{"type":"note"}', '{"type":"welcome","motd":"hi"}'))
        custom = await bench.connect()
        assert plain.connection.replies() == [{"type": "welcome", "sid": plain.sid}]
        assert custom.connection.replies() == [{"type": "welcome", "motd": "hi", "sid": custom.sid}, {"type": "note"}]
        assert plain.session.ids == "bo"
        assert script.callers[0].headers == {"cookie": "user=bo"}
        assert script.callers[0].sid == plain.sid


async def test_a_refused_client_hears_the_applications_words_or_ours() -> None:
    script = Script()
    async with bench_of(script) as bench:
        script.connect_result = ConnectResult(
            False, transmissions=('{"type":"disconnect","reason":"unauthorized","reconnect":false}',)
        )
        told = await bench.connect()
        script.connect_result = ConnectResult(False)
        silent = await bench.connect()
        for client in (told, silent):
            assert client.connection.replies() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
            assert client.connection.closed == (1000, "Auth Failed")
        assert bench.stats.auth_failures == 2
        assert script.disconnect_calls == []


async def test_an_application_that_fails_at_a_connect_costs_that_client_its_connection_and_nothing_else() -> None:
    script = Script()
    async with bench_of(script) as bench:
        there = await chatting(bench)
        for error in (Unavailable("down"), ApplicationError("boom")):
            script.connect_result = error
            assert (await bench.connect()).connection.closed == (1011, "Auth Error")
        await bench.publish("s", "1")
        assert heard(there)[-1] == 1


async def test_a_client_that_waits_for_the_application_is_pinged_as_if_it_were_in() -> None:
    script = Script()
    async with bench_of(script, replace(PATIENT, ping_interval=0.01)) as bench:
        script.held = asyncio.Event()
        client = bench.open_connection()
        async with asyncio.timeout(10):
            while "ping" not in heard(client):
                await asyncio.sleep(0.01)
        assert "welcome" not in heard(client)
        script.held.set()
        async with asyncio.timeout(10):
            while "welcome" not in heard(client):
                await asyncio.sleep(0.01)


async def test_a_client_that_left_while_it_was_let_in_is_said_goodbye_to() -> None:
    script = Script()
    async with bench_of(script) as bench:
        script.held = asyncio.Event()
        client = bench.open_connection()
        await settle()
        client.session.lost()
        script.held.set()
        await settle()
    assert script.told == ["start", "connect", "disconnect", "stop"]
    assert script.disconnect_calls[0].context.ids == "bo"


# --- subscribing -----------------------------------------------------------------------------------------------------


async def test_what_is_transmitted_keeps_its_place_around_the_confirmation() -> None:
    script = Script(
        CommandResult(transmissions=(said("before"), control("confirm_subscription"), said("after")), streams=("s",))
    )
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await bench.publish("s", '"live"')
        assert heard(client) == ["welcome", "before", "confirm_subscription", "after", "live"]
        assert client.connection.replies()[2] == {"type": "confirm_subscription", "identifier": CHAT}


async def test_a_confirmation_tells_the_positions_of_the_applications_streams_to_those_who_ask() -> None:
    script = Script(CommandResult(transmissions=(control("confirm_subscription"),), streams=("a", "b")))
    async with bench_of(script) as bench:
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=CHAT)
        assert list(client.connection.replies()[-1]["streams"]) == ["a", "b"]


async def test_an_application_that_confirms_nothing_is_completed() -> None:
    script = Script(CommandResult(transmissions=(said("hello"),)), CommandResult(False, transmissions=(said("no"),)))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await client.send(command="subscribe", identifier=NEWS)
        assert heard(client) == ["welcome", "hello", "confirm_subscription", "no", "reject_subscription"]


async def test_an_error_on_subscribe_is_answered_with_a_rejection() -> None:
    script = Script(Unavailable("down"), ApplicationError("boom"))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await client.send(command="subscribe", identifier=NEWS)
        assert heard(client) == ["welcome", "reject_subscription", "reject_subscription"]
        assert client.session.subscriptions == {}
        assert client.connection.closed is None
        await client.send(command="subscribe", identifier=CHAT)
        assert heard(client)[-1] == "confirm_subscription"


async def test_a_repeat_that_came_before_a_rejection_is_not_asked_for_again() -> None:
    script = Script(CommandResult(False), CommandResult(False))
    async with bench_of(script) as bench:
        client = await bench.connect()
        script.held = asyncio.Event()
        for identifier in (CHAT, NEWS, CHAT, CHAT):
            client.session.receive(json.dumps({"command": "subscribe", "identifier": identifier}).encode())
        await settle()
        script.held.set()
        await settle()
        assert heard(client) == ["welcome", "reject_subscription", "reject_subscription"]
        assert [call.identifier for call in script.calls] == [CHAT, NEWS]
        await client.send(command="subscribe", identifier=CHAT)
        assert heard(client)[-1] == "confirm_subscription"


async def test_many_streams_and_history_of_all_of_them() -> None:
    script = Script(CommandResult(streams=("a", "b", "a")))
    async with bench_of(script) as bench:
        await bench.publish("a", '"a1"')
        await bench.publish("b", '"b1"')
        client = await bench.connect()
        await client.send(command="subscribe", identifier=CHAT, history={"since": 1})
        await bench.publish("b", '"b2"')
        assert heard(client) == ["welcome", "confirm_subscription", "a1", "b1", "confirm_history", "b2"]


async def test_a_gap_in_one_of_many_streams_is_said_and_the_others_join_up() -> None:
    script = Script(CommandResult(streams=("a", "b")))
    async with bench_of(script) as bench:
        (first, *_) = await bench.publish("a", '"a1"', '"a2"')
        await bench.publish("b", '"b1"')
        client = await bench.connect()
        streams = {"a": {"epoch": first.epoch, "offset": 1}, "b": {"epoch": "another", "offset": 7}}
        await client.send(command="subscribe", identifier=CHAT, history={"streams": streams})
        assert heard(client) == ["welcome", "confirm_subscription", "a2", "reject_history", "b1"]
        assert list(client.connection.replies()[-2]["streams"]) == ["b"]
        await bench.publish("b", '"b2"')
        assert heard(client)[-1] == "b2"


async def test_the_servers_own_channels_are_answered_without_the_application() -> None:
    script = Script()
    async with bench_of(script) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("open"))
        await client.send(command="unsubscribe", identifier=public("open"))
        assert script.calls == []


async def test_an_answer_with_what_is_too_large_is_a_failure_of_the_application() -> None:
    long = "x" * 513
    script = Script(
        CommandResult(streams=(long,)),
        CommandResult(streams=("",)),
        CommandResult(streams=tuple(str(number) for number in range(1001))),
        CommandResult(publications=(Publication(long, b"1"),)),
        CommandResult(publications=(Publication("s", b"1" * (1 << 20) + b"1"),)),
        CommandResult(own={"key": "x" * 65536}),
        CommandResult(presence_update=PresenceUpdate(True, Member("bo", b"1" * 4097)), own={"$p": "s"}),
    )
    async with bench_of(script) as bench:
        client = await bench.connect()
        for _ in range(7):
            await client.send(command="subscribe", identifier=CHAT)
        assert heard(client) == ["welcome", *["reject_subscription"] * 7]
        assert bench.stats.publications == 0


async def test_state_does_not_grow_beyond_its_bound_by_many_small_answers() -> None:
    script = Script(CommandResult(), *(CommandResult(state={f"key {number}": "x" * 20_000}) for number in range(4)))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        for _ in range(4):
            await client.send(command="message", identifier=CHAT, data="{}")
        assert script.calls[-1].context.state.keys() == {"key 0", "key 1", "key 2"}
        assert bench.stats.commands_failed == 1
        script.connect_result = ConnectResult(True, "x" * 65536)
        assert (await bench.connect()).connection.closed == (1011, "Auth Error")


async def test_what_an_application_publishes_by_itself_or_at_a_return_is_bounded_too() -> None:
    script = Script()
    too_long = Publication("x" * 513, b"1")
    script.restore_result = RestoreResult((said("never said"),), publications=(too_long,))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        client.session.lost()
        back = await bench.connect(client.sid)
        await settle()
        assert heard(back) == ["welcome"]
        with pytest.raises(ApplicationError, match="longer than 512"):
            await script.publisher.publish([too_long])
        assert bench.stats.publications == 0


async def test_a_backend_that_is_down_costs_what_was_published_and_not_the_session() -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(publications=(Publication("s", b"1"),)))
    clock, journal = Clock(), FakeJournal(hold=True)
    backend = MemoryBackend(Rulebook(StreamRules()), clock, journal=journal)
    async with Workbench(PATIENT, authenticators=(), backend=backend, clock=clock, application=script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        await journal.refuse()
        await client.send(command="ping")
        assert heard(client) == ["welcome", "confirm_subscription", "pong"]
        assert bench.stats.commands_failed == 1


async def test_an_action_of_the_servers_own_channel_is_heard_and_leaves_it_as_it_is() -> None:
    script = Script(CommandResult(streams=("x",), stop_all=True, own={"$w": ""}, transmissions=(said("done"),)))
    async with bench_of(script) as bench:
        client, other = await bench.connect(), await bench.connect()
        for each in (client, other):
            await each.send(command="subscribe", identifier=public("open"))
        await client.send(command="message", identifier=public("open"), data="{}")
        await client.send(command="whisper", identifier=public("open"), data="psst")
        await bench.publish("open", '"live"')
        assert heard(client)[2:] == ["done", "live"]
        assert heard(other)[2:] == ["psst", "live"]
        await client.send(command="unsubscribe", identifier=public("open"))
        assert script.told == ["start", "connect", "connect", "message"]


# --- actions ---------------------------------------------------------------------------------------------------------


async def test_an_action_reaches_the_application_with_all_state_and_changes_it() -> None:
    script = Script(
        CommandResult(streams=("s",), state={"user": "7", "gone": "x"}, own={"room": "1"}),
        CommandResult(state={"gone": "", "seen": "1"}, own={"room": "2"}, transmissions=(said("done"),)),
    )
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data='{"action":"speak"}')
        await client.send(command="message", identifier=CHAT, data="{}")
        first, second = script.calls[1:]
        assert (first.action, first.data, first.state) == (Action.PERFORM, '{"action":"speak"}', {"room": "1"})
        assert first.context.state == {"user": "7", "gone": "x"}
        assert second.context.state == {"user": "7", "seen": "1"}
        assert second.state == {"room": "2"}
        assert heard(client)[-1] == "done"


async def test_an_action_may_add_and_stop_streams() -> None:
    script = Script(
        CommandResult(streams=("a", "b")), CommandResult(streams=("c",), stopped=("a",)), CommandResult(stop_all=True)
    )
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        for stream in "abc":
            await bench.publish(stream, f'"{stream}"')
        assert heard(client)[2:] == ["b", "c"]
        await client.send(command="message", identifier=CHAT, data="{}")
        for stream in "abc":
            await bench.publish(stream, f'"{stream}"')
        assert heard(client)[2:] == ["b", "c"]
        assert bench.report().streams_listened == 0


async def test_history_of_a_subscription_follows_its_streams() -> None:
    script = Script(CommandResult(streams=("a", "b")), CommandResult(streams=("c",), stopped=("a",)))
    async with bench_of(script) as bench:
        for stream in "abc":
            await bench.publish(stream, f'"old {stream}"')
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        await client.send(command="history", identifier=CHAT, history={"since": 1})
        assert heard(client)[2:] == ["old b", "old c", "confirm_history"]


async def test_an_action_that_fails_is_counted_and_the_session_goes_on() -> None:
    script = Script(CommandResult(streams=("s",)), ApplicationError("boom"), Unavailable("down"))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        await client.send(command="message", identifier=CHAT, data="{}")
        await client.send(command="message", identifier=NEWS, data="{}")
        assert bench.stats.commands_failed == 3
        await bench.publish("s", "1")
        assert heard(client) == ["welcome", "confirm_subscription", 1]


async def test_the_application_publishes_after_its_client_has_joined() -> None:
    script = Script(CommandResult(streams=("s",), publications=(Publication("s", b'"bo came"'),)))
    async with bench_of(script) as bench:
        assert heard(await chatting(bench)) == ["welcome", "confirm_subscription", "bo came"]


async def test_whispers_and_presence_go_where_the_application_says() -> None:
    join = PresenceUpdate(True, Member("bo", b'{"name":"Bo"}'))
    script = Script(
        CommandResult(streams=("s",), own={"$w": "s", "$p": "s"}),
        CommandResult(streams=("s",), own={"$w": "s", "$p": "s"}, presence_update=join),
        CommandResult(presence_update=PresenceUpdate(False, Member("bo"))),
    )
    async with bench_of(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await one.send(command="whisper", identifier=CHAT, data="psst")
        assert heard(two)[-1] == "psst"
        assert [event["message"] for event in one.connection.replies() if event.get("type") == "presence"] == [
            {"type": "join", "info": {"name": "Bo"}, "id": "bo"}
        ]
        await two.send(command="message", identifier=CHAT, data="{}")
        assert one.connection.replies()[-1]["message"] == {"type": "leave", "id": "bo"}


async def test_the_application_may_close_the_connection_after_what_it_said() -> None:
    script = Script(CommandResult(streams=("s",), transmissions=(said("bye"),), disconnect=True))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        assert heard(client) == ["welcome", "bye", "confirm_subscription"]
        assert client.connection.closed == (1000, "Closed by the application")
        assert "restored" not in (await bench.connect(client.sid)).connection.replies()[0]
    assert list(script.disconnect_calls[0].subscriptions) == [CHAT]


async def test_unsubscribing_is_told_with_the_subscriptions_state() -> None:
    script = Script(CommandResult(streams=("s",), own={"room": "1"}))
    async with bench_of(script) as bench:
        client = await chatting(bench)
        await client.send(command="unsubscribe", identifier=CHAT)
        await bench.publish("s", "1")
        assert (script.calls[-1].action, script.calls[-1].state) == (Action.UNSUBSCRIBE, {"room": "1"})
        assert heard(client) == ["welcome", "confirm_subscription"]


async def test_a_slow_answer_keeps_its_own_session_waiting_in_order_and_nobody_else() -> None:
    script = Script()
    async with bench_of(script) as bench:
        slow, other = await chatting(bench), await chatting(bench)
        script.held = asyncio.Event()
        await slow.send(command="message", identifier=CHAT, data="{}")
        await slow.send(command="ping")
        await other.send(command="ping")
        await bench.publish("s", "1")
        assert heard(slow) == ["welcome", "confirm_subscription", 1]
        assert heard(other) == ["welcome", "confirm_subscription", "pong", 1]
        assert bench.node.health() == ["the application is down"]
        script.held.set()
        await settle()
        assert heard(slow)[-1] == "pong"
        script.held = None


# --- resuming and leaving --------------------------------------------------------------------------------------------


async def test_a_return_is_told_once_and_no_disconnect_call_before_the_session_is_gone_for_good() -> None:
    script = Script(CommandResult(streams=("s",), state={"user": "7"}, own={"room": "1"}))
    script.restore_result = RestoreResult(
        (said("welcome back"),), {"returns": "1"}, {CHAT: {"room": "2"}}, (Publication("s", b'"back"'),)
    )
    async with bench_of(script) as bench:
        client = await chatting(bench, cookie="user=bo")
        client.session.lost()
        back = await bench.connect(client.sid, cookie="user=bo")
        assert heard(back)[:2] == ["welcome", "welcome back"]
        (restore_call,) = script.restore_calls
        assert (restore_call.former, restore_call.context.sid) == (client.sid, back.sid)
        assert restore_call.context.headers == {"cookie": "user=bo"}
        assert (restore_call.context.state, restore_call.subscriptions) == ({"user": "7"}, {CHAT: {"room": "1"}})
        await back.send(command="message", identifier=CHAT, data="{}")
        assert (script.calls[-1].context.state, script.calls[-1].state) == ({"user": "7", "returns": "1"}, {"room": "2"})
        back.session.lost()
        await settle()
        await bench.node.upkeep()
        assert script.disconnect_calls == []
        bench.clock.now += PATIENT.sessions_ttl
        await bench.node.upkeep()
        await settle()
        assert script.told[1:] == ["connect", "subscribe", "restored", "message", "disconnect"]
        assert script.disconnect_calls[0].subscriptions == {CHAT: {"room": "2"}}
        assert script.disconnect_calls[0].context.sid == back.sid


async def test_an_application_that_fails_at_a_return_does_not_keep_the_client_out() -> None:
    script = Script()
    script.restore_result = Unavailable("down")
    async with bench_of(script) as bench:
        client = await chatting(bench)
        client.session.lost()
        back = await bench.connect(client.sid)
        await back.send(command="history", identifier=CHAT, history={"streams": {}})
        assert heard(back) == ["welcome", "confirm_history"]


async def test_who_cannot_come_back_is_said_goodbye_to_at_once() -> None:
    script = Script()
    async with bench_of(script) as bench:
        base = await bench.connect(extended=False)
        base.session.lost()
        closed_page = await bench.connect()
        closed_page.session.lost(going_away=True)
        await settle()
        assert [disconnect_call.context.sid for disconnect_call in script.disconnect_calls] == [base.sid, closed_page.sid]


async def test_a_session_that_the_application_never_heard_of_is_not_said_goodbye_to() -> None:
    script = Script()
    async with Workbench(PATIENT, application=script) as bench:
        client = await bench.connect(extended=False)
        client.session.lost()
    assert script.told == ["start", "stop"]


async def test_by_settings_every_session_or_none_is_said_goodbye_to() -> None:
    for mode, expected in (("always", ["start", "disconnect", "stop"]), ("never", ["start", "subscribe", "stop"])):
        script = Script()
        limits = Limits(ping_interval=0, disconnect_mode=mode)
        async with Workbench(limits, application=script) as bench:
            client = await bench.connect(extended=False)
            if mode == "never":
                await client.send(command="subscribe", identifier=CHAT)
            client.session.lost()
        assert script.told == expected


async def test_what_is_granted_while_the_client_leaves_is_part_of_the_goodbye() -> None:
    script = Script()
    async with bench_of(script) as bench:
        client = await bench.connect(extended=False)
        script.held = asyncio.Event()
        await client.send(command="subscribe", identifier=CHAT)
        client.session.lost()
        await settle()
        assert script.disconnect_calls == []
        script.held.set()
        await settle()
        assert list(script.disconnect_calls[0].subscriptions) == [CHAT]


async def test_a_client_that_takes_over_its_old_connection_is_a_return_without_a_disconnect_call() -> None:
    script = Script()
    async with bench_of(script) as bench:
        client = await chatting(bench)
        back = await bench.connect(client.sid)
        await settle()
        assert back.connection.replies()[0]["restored_ids"] == [CHAT]
        assert script.told == ["start", "connect", "subscribe", "restored"]


async def test_at_the_end_of_the_process_all_who_were_there_are_said_goodbye_to() -> None:
    script = Script()
    async with bench_of(script) as bench:
        for _ in range(3):
            await chatting(bench)
        (await chatting(bench)).session.lost()
    assert script.told[-5:] == ["disconnect"] * 4 + ["stop"]


async def test_the_end_waits_for_a_disconnect_call_that_is_being_said() -> None:
    script = Script()
    async with bench_of(script) as bench:
        (await bench.connect(extended=False)).session.lost()
        script.held = asyncio.Event()
        await settle()
        ending = asyncio.create_task(bench.node.stop())
        await settle()
        assert script.told == ["start", "connect"]
        script.held.set()
        await ending
        assert script.told == ["start", "connect", "disconnect", "stop"]


async def test_what_cannot_be_said_at_the_end_is_counted() -> None:
    script = Script()
    async with bench_of(script) as bench:
        await bench.connect(extended=False)
        script.refused_disconnect_calls.extend([Unavailable("down"), Unavailable("down")])
    assert script.told == ["start", "connect", "stop"]
    assert bench.stats.app_disconnects_dropped == 1


async def test_a_disconnect_call_that_fails_is_not_repeated_and_does_not_hold_up_the_next() -> None:
    script = Script()
    script.refused_disconnect_calls.append(ApplicationError("boom"))
    async with bench_of(script) as bench:
        for _ in range(2):
            (await bench.connect(extended=False)).session.lost()
            await settle()
    assert len(script.disconnect_calls) == 1


async def test_a_disconnect_call_is_repeated_while_nobody_is_there_but_not_for_ever_where_somebody_may_have_heard_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disconnect_queue, "BETWEEN_ATTEMPTS", Backoff(0.0, 0.0))
    script = Script()
    script.refused_disconnect_calls.extend([Unavailable("nobody there")] * 5 + [Unanswered("late")] * 2)
    async with bench_of(script) as bench:
        (await bench.connect(extended=False)).session.lost()
        while script.refused_disconnect_calls:
            await settle()
        await settle()
        assert len(script.disconnect_calls) == 1
        script.refused_disconnect_calls.extend([Unanswered("late")] * 3)
        (await bench.connect(extended=False)).session.lost()
        while script.refused_disconnect_calls:
            await settle()
        await settle()
        assert (len(script.disconnect_calls), bench.stats.app_disconnects_dropped) == (1, 1)


async def test_disconnect_calls_beyond_the_bound_are_dropped_and_counted() -> None:
    script = Script()
    async with bench_of(script, Limits(ping_interval=0, disconnect_backlog=1)) as bench:
        clients = [await bench.connect(extended=False) for _ in range(12)]
        for client in clients:
            bench.node.disconnect_queue.put(client.sid, client.session.snapshot())
        assert bench.stats.app_disconnects_dropped == 11
