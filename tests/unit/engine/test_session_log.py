"""The session log: the rows of a session, and its resume from them after a crash."""

from ropewalk.engine.session_log import CHANGES, ForwardedSessionLog
from ropewalk.model import closing as closings
from ropewalk.model.application import CommandResult
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.sessions import SessionSnapshot
from tests.unit.engine.journaled_nodes import PATIENT, JournaledNode
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Workbench, public, settle

BO = {"id": "bo", "info": {"name": "Bo"}}


async def test_session_is_logged_from_connect_to_end() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        await client.send(command="leave", identifier=public("a"))
        await client.send(command="unsubscribe", identifier=public("a"))
        client.session.connection_lost()
        kinds = ["connected", "subscribed", "joined", "left", "unsubscribed", "disconnected"]
        assert journaled.kinds(client) == kinds
        await settle()
        journaled.clock.now += PATIENT.sessions_ttl
        await journaled.bench.node.upkeep()
        assert journaled.kinds(client) == [*kinds, "ended"]
        assert {row.key for row in journaled.journal.rows} == {client.sid}
        assert journaled.details(RowKind.SUBSCRIBED) == [
            {"identifier": public("a"), "streams": ["a"], "whisper": "a", "presence": "a", "state": None}
        ]
        assert journaled.details(RowKind.JOINED) == [{"id": "bo", "told": True, "info": {"name": "Bo"}}]
        assert journaled.details(RowKind.DISCONNECTED) == [{"kept": True, "reason": "", "followed": True}]


async def test_refused_commands_are_not_logged() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client()
        await client.send(command="subscribe", identifier="nonsense")
        await client.send(command="join", identifier=public("a"), presence=BO)
        assert journaled.kinds(client) == ["connected"]


async def test_node_without_a_journal_logs_no_sessions() -> None:
    bench = Workbench(PATIENT)
    client = await bench.connect()
    client.session.connection_lost()
    assert bench.node.session_log.gauges() == {}
    assert bench.node.session_log.health() == ""


async def test_session_is_resumed_with_its_subscriptions_after_a_crash() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a", "b", "c")
        await client.send(command="unsubscribe", identifier=public("b"))
        (receipt, *_) = await journaled.bench.publish("a", "1", "2")
        async with journaled.crash() as after:
            back = await after.bench.connect(client.sid)
            assert back.connection.replies()[0]["restored_ids"] == [public("a"), public("c")]
            position = {"epoch": receipt.epoch, "offset": 1}
            await back.send(command="history", identifier=public("a"), history={"streams": {"a": position}})
            await after.bench.publish("a", "3")
            assert back.seen() == ["welcome", 2, "confirm_history", 3]


async def test_excluded_message_stays_excluded_after_a_crash() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        (receipt,) = await journaled.bench.publish("a", "1")
        await journaled.bench.publish("a", "2", exclude_socket=client.sid)
        async with journaled.crash() as after:
            back = await after.bench.connect(client.sid)
            position = {"epoch": receipt.epoch, "offset": 1}
            await back.send(command="history", identifier=public("a"), history={"streams": {"a": position}})
            assert back.seen() == ["welcome", "confirm_history"]


async def test_restored_session_is_resumed_by_its_newest_sid_after_a_crash() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        client.session.connection_lost()
        await settle()
        second = await journaled.bench.connect(client.sid)
        after = journaled.crash()
        assert await after.backend.sessions.take(client.sid) is None
        snapshot = await after.backend.sessions.take(second.sid)
        assert isinstance(snapshot, SessionSnapshot)
        assert (list(snapshot.subscriptions), snapshot.names) == ([public("a")], (second.sid, client.sid))


async def test_session_that_cannot_resume_stays_ended_after_a_crash() -> None:
    async with JournaledNode() as journaled:
        ended, basic = await journaled.client("a"), await journaled.client("a", extended=False)
        ended.session.end(closings.REMOTE)
        after = journaled.crash()
        assert [await after.backend.sessions.take(client.sid) for client in (ended, basic)] == [None, None]


async def test_detached_session_keeps_its_remaining_ttl_after_a_crash() -> None:
    async with JournaledNode() as journaled:
        early, late = await journaled.client("a"), await journaled.client("a")
        early.session.connection_lost()
        journaled.clock.now += 200
        late.session.connection_lost()
        journaled.clock.now += 99
        after = journaled.crash()
        journaled.clock.now += 1
        assert await after.backend.sessions.take(early.sid) is None
        assert await after.backend.sessions.take(late.sid) is not None


async def test_members_are_present_after_a_crash_and_adopted_silently() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        async with journaled.crash() as after:
            assert await after.members("a") == ["bo"]
            watcher = await after.client("a")
            await after.bench.connect(client.sid)
            journaled.clock.now += 16
            assert await after.backend.presence.expire() == []
            assert await after.members("a") == ["bo"]
            assert watcher.seen() == ["welcome", "confirm_subscription"]


async def test_member_that_does_not_return_after_a_crash_leaves_after_its_grace() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        after = journaled.crash()
        journaled.clock.now += 15
        events = await after.backend.presence.expire()
        assert [(event.type, event.member.id) for event in events] == [("leave", "bo")]
        assert await after.members("a") == []


