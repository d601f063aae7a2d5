"""Sessions with an application: its results are applied in order, and every command is answered."""

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
from tests.unit.engine.conversations import PATIENT, chatting, make_bench, message_text, received
from tests.unit.engine.script import CHAT, NEWS, Script
from tests.unit.engine.workbench import Clock, Workbench, public, settle


def control(kind: str, identifier: str = CHAT) -> str:
    return json.dumps({"type": kind, "identifier": identifier})


# --- connecting ------------------------------------------------------------------------------------------------------


async def test_accepted_client_is_welcomed_with_its_sid_and_the_fields_of_the_application() -> None:
    script = Script()
    async with make_bench(script) as bench:
        plain = await bench.connect(cookie="user=bo")
        script.connect_result = ConnectResult(True, "bo", ('{"type":"note"}', '{"type":"welcome","motd":"hi"}'))
        custom = await bench.connect()
        assert plain.connection.replies() == [{"type": "welcome", "sid": plain.sid}]
        assert custom.connection.replies() == [{"type": "welcome", "motd": "hi", "sid": custom.sid}, {"type": "note"}]
        assert plain.session.ids == "bo"
        assert script.callers[0].headers == {"cookie": "user=bo"}
        assert script.callers[0].sid == plain.sid


async def test_refused_client_receives_the_disconnect_of_the_application_or_the_default() -> None:
    script = Script()
    async with make_bench(script) as bench:
        script.connect_result = ConnectResult(
            False, transmissions=('{"type":"disconnect","reason":"unauthorized","reconnect":false}',)
        )
        informed = await bench.connect()
        script.connect_result = ConnectResult(False)
        default = await bench.connect()
        for client in (informed, default):
            assert client.connection.replies() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
            assert client.connection.closed == (1000, "Auth Failed")
        assert bench.stats.auth_failures == 2
        assert script.disconnect_calls == []


async def test_failed_connect_call_closes_only_that_connection() -> None:
    script = Script()
    async with make_bench(script) as bench:
        connected = await chatting(bench)
        for error in (Unavailable("down"), ApplicationError("boom")):
            script.connect_result = error
            assert (await bench.connect()).connection.closed == (1011, "Auth Error")
        await bench.publish("s", "1")
        assert received(connected)[-1] == 1


async def test_client_is_pinged_while_the_application_decides() -> None:
    script = Script()
    async with make_bench(script, replace(PATIENT, ping_interval=0.01)) as bench:
        script.held = asyncio.Event()
        client = bench.open_connection()
        async with asyncio.timeout(60):
            while "ping" not in received(client):
                await asyncio.sleep(0.01)
        assert "welcome" not in received(client)
        script.held.set()
        async with asyncio.timeout(60):
            while "welcome" not in received(client):
                await asyncio.sleep(0.01)


async def test_disconnect_is_called_for_a_client_that_left_during_connect() -> None:
    script = Script()
    async with make_bench(script) as bench:
        script.held = asyncio.Event()
        client = bench.open_connection()
        await settle()
        client.session.connection_lost()
        script.held.set()
        await settle()
    assert script.events == ["start", "connect", "disconnect", "stop"]
    assert script.disconnect_calls[0].context.ids == "bo"


# --- subscribing -----------------------------------------------------------------------------------------------------


async def test_transmissions_keep_their_place_around_the_confirmation() -> None:
    script = Script(
        CommandResult(
            transmissions=(message_text("before"), control("confirm_subscription"), message_text("after")), streams=("s",)
        )
    )
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await bench.publish("s", '"live"')
        assert received(client) == ["welcome", "before", "confirm_subscription", "after", "live"]
        assert client.connection.replies()[2] == {"type": "confirm_subscription", "identifier": CHAT}


async def test_confirmation_has_positions_if_requested() -> None:
    script = Script(CommandResult(transmissions=(control("confirm_subscription"),), streams=("a", "b")))
    async with make_bench(script) as bench:
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=CHAT)
        assert list(client.connection.replies()[-1]["streams"]) == ["a", "b"]


async def test_missing_confirmation_or_rejection_is_added() -> None:
    script = Script(
        CommandResult(transmissions=(message_text("hello"),)), CommandResult(False, transmissions=(message_text("no"),))
    )
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await client.send(command="subscribe", identifier=NEWS)
        assert received(client) == ["welcome", "hello", "confirm_subscription", "no", "reject_subscription"]


