"""Session resume: streams, state and presence are restored, and the application receives a restored call."""

from ropewalk.testing.application_orders import SLOW, WELCOME_BACK, Order, call, info, seat
from tests.cable import Cable
from tests.conformance.applications.stage import Stage
from tests.server import publish


async def subscribed(client: Cable, *wanted: str) -> None:
    for each in wanted:
        await client.send(command="subscribe", identifier=each)
        await client.expect("confirm_subscription", identifier=each)


class Resuming:
    async def test_restored_call_has_all_state_and_may_change_it(self, stage: Stage) -> None:
        one = seat(Order(streams=("back/1",), keep={"room": "1"}, remember={"lang": "de"}))
        two = seat(Order(keep={"room": "2", "old": "x"}))
        async with stage.client() as client:
            await subscribed(client, one, two)
            await client.send(command="message", identifier=two, data=call(Order(keep={"old": ""})))
            await client.quiet()
            await client.cut()
            async with stage.client(sid=client.sid, params={"again": "1"}) as back:
                assert await back.messages(2) == [WELCOME_BACK] * 2
                event = await stage.heard(back.sid, "restored")
                assert event.subscriptions == {one: {"room": "1"}, two: {"room": "2"}}
                assert event.state == {"entered": "yes", "lang": "de"}
                assert event.ids == '{"user":"ann"}'
                assert "again=1" in event.url
                await back.send(command="message", identifier=two, data=call())
                await back.quiet()
                last = await stage.heard(back.sid, "message")
                assert last.own == {"room": "2", "returned": "yes"}
                assert last.state == {"entered": "yes", "lang": "de", "returned": "yes"}
                assert stage.story(client.sid) == ["connect", "subscribe", "subscribe", "message"]
                assert stage.story(back.sid) == ["restored", "message"]
                await stage.dismiss(event.ids)
                disconnect_call = await stage.heard(back.sid, "disconnect")
                assert disconnect_call.subscriptions == {
                    one: {"room": "1", "returned": "yes"},
                    two: {"room": "2", "returned": "yes"},
                }

    async def test_each_resume_is_one_restored_call_and_the_end_one_disconnect_call(self, stage: Stage) -> None:
        async with stage.client(user="often") as client:
            await subscribed(client, seat())
            await client.cut()
        sids = [client.sid]
        for _ in range(3):
            async with stage.client(user="often", sid=sids[-1]) as back:
                assert await back.messages(1) == [WELCOME_BACK]
                await back.cut()
            sids.append(back.sid)
        async with stage.client(user="often", sid=sids[-1]) as last:
            assert await stage.dismiss('{"user":"often"}') == 1
            await stage.heard(last.sid, "disconnect")
        story = stage.story(*sids, last.sid)
        assert story == ["connect", "subscribe", "restored", "restored", "restored", "restored", "disconnect"]

    async def test_commands_are_called_after_the_restored_call(self, stage: Stage) -> None:
        async with stage.client() as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(sid=client.sid, params={SLOW: "1"}) as back:
                await back.send(command="message", identifier=seat(), data=call(Order(say=("later",))))
                assert await back.messages(2) == [WELCOME_BACK, "later"]
                event = await stage.heard(back.sid, "message")
                assert event.own == {"returned": "yes"}
                assert event.state == {"entered": "yes", "returned": "yes"}
                assert stage.story(back.sid) == ["restored", "message"]

    async def test_connection_lost_during_the_restored_call_keeps_its_result(self, stage: Stage) -> None:
        async with stage.client() as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(sid=client.sid, params={SLOW: "1"}) as back:
                await stage.heard(back.sid, "restored")
                await back.cut()
                async with stage.client(sid=back.sid) as again:
                    event = await stage.heard(again.sid, "restored")
                    assert event.subscriptions == {seat(): {"returned": "yes"}}
                    assert event.state == {"entered": "yes", "returned": "yes"}

    async def test_disconnect_during_the_restored_call_is_called_after_it(self, stage: Stage) -> None:
        async with stage.client(user="dora") as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(user="dora", sid=client.sid, params={SLOW: "1"}) as back:
                await stage.heard(back.sid, "restored")
                assert await stage.dismiss('{"user":"dora"}') == 1
                disconnect_call = await stage.heard(back.sid, "disconnect")
                assert disconnect_call.subscriptions == {seat(): {"returned": "yes"}}
                assert stage.story(back.sid) == ["restored", "disconnect"]

    async def test_missed_messages_of_all_streams_arrive_before_live_ones(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("away/1", "away/2")))
        async with stage.client() as client:
            await subscribed(client, wanted)
            for number in (1, 2):
                await publish(stage.server, f"away/{number}", f'"seen {number}"')
            await client.messages(2)
            await client.send(command="message", identifier=wanted, data=call(Order(streams=("away/3",))))
            await client.quiet()
            await publish(stage.server, "away/3", '"seen 3"')
            await client.messages(1)
            await client.cut()
            for number in (3, 2, 1):
                await publish(stage.server, f"away/{number}", f'"missed {number}"')
            async with stage.client(sid=client.sid) as back:
                assert await back.messages(1) == [WELCOME_BACK]
                await publish(stage.server, "away/1", '"held"')
                await back.send(command="history", identifier=wanted, history={"streams": client.positions})
                assert await back.messages(4) == ["missed 1", "held", "missed 2", "missed 3"]
                await back.expect("confirm_history")
                await publish(stage.server, "away/3", '"live"')
                assert await back.messages(1) == ["live"]

    async def test_gap_in_one_restored_stream_is_reported(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("gap/1", "gap/2")))
        async with stage.client() as client:
            await subscribed(client, wanted)
            for number in (1, 2):
                await publish(stage.server, f"gap/{number}", f'"seen {number}"')
            await client.messages(2)
            await client.cut()
            await publish(stage.server, "gap/1", '"missed"')
            for number in range(10):  # more than is kept
                await publish(stage.server, "gap/2", f"{number}")
            async with stage.client(sid=client.sid) as back:
                assert await back.messages(1) == [WELCOME_BACK]
                await back.send(command="history", identifier=wanted, history={"streams": client.positions})
                assert await back.messages(1) == ["missed"]
                rejection = await back.expect("reject_history", identifier=wanted)
                assert {stream: gap["reason"] for stream, gap in rejection["streams"].items()} == {"gap/2": "trimmed"}
                assert await back.messages(5) == [5, 6, 7, 8, 9]
                for number in (2, 1):
                    await publish(stage.server, f"gap/{number}", f'"live {number}"')
                assert await back.messages(2) == ["live 2", "live 1"]

    async def test_whisper_permission_and_presence_are_restored(self, stage: Stage) -> None:
        sitting = seat(Order(whisper="den", presence="den", join="ann"))
        watching = seat(Order(presence="den"))
        async with stage.client() as client, stage.client(user="bea") as watcher:
            await subscribed(watcher, watching)
            await subscribed(client, sitting)
            assert (await watcher.expect("presence"))["message"] == {"type": "join", "id": "ann", "info": info("ann")}
            await client.cut()
            async with stage.client(sid=client.sid) as back:
                assert await back.messages(1) == [WELCOME_BACK]
                await back.send(command="history", identifier=sitting, history={"streams": {}})
                await back.expect("confirm_history")
                await back.send(command="whisper", identifier=sitting, data="psst")
                whisper = await watcher.expect("whisper")  # no join or leave in between
                assert whisper["message"] == {"$whisper": "psst", "from": "ann"}
                await back.send(command="message", identifier=sitting, data=call(Order(leave=True)))
                assert (await watcher.expect("presence"))["message"] == {"type": "leave", "id": "ann"}

    async def test_takeover_of_a_live_connection_makes_no_disconnect_call(self, stage: Stage) -> None:
        async with stage.client(user="twice") as client:
            await subscribed(client, seat())
            async with stage.client(user="twice", sid=client.sid) as back:
                assert await client.closed() == (1000, "Session resumed elsewhere")
                assert await back.messages(1) == [WELCOME_BACK]
                await stage.dismiss('{"user":"twice"}')
                await stage.heard(back.sid, "disconnect")
        assert stage.story(client.sid, back.sid) == ["connect", "subscribe", "restored", "disconnect"]

    async def test_changed_cookie_of_the_same_user_resumes_the_session(self, stage: Stage) -> None:
        async with stage.client(headers={"Cookie": "user=ida; theme=dark"}) as client:
            await subscribed(client, seat())
            await client.cut()
        async with stage.client(headers={"Cookie": "user=ida; theme=light"}, sid=client.sid) as back:
            assert await back.messages(1) == [WELCOME_BACK]
            assert (await stage.heard(back.sid, "restored")).ids == '{"user":"ida"}'
            await stage.dismiss('{"user":"ida"}')
            await stage.heard(back.sid, "disconnect")
        assert stage.story(client.sid, back.sid) == ["connect", "subscribe", "restored", "disconnect"]

    async def test_sid_of_another_user_does_not_resume_the_session(self, stage: Stage) -> None:
        async with stage.client(headers={"Cookie": "user=owner"}) as client:
            await subscribed(client, seat())
            await client.cut()
        async with stage.client(headers={"Cookie": "user=thief"}, sid=client.sid, welcome=False) as thief:
            await thief.welcomed(restored=False)
            assert (await stage.heard(thief.sid, "connect")).headers["cookie"] == "user=thief"
        async with stage.client(headers={"Cookie": "user=owner"}, sid=client.sid) as back:
            assert await back.messages(1) == [WELCOME_BACK]
