"""The session log: what a session's rows say, and that they are enough to resume it after the process has died."""

from ropewalk.engine.session_log import CHANGES, ForwardedSessionLog
from ropewalk.model import closing as closings
from ropewalk.model.application import CommandResult
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.sessions import SessionSnapshot
from tests.unit.engine.journaled_nodes import PATIENT, Chronicle
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Workbench, public, settle

BO = {"id": "bo", "info": {"name": "Bo"}}


async def test_a_session_is_told_from_its_beginning_to_its_end() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        await client.send(command="leave", identifier=public("a"))
        await client.send(command="unsubscribe", identifier=public("a"))
        client.session.lost()
        kinds = ["connected", "subscribed", "joined", "left", "unsubscribed", "disconnected"]
        assert story.kinds(client) == kinds
        await settle()
        story.clock.now += PATIENT.sessions_ttl
        await story.bench.node.upkeep()
        assert story.kinds(client) == [*kinds, "ended"]
        assert {row.key for row in story.journal.rows} == {client.sid}
        assert story.details(RowKind.SUBSCRIBED) == [
            {"identifier": public("a"), "streams": ["a"], "whisper": "a", "presence": "a", "state": None}
        ]
        assert story.details(RowKind.JOINED) == [{"id": "bo", "told": True, "info": {"name": "Bo"}}]
        assert story.details(RowKind.DISCONNECTED) == [{"kept": True, "reason": "", "followed": True}]


async def test_a_client_refused_or_never_known_is_not_told() -> None:
    async with Chronicle() as story:
        client = await story.client()
        await client.send(command="subscribe", identifier="nonsense")
        await client.send(command="join", identifier=public("a"), presence=BO)
        assert story.kinds(client) == ["connected"]


async def test_a_node_without_a_journal_tells_nobody() -> None:
    bench = Workbench(PATIENT)
    client = await bench.connect()
    client.session.lost()
    assert bench.node.session_log.gauges() == {}
    assert bench.node.session_log.health() == ""


async def test_after_a_crash_a_session_is_resumed_with_its_subscriptions() -> None:
    async with Chronicle() as story:
        client = await story.client("a", "b", "c")
        await client.send(command="unsubscribe", identifier=public("b"))
        (receipt, *_) = await story.bench.publish("a", "1", "2")
        async with story.crash() as after:
            back = await after.bench.connect(client.sid)
            assert back.connection.replies()[0]["restored_ids"] == [public("a"), public("c")]
            position = {"epoch": receipt.epoch, "offset": 1}
            await back.send(command="history", identifier=public("a"), history={"streams": {"a": position}})
            await after.bench.publish("a", "3")
            assert back.seen() == ["welcome", 2, "confirm_history", 3]


async def test_what_excluded_a_session_stays_excluded_after_a_crash() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        (receipt,) = await story.bench.publish("a", "1")
        await story.bench.publish("a", "2", exclude_socket=client.sid)
        async with story.crash() as after:
            back = await after.bench.connect(client.sid)
            position = {"epoch": receipt.epoch, "offset": 1}
            await back.send(command="history", identifier=public("a"), history={"streams": {"a": position}})
            assert back.seen() == ["welcome", "confirm_history"]


async def test_a_session_restored_before_a_crash_is_resumed_by_its_newest_sid_only() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        client.session.lost()
        await settle()
        second = await story.bench.connect(client.sid)
        after = story.crash()
        assert await after.backend.sessions.take(client.sid) is None
        snapshot = await after.backend.sessions.take(second.sid)
        assert isinstance(snapshot, SessionSnapshot)
        assert (list(snapshot.subscriptions), snapshot.names) == ([public("a")], (second.sid, client.sid))


async def test_a_session_that_may_not_return_stays_away_after_a_crash() -> None:
    async with Chronicle() as story:
        ended, basic = await story.client("a"), await story.client("a", extended=False)
        ended.session.end(closings.REMOTE)
        after = story.crash()
        assert [await after.backend.sessions.take(client.sid) for client in (ended, basic)] == [None, None]


async def test_a_session_away_before_a_crash_has_the_rest_of_its_time() -> None:
    async with Chronicle() as story:
        early, late = await story.client("a"), await story.client("a")
        early.session.lost()
        story.clock.now += 200
        late.session.lost()
        story.clock.now += 99
        after = story.crash()
        story.clock.now += 1
        assert await after.backend.sessions.take(early.sid) is None
        assert await after.backend.sessions.take(late.sid) is not None


async def test_members_are_present_after_a_crash_and_adopted_unnoticed() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        async with story.crash() as after:
            assert await after.members("a") == ["bo"]
            watcher = await after.client("a")
            await after.bench.connect(client.sid)
            story.clock.now += 16
            assert await after.backend.presence.expire() == []
            assert await after.members("a") == ["bo"]
            assert watcher.seen() == ["welcome", "confirm_subscription"]


async def test_a_member_who_does_not_return_after_a_crash_leaves_with_its_grace() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        after = story.crash()
        story.clock.now += 15
        events = await after.backend.presence.expire()
        assert [(event.type, event.member.id) for event in events] == [("leave", "bo")]
        assert await after.members("a") == []