async def test_failed_subscribe_call_is_answered_with_a_rejection() -> None:
    script = Script(Unavailable("down"), ApplicationError("boom"))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await client.send(command="subscribe", identifier=NEWS)
        assert received(client) == ["welcome", "reject_subscription", "reject_subscription"]
        assert client.session.subscriptions == {}
        assert client.connection.closed is None
        await client.send(command="subscribe", identifier=CHAT)
        assert received(client)[-1] == "confirm_subscription"


async def test_pending_repeat_of_a_rejected_subscribe_is_not_sent_to_the_application() -> None:
    script = Script(CommandResult(False), CommandResult(False))
    async with make_bench(script) as bench:
        client = await bench.connect()
        script.held = asyncio.Event()
        for identifier in (CHAT, NEWS, CHAT, CHAT):
            client.session.receive(json.dumps({"command": "subscribe", "identifier": identifier}).encode())
        await settle()
        script.held.set()
        await settle()
        assert received(client) == ["welcome", "reject_subscription", "reject_subscription"]
        assert [call.identifier for call in script.calls] == [CHAT, NEWS]
        await client.send(command="subscribe", identifier=CHAT)
        assert received(client)[-1] == "confirm_subscription"


async def test_history_is_replayed_for_all_streams_of_a_subscription() -> None:
    script = Script(CommandResult(streams=("a", "b", "a")))
    async with make_bench(script) as bench:
        await bench.publish("a", '"a1"')
        await bench.publish("b", '"b1"')
        client = await bench.connect()
        await client.send(command="subscribe", identifier=CHAT, history={"since": 1})
        await bench.publish("b", '"b2"')
        assert received(client) == ["welcome", "confirm_subscription", "a1", "b1", "confirm_history", "b2"]


async def test_gap_in_one_stream_is_reported_and_the_others_are_replayed() -> None:
    script = Script(CommandResult(streams=("a", "b")))
    async with make_bench(script) as bench:
        (first, *_) = await bench.publish("a", '"a1"', '"a2"')
        await bench.publish("b", '"b1"')
        client = await bench.connect()
        streams = {"a": {"epoch": first.epoch, "offset": 1}, "b": {"epoch": "another", "offset": 7}}
        await client.send(command="subscribe", identifier=CHAT, history={"streams": streams})
        assert received(client) == ["welcome", "confirm_subscription", "a2", "reject_history", "b1"]
        assert list(client.connection.replies()[-2]["streams"]) == ["b"]
        await bench.publish("b", '"b2"')
        assert received(client)[-1] == "b2"


async def test_builtin_channels_do_not_call_the_application() -> None:
    script = Script()
    async with make_bench(script) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("open"))
        await client.send(command="unsubscribe", identifier=public("open"))
        assert script.calls == []


async def test_oversized_result_is_an_application_error() -> None:
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
    async with make_bench(script) as bench:
        client = await bench.connect()
        for _ in range(7):
            await client.send(command="subscribe", identifier=CHAT)
        assert received(client) == ["welcome", *["reject_subscription"] * 7]
        assert bench.stats.publications == 0


async def test_total_state_of_a_session_is_limited() -> None:
    script = Script(CommandResult(), *(CommandResult(state={f"key {number}": "x" * 20_000}) for number in range(4)))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        for _ in range(4):
            await client.send(command="message", identifier=CHAT, data="{}")
        assert script.calls[-1].context.state.keys() == {"key 0", "key 1", "key 2"}
        assert bench.stats.commands_failed == 1
        script.connect_result = ConnectResult(True, "x" * 65536)
        assert (await bench.connect()).connection.closed == (1011, "Auth Error")


async def test_publications_of_restore_calls_and_the_publisher_are_limited() -> None:
    script = Script()
    too_long = Publication("x" * 513, b"1")
    script.restore_result = RestoreResult((message_text("never sent"),), publications=(too_long,))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        await settle()
        assert received(back) == ["welcome"]
        with pytest.raises(ApplicationError, match="longer than 512"):
            await script.publisher.publish([too_long])
        assert bench.stats.publications == 0


