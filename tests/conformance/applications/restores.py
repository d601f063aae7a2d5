"""A session comes back: with its streams, its state and its places, and the application hears of it."""

from ropewalk.testing.application_orders import SLOW, WELCOME_BACK, Order, call, info, seat
from tests.cable import Cable
from tests.conformance.applications.stage import Stage
from tests.server import publish


async def subscribed(client: Cable, *wanted: str) -> None:
    for each in wanted:
        await client.send(command="subscribe", identifier=each)
        await client.expect("confirm_subscription", identifier=each)


class Resuming:
    async def test_a_return_is_told_with_all_state_and_may_change_it(self, stage: Stage) -> None:
        one = seat(Order(streams=("back/1",), keep={"room": "1"}, remember={"lang": "de"}))
        two = seat(Order(keep={"room": "2", "old": "x"}))
        async with stage.client() as client:
            await subscribed(client, one, two)
            await client.send(command="message", identifier=two, data=call(Order(keep={"old": ""})))
            await client.quiet()
            await client.cut()
            async with stage.client(sid=client.sid, params={"again": "1"}) as back:
                assert await back.messages(2) == [WELCOME_BACK] * 2
                told = await stage.heard(back.sid, "restored")
                assert told.subscriptions == {one: {"room": "1"}, two: {"room": "2"}}
                assert told.state == {"entered": "yes", "lang": "de"}
                assert told.ids == '{"user":"ann"}'
                assert "again=1" in told.url
                await back.send(command="message", identifier=two, data=call())
                await back.quiet()
                last = await stage.heard(back.sid, "message")
                assert last.own == {"room": "2", "returned": "yes"}
                assert last.state == {"entered": "yes", "lang": "de", "returned": "yes"}
                assert stage.story(client.sid) == ["connect", "subscribe", "subscribe", "message"]
                assert stage.story(back.sid) == ["restored", "message"]
                await stage.dismiss(told.ids)
                disconnect_call = await stage.heard(back.sid, "disconnect")
                assert disconnect_call.subscriptions == {
                    one: {"room": "1", "returned": "yes"},
                    two: {"room": "2", "returned": "yes"},
                }

    async def test_whoever_returns_often_is_told_of_each_time_and_said_goodbye_to_once(self, stage: Stage) -> None:
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

    async def test_commands_reach_the_application_after_the_return(self, stage: Stage) -> None:
        async with stage.client() as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(sid=client.sid, params={SLOW: "1"}) as back:
                await back.send(command="message", identifier=seat(), data=call(Order(say=("later",))))
                assert await back.messages(2) == [WELCOME_BACK, "later"]
                told = await stage.heard(back.sid, "message")
                assert told.own == {"returned": "yes"}
                assert told.state == {"entered": "yes", "returned": "yes"}
                assert stage.story(back.sid) == ["restored", "message"]

    async def test_who_is_lost_again_during_its_return_keeps_what_comes_of_it(self, stage: Stage) -> None:
        async with stage.client() as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(sid=client.sid, params={SLOW: "1"}) as back:
                await stage.heard(back.sid, "restored")
                await back.cut()
                async with stage.client(sid=back.sid) as again:
                    told = await stage.heard(again.sid, "restored")
                    assert told.subscriptions == {seat(): {"returned": "yes"}}
                    assert told.state == {"entered": "yes", "returned": "yes"}

    async def test_who_is_sent_away_during_its_return_is_told_to_be_gone_after_it(self, stage: Stage) -> None:
        async with stage.client(user="dora") as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(user="dora", sid=client.sid, params={SLOW: "1"}) as back:
                await stage.heard(back.sid, "restored")
                assert await stage.dismiss('{"user":"dora"}') == 1
                disconnect_call = await stage.heard(back.sid, "disconnect")
                assert disconnect_call.subscriptions == {seat(): {"returned": "yes"}}
                assert stage.story(back.sid) == ["restored", "disconnect"]

    async def test_what_was_missed_on_every_stream_follows_and_then_live(self, stage: Stage) -> None:
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

    async def test_a_gap_in_one_restored_stream_is_said_and_the_others_join_up(self, stage: Stage) -> None:
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

    async def test_whispers_and_the_place_among_those_present_come_back_too(self, stage: Stage) -> None:
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
                whisper = await watcher.expect("whisper")  # and nobody came or went meanwhile
                assert whisper["message"] == {"$whisper": "psst", "from": "ann"}
                await back.send(command="message", identifier=sitting, data=call(Order(leave=True)))
                assert (await watcher.expect("presence"))["message"] == {"type": "leave", "id": "ann"}

    async def test_a_client_that_takes_over_its_old_connection_returns_without_a_goodbye(self, stage: Stage) -> None:
        async with stage.client(user="twice") as client:
            await subscribed(client, seat())
            async with stage.client(user="twice", sid=client.sid) as back:
                assert await client.closed() == (1000, "Session resumed elsewhere")
                assert await back.messages(1) == [WELCOME_BACK]
                await stage.dismiss('{"user":"twice"}')
                await stage.heard(back.sid, "disconnect")
        assert stage.story(client.sid, back.sid) == ["connect", "subscribe", "restored", "disconnect"]

    async def test_a_cookie_that_was_renewed_does_not_cost_the_session(self, stage: Stage) -> None:
        async with stage.client(headers={"Cookie": "user=ida; theme=dark"}) as client:
            await subscribed(client, seat())
            await client.cut()
        async with stage.client(headers={"Cookie": "user=ida; theme=light"}, sid=client.sid) as back:
            assert await back.messages(1) == [WELCOME_BACK]
            assert (await stage.heard(back.sid, "restored")).ids == '{"user":"ida"}'
            await stage.dismiss('{"user":"ida"}')
            await stage.heard(back.sid, "disconnect")
        assert stage.story(client.sid, back.sid) == ["connect", "subscribe", "restored", "disconnect"]

    async def test_a_session_waits_for_its_owner_when_somebody_else_comes_with_its_sid(self, stage: Stage) -> None:
        async with stage.client(headers={"Cookie": "user=owner"}) as client:
            await subscribed(client, seat())
            await client.cut()
        async with stage.client(headers={"Cookie": "user=thief"}, sid=client.sid, welcome=False) as thief:
            await thief.welcomed(restored=False)
            assert (await stage.heard(thief.sid, "connect")).headers["cookie"] == "user=thief"
        async with stage.client(headers={"Cookie": "user=owner"}, sid=client.sid) as back:
            assert await back.messages(1) == [WELCOME_BACK]