async def test_member_whose_grace_was_over_is_not_present_after_a_crash() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        client.session.connection_lost()
        journaled.clock.now += 16
        assert await journaled.crash().members("a") == []


async def test_second_crash_does_not_restart_the_ttl_of_the_first() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        after = journaled.crash()
        (crashed,) = after.details(RowKind.DISCONNECTED)
        assert (crashed["kept"], crashed["reason"]) == (True, "crashed")
        journaled.clock.now += 301
        last = after.crash()
        assert (await last.members("a"), await last.backend.sessions.take(client.sid)) == ([], None)


async def test_unchanged_session_is_not_written_again() -> None:
    async with JournaledNode() as journaled:
        clients = [await journaled.client(*(f"a stream with a long name {number}" for number in range(50))) for _ in range(5)]
        await clients[0].send(command="join", identifier=public("a stream with a long name 0"), presence=BO)
        written = len(journaled.journal.rows)
        for _ in range(600):
            journaled.clock.now += 1
            await journaled.bench.node.upkeep()
        assert len(journaled.journal.rows) == written


async def test_frequently_changed_session_gets_checkpoints_sufficient_to_resume() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("kept")
        await client.send(command="join", identifier=public("kept"), presence=BO)
        for number in range(90):
            passing = public(f"passing {number} {'x' * 400}")
            await client.send(command="subscribe", identifier=passing)
            await client.send(command="unsubscribe", identifier=passing)
        rows = [row for row in journaled.journal.rows if row.sid == client.sid]
        checkpoints = [index for index, row in enumerate(rows) if row.kind is RowKind.ALIVE]
        changes = sum(len(row.detail) for row in rows if row.kind is not RowKind.ALIVE)
        assert 1 <= len(checkpoints) <= changes / CHANGES
        assert sum(len(row.detail) for row in rows[checkpoints[-1] + 1 :]) < 2 * CHANGES
        journaled.journal.rows[:] = rows[checkpoints[-1] :]
        after = journaled.crash()
        snapshot = await after.backend.sessions.take(client.sid)
        assert snapshot is not None
        assert list(snapshot.subscriptions) == [public("kept")]
        assert await after.members("kept") == ["bo"]


async def test_unreadable_row_does_not_affect_other_sessions() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        journaled.journal.write_nowait([Row(RowKind.CONNECTED, "sid", journaled.clock.now, sid="sid", detail="{}")])
        after = journaled.crash()
        assert await after.backend.sessions.take("sid") is None
        assert await after.backend.sessions.take(client.sid) is not None


async def test_rows_without_the_start_of_their_session_are_skipped() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a")
        del journaled.journal.rows[0]
        assert await journaled.crash().backend.sessions.take(client.sid) is None


async def test_application_state_survives_a_crash_and_cookies_are_not_written() -> None:
    script = Script(
        CommandResult(streams=("s",), state={"user": "7"}, own={"room": "1"}), CommandResult(streams=("t",), own={"room": "2"})
    )
    async with JournaledNode(script=script) as journaled:
        client = await journaled.bench.connect(cookie="secret=1", jid="secret")
        await client.send(command="subscribe", identifier=CHAT)
        await client.send(command="message", identifier=CHAT, data="{}")
        after = journaled.crash()
        assert "secret" not in str(journaled.journal.rows)
    async with after:
        back = await after.bench.connect(client.sid)
        assert back.connection.replies()[0]["restored_ids"] == [CHAT]
        (restore_call,) = script.restore_calls
        assert (restore_call.context.ids, restore_call.context.state) == ("bo", {"user": "7"})
        assert restore_call.subscriptions == {CHAT: {"room": "2"}}
        await back.send(command="history", identifier=CHAT, history={"streams": {}})
        await after.bench.publish("t", "1")
        assert back.seen()[-1] == 1


async def test_disconnect_is_called_for_sessions_that_do_not_return_after_a_crash() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        base = await journaled.bench.connect(extended=False)
        away = await journaled.bench.connect()
        await away.send(command="subscribe", identifier=CHAT)
        after = journaled.crash()
        script.disconnect_calls.clear()
    script.disconnect_calls.clear()
    async with after:
        await after.bench.node.upkeep()
        await settle()
        assert [disconnect_call.context.sid for disconnect_call in script.disconnect_calls] == [base.sid]
        after.clock.now += PATIENT.sessions_ttl
        await after.bench.node.upkeep()
        await settle()
        assert [disconnect_call.context.sid for disconnect_call in script.disconnect_calls] == [base.sid, away.sid]
        assert list(script.disconnect_calls[1].subscriptions) == [CHAT]


async def test_sessions_lost_with_the_store_process_are_written_again() -> None:
    async with JournaledNode() as journaled:
        client = await journaled.client("a", "b")
        await client.send(command="join", identifier=public("a"), presence=BO)
        journaled.journal.rows.clear()  # lost with the store process
        worker_log = ForwardedSessionLog(journaled.journal, journaled.clock)
        worker_log.rewrite(journaled.bench.node.sessions.live.values())
        assert journaled.kinds(client) == ["alive"]
        after = journaled.crash()
        snapshot = await after.backend.sessions.take(client.sid)
        assert snapshot is not None
        assert set(snapshot.subscriptions) == {public("a"), public("b")}
        assert set(snapshot.members) == {"a"}