async def test_backend_failure_loses_the_publication_but_keeps_the_session() -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(publications=(Publication("s", b"1"),)))
    clock, journal = Clock(), FakeJournal(hold=True)
    backend = MemoryBackend(Rulebook(StreamRules()), clock, journal=journal)
    async with Workbench(PATIENT, authenticators=(), backend=backend, clock=clock, application=script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        await journal.refuse()
        await client.send(command="ping")
        assert received(client) == ["welcome", "confirm_subscription", "pong"]
        assert bench.stats.commands_failed == 1


async def test_action_on_a_builtin_channel_cannot_change_it() -> None:
    script = Script(CommandResult(streams=("x",), stop_all=True, own={"$w": ""}, transmissions=(message_text("done"),)))
    async with make_bench(script) as bench:
        client, other = await bench.connect(), await bench.connect()
        for each in (client, other):
            await each.send(command="subscribe", identifier=public("open"))
        await client.send(command="message", identifier=public("open"), data="{}")
        await client.send(command="whisper", identifier=public("open"), data="psst")
        await bench.publish("open", '"live"')
        assert received(client)[2:] == ["done", "live"]
        assert received(other)[2:] == ["psst", "live"]
        await client.send(command="unsubscribe", identifier=public("open"))
        assert script.events == ["start", "connect", "connect", "message"]


# --- actions ---------------------------------------------------------------------------------------------------------


async def test_action_receives_all_state_and_can_change_it() -> None:
    script = Script(
        CommandResult(streams=("s",), state={"user": "7", "gone": "x"}, own={"room": "1"}),
        CommandResult(state={"gone": "", "seen": "1"}, own={"room": "2"}, transmissions=(message_text("done"),)),
    )
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data='{"action":"speak"}')
        await client.send(command="message", identifier=CHAT, data="{}")
        first, second = script.calls[1:]
        assert (first.action, first.data, first.state) == (Action.PERFORM, '{"action":"speak"}', {"room": "1"})
        assert first.context.state == {"user": "7", "gone": "x"}
        assert second.context.state == {"user": "7", "seen": "1"}
        assert second.state == {"room": "2"}
        assert received(client)[-1] == "done"


async def test_action_can_add_and_stop_streams() -> None:
    script = Script(
        CommandResult(streams=("a", "b")), CommandResult(streams=("c",), stopped=("a",)), CommandResult(stop_all=True)
    )
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        for stream in "abc":
            await bench.publish(stream, f'"{stream}"')
        assert received(client)[2:] == ["b", "c"]
        await client.send(command="message", identifier=CHAT, data="{}")
        for stream in "abc":
            await bench.publish(stream, f'"{stream}"')
        assert received(client)[2:] == ["b", "c"]
        assert bench.report().streams_listened == 0


async def test_history_follows_the_current_streams_of_a_subscription() -> None:
    script = Script(CommandResult(streams=("a", "b")), CommandResult(streams=("c",), stopped=("a",)))
    async with make_bench(script) as bench:
        for stream in "abc":
            await bench.publish(stream, f'"old {stream}"')
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        await client.send(command="history", identifier=CHAT, history={"since": 1})
        assert received(client)[2:] == ["old b", "old c", "confirm_history"]


async def test_failed_action_is_counted_and_keeps_the_session() -> None:
    script = Script(CommandResult(streams=("s",)), ApplicationError("boom"), Unavailable("down"))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await client.send(command="message", identifier=CHAT, data="{}")
        await client.send(command="message", identifier=CHAT, data="{}")
        await client.send(command="message", identifier=NEWS, data="{}")
        assert bench.stats.commands_failed == 3
        await bench.publish("s", "1")
        assert received(client) == ["welcome", "confirm_subscription", 1]


async def test_publications_of_a_subscribe_call_are_sent_after_the_join() -> None:
    script = Script(CommandResult(streams=("s",), publications=(Publication("s", b'"bo came"'),)))
    async with make_bench(script) as bench:
        assert received(await chatting(bench)) == ["welcome", "confirm_subscription", "bo came"]


async def test_whispers_and_presence_use_the_stream_given_by_the_application() -> None:
    join = PresenceUpdate(True, Member("bo", b'{"name":"Bo"}'))
    script = Script(
        CommandResult(streams=("s",), own={"$w": "s", "$p": "s"}),
        CommandResult(streams=("s",), own={"$w": "s", "$p": "s"}, presence_update=join),
        CommandResult(presence_update=PresenceUpdate(False, Member("bo"))),
    )
    async with make_bench(script) as bench:
        one, two = await chatting(bench), await chatting(bench)
        await one.send(command="whisper", identifier=CHAT, data="psst")
        assert received(two)[-1] == "psst"
        assert [event["message"] for event in one.connection.replies() if event.get("type") == "presence"] == [
            {"type": "join", "info": {"name": "Bo"}, "id": "bo"}
        ]
        await two.send(command="message", identifier=CHAT, data="{}")
        assert one.connection.replies()[-1]["message"] == {"type": "leave", "id": "bo"}