async def test_a_member_whose_grace_was_over_is_not_present_after_a_crash() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        client.session.lost()
        story.clock.now += 16
        assert await story.crash().members("a") == []


async def test_a_second_crash_does_not_begin_the_terms_of_the_first_anew() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        await client.send(command="join", identifier=public("a"), presence=BO)
        after = story.crash()
        (crashed,) = after.details(RowKind.DISCONNECTED)
        assert (crashed["kept"], crashed["reason"]) == (True, "crashed")
        story.clock.now += 301
        last = after.crash()
        assert (await last.members("a"), await last.backend.sessions.take(client.sid)) == ([], None)


async def test_a_session_that_does_not_change_is_not_written_again_however_long_it_lasts() -> None:
    async with Chronicle() as story:
        clients = [await story.client(*(f"a stream with a long name {number}" for number in range(50))) for _ in range(5)]
        await clients[0].send(command="join", identifier=public("a stream with a long name 0"), presence=BO)
        written = len(story.journal.rows)
        for _ in range(600):
            story.clock.now += 1
            await story.bench.node.upkeep()
        assert len(story.journal.rows) == written


async def test_a_session_that_changes_often_is_told_as_a_whole_now_and_then_and_that_is_enough_to_resume_it() -> None:
    async with Chronicle() as story:
        client = await story.client("kept")
        await client.send(command="join", identifier=public("kept"), presence=BO)
        for number in range(90):
            passing = public(f"passing {number} {'x' * 400}")
            await client.send(command="subscribe", identifier=passing)
            await client.send(command="unsubscribe", identifier=passing)
        rows = [row for row in story.journal.rows if row.sid == client.sid]
        wholes = [index for index, row in enumerate(rows) if row.kind is RowKind.ALIVE]
        changes = sum(len(row.detail) for row in rows if row.kind is not RowKind.ALIVE)
        assert 1 <= len(wholes) <= changes / CHANGES
        assert sum(len(row.detail) for row in rows[wholes[-1] + 1 :]) < 2 * CHANGES
        story.journal.rows[:] = rows[wholes[-1] :]
        after = story.crash()
        snapshot = await after.backend.sessions.take(client.sid)
        assert snapshot is not None
        assert list(snapshot.subscriptions) == [public("kept")]
        assert await after.members("kept") == ["bo"]


async def test_a_row_that_cannot_be_understood_costs_nobody_else_anything() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        story.journal.note([Row(RowKind.CONNECTED, "sid", story.clock.now, sid="sid", detail="{}")])
        after = story.crash()
        assert await after.backend.sessions.take("sid") is None
        assert await after.backend.sessions.take(client.sid) is not None


async def test_rows_of_a_session_whose_beginning_is_not_there_are_passed_over() -> None:
    async with Chronicle() as story:
        client = await story.client("a")
        del story.journal.rows[0]
        assert await story.crash().backend.sessions.take(client.sid) is None


async def test_what_the_application_keeps_outlives_a_crash_but_no_cookie_is_written_down() -> None:
    script = Script(
        CommandResult(streams=("s",), state={"user": "7"}, own={"room": "1"}), CommandResult(streams=("t",), own={"room": "2"})
    )
    async with Chronicle(script=script) as story:
        client = await story.bench.connect(cookie="secret=1", jid="secret")
        await client.send(command="subscribe", identifier=CHAT)
        await client.send(command="message", identifier=CHAT, data="{}")
        after = story.crash()
        assert "secret" not in str(story.journal.rows)
    async with after:
        back = await after.bench.connect(client.sid)
        assert back.connection.replies()[0]["restored_ids"] == [CHAT]
        (restore_call,) = script.restore_calls
        assert (restore_call.context.ids, restore_call.context.state) == ("bo", {"user": "7"})
        assert restore_call.subscriptions == {CHAT: {"room": "2"}}
        await back.send(command="history", identifier=CHAT, history={"streams": {}})
        await after.bench.publish("t", "1")
        assert back.seen()[-1] == 1


async def test_after_a_crash_the_application_hears_of_those_who_do_not_come_back() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        base = await story.bench.connect(extended=False)
        away = await story.bench.connect()
        await away.send(command="subscribe", identifier=CHAT)
        after = story.crash()
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


async def test_what_a_lost_store_process_had_not_written_is_told_again_and_enough_to_resume() -> None:
    async with Chronicle() as story:
        client = await story.client("a", "b")
        await client.send(command="join", identifier=public("a"), presence=BO)
        story.journal.rows.clear()  # they were lost with it
        worker_log = ForwardedSessionLog(story.journal, story.clock)
        worker_log.tell_again(story.bench.node.sessions.live.values())
        assert story.kinds(client) == ["alive"]
        after = story.crash()
        snapshot = await after.backend.sessions.take(client.sid)
        assert snapshot is not None
        assert set(snapshot.subscriptions) == {public("a"), public("b")}
        assert set(snapshot.members) == {"a"}