async def test_application_can_close_the_connection_after_its_transmissions() -> None:
    script = Script(CommandResult(streams=("s",), transmissions=(message_text("bye"),), disconnect=True))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        assert received(client) == ["welcome", "bye", "confirm_subscription"]
        assert client.connection.closed == (1000, "Closed by the application")
        assert "restored" not in (await bench.connect(client.sid)).connection.replies()[0]
    assert list(script.disconnect_calls[0].subscriptions) == [CHAT]


async def test_unsubscribe_call_has_the_state_of_the_subscription() -> None:
    script = Script(CommandResult(streams=("s",), own={"room": "1"}))
    async with make_bench(script) as bench:
        client = await chatting(bench)
        await client.send(command="unsubscribe", identifier=CHAT)
        await bench.publish("s", "1")
        assert (script.calls[-1].action, script.calls[-1].state) == (Action.UNSUBSCRIBE, {"room": "1"})
        assert received(client) == ["welcome", "confirm_subscription"]


async def test_slow_call_delays_only_its_own_session() -> None:
    script = Script()
    async with make_bench(script) as bench:
        slow, other = await chatting(bench), await chatting(bench)
        script.held = asyncio.Event()
        await slow.send(command="message", identifier=CHAT, data="{}")
        await slow.send(command="ping")
        await other.send(command="ping")
        await bench.publish("s", "1")
        assert received(slow) == ["welcome", "confirm_subscription", 1]
        assert received(other) == ["welcome", "confirm_subscription", "pong", 1]
        assert bench.node.health() == ["the application is down"]
        script.held.set()
        await settle()
        assert received(slow)[-1] == "pong"
        script.held = None


# --- resuming and leaving --------------------------------------------------------------------------------------------


async def test_restore_is_called_once_and_disconnect_when_the_session_expires() -> None:
    script = Script(CommandResult(streams=("s",), state={"user": "7"}, own={"room": "1"}))
    script.restore_result = RestoreResult(
        (message_text("welcome back"),), {"returns": "1"}, {CHAT: {"room": "2"}}, (Publication("s", b'"back"'),)
    )
    async with make_bench(script) as bench:
        client = await chatting(bench, cookie="user=bo")
        client.session.connection_lost()
        back = await bench.connect(client.sid, cookie="user=bo")
        assert received(back)[:2] == ["welcome", "welcome back"]
        (restore_call,) = script.restore_calls
        assert (restore_call.former, restore_call.context.sid) == (client.sid, back.sid)
        assert restore_call.context.headers == {"cookie": "user=bo"}
        assert (restore_call.context.state, restore_call.subscriptions) == ({"user": "7"}, {CHAT: {"room": "1"}})
        await back.send(command="message", identifier=CHAT, data="{}")
        assert (script.calls[-1].context.state, script.calls[-1].state) == ({"user": "7", "returns": "1"}, {"room": "2"})
        back.session.connection_lost()
        await settle()
        await bench.node.upkeep()
        assert script.disconnect_calls == []
        bench.clock.now += PATIENT.sessions_ttl
        await bench.node.upkeep()
        await settle()
        assert script.events[1:] == ["connect", "subscribe", "restored", "message", "disconnect"]
        assert script.disconnect_calls[0].subscriptions == {CHAT: {"room": "2"}}
        assert script.disconnect_calls[0].context.sid == back.sid


async def test_failed_restore_call_does_not_refuse_the_client() -> None:
    script = Script()
    script.restore_result = Unavailable("down")
    async with make_bench(script) as bench:
        client = await chatting(bench)
        client.session.connection_lost()
        back = await bench.connect(client.sid)
        await back.send(command="history", identifier=CHAT, history={"streams": {}})
        assert received(back) == ["welcome", "confirm_history"]


async def test_disconnect_is_called_at_once_for_a_session_that_cannot_resume() -> None:
    script = Script()
    async with make_bench(script) as bench:
        base = await bench.connect(extended=False)
        base.session.connection_lost()
        closed_page = await bench.connect()
        closed_page.session.connection_lost(going_away=True)
        await settle()
        assert [disconnect_call.context.sid for disconnect_call in script.disconnect_calls] == [base.sid, closed_page.sid]


async def test_disconnect_is_not_called_for_a_session_unknown_to_the_application() -> None:
    script = Script()
    async with Workbench(PATIENT, application=script) as bench:
        client = await bench.connect(extended=False)
        client.session.connection_lost()
    assert script.events == ["start", "stop"]


async def test_disconnect_mode_always_and_never_override_the_default() -> None:
    for mode, expected in (("always", ["start", "disconnect", "stop"]), ("never", ["start", "subscribe", "stop"])):
        script = Script()
        limits = Limits(ping_interval=0, disconnect_mode=mode)
        async with Workbench(limits, application=script) as bench:
            client = await bench.connect(extended=False)
            if mode == "never":
                await client.send(command="subscribe", identifier=CHAT)
            client.session.connection_lost()
        assert script.events == expected


async def test_disconnect_call_includes_a_subscription_granted_while_leaving() -> None:
    script = Script()
    async with make_bench(script) as bench:
        client = await bench.connect(extended=False)
        script.held = asyncio.Event()
        await client.send(command="subscribe", identifier=CHAT)
        client.session.connection_lost()
        await settle()
        assert script.disconnect_calls == []
        script.held.set()
        await settle()
        assert list(script.disconnect_calls[0].subscriptions) == [CHAT]


async def test_takeover_of_a_live_session_calls_restore_without_disconnect() -> None:
    script = Script()
    async with make_bench(script) as bench:
        client = await chatting(bench)
        back = await bench.connect(client.sid)
        await settle()
        assert back.connection.replies()[0]["restored_ids"] == [CHAT]
        assert script.events == ["start", "connect", "subscribe", "restored"]


async def test_disconnect_is_called_for_all_sessions_at_shutdown() -> None:
    script = Script()
    async with make_bench(script) as bench:
        for _ in range(3):
            await chatting(bench)
        (await chatting(bench)).session.connection_lost()
    assert script.events[-5:] == ["disconnect"] * 4 + ["stop"]


async def test_shutdown_waits_for_an_active_disconnect_call() -> None:
    script = Script()
    async with make_bench(script) as bench:
        (await bench.connect(extended=False)).session.connection_lost()
        script.held = asyncio.Event()
        await settle()
        ending = asyncio.create_task(bench.node.stop())
        await settle()
        assert script.events == ["start", "connect"]
        script.held.set()
        await ending
        assert script.events == ["start", "connect", "disconnect", "stop"]


async def test_failed_disconnect_call_at_shutdown_is_counted() -> None:
    script = Script()
    async with make_bench(script) as bench:
        await bench.connect(extended=False)
        script.refused_disconnect_calls.extend([Unavailable("down"), Unavailable("down")])
    assert script.events == ["start", "connect", "stop"]
    assert bench.stats.app_disconnects_dropped == 1


async def test_failed_disconnect_call_is_not_repeated_and_does_not_block_the_next() -> None:
    script = Script()
    script.refused_disconnect_calls.append(ApplicationError("boom"))
    async with make_bench(script) as bench:
        for _ in range(2):
            (await bench.connect(extended=False)).session.connection_lost()
            await settle()
    assert len(script.disconnect_calls) == 1


async def test_unavailable_disconnect_call_is_repeated_but_an_unanswered_one_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disconnect_queue, "BETWEEN_ATTEMPTS", Backoff(0.0, 0.0))
    script = Script()
    script.refused_disconnect_calls.extend([Unavailable("connection refused")] * 5 + [Unanswered("late")] * 2)
    async with make_bench(script) as bench:
        (await bench.connect(extended=False)).session.connection_lost()
        while script.refused_disconnect_calls:
            await settle()
        await settle()
        assert len(script.disconnect_calls) == 1
        script.refused_disconnect_calls.extend([Unanswered("late")] * 3)
        (await bench.connect(extended=False)).session.connection_lost()
        while script.refused_disconnect_calls:
            await settle()
        await settle()
        assert (len(script.disconnect_calls), bench.stats.app_disconnects_dropped) == (1, 1)


async def test_disconnect_calls_above_the_limit_are_dropped_and_counted() -> None:
    script = Script()
    async with make_bench(script, Limits(ping_interval=0, disconnect_backlog=1)) as bench:
        clients = [await bench.connect(extended=False) for _ in range(12)]
        for client in clients:
            bench.node.disconnect_queue.put(client.sid, client.session.snapshot())
        assert bench.stats.app_disconnects_dropped == 11
