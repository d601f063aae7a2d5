"""Subscribe and unsubscribe: every command gets its reply in order, and the streams are those of the application."""

from ropewalk.testing.application_orders import CHANNEL, Order, call, seat
from tests.cable import BASE, Frame, identifier, kind
from tests.conformance.applications.stage import Stage
from tests.server import publish


def history(*frames: Frame) -> Frame:
    """A history request that starts after these messages."""
    return {"streams": {frame["stream_id"]: {"epoch": frame["epoch"], "offset": frame["offset"]} for frame in frames}}


class Subscribing:
    async def test_transmissions_arrive_before_the_confirmation(self, stage: Stage) -> None:
        wanted = seat(Order(say=("one", "two"), streams=("said",)))
        async with stage.client(protocol=BASE) as client:
            await client.send(command="subscribe", identifier=wanted)
            assert await client.messages(2) == ["one", "two"]
            await client.expect("confirm_subscription", identifier=wanted)

    async def test_rejection_follows_the_transmissions_and_keeps_the_session(self, stage: Stage) -> None:
        refused, granted = seat(Order(say=("sorry",), reject=True)), seat(number=1)
        async with stage.client(protocol=BASE) as client:
            await client.send(command="subscribe", identifier=refused)
            assert await client.messages(1) == ["sorry"]
            await client.expect("reject_subscription", identifier=refused)
            await client.send(command="message", identifier=refused, data=call())
            await client.send(command="subscribe", identifier=granted)
            await client.expect("confirm_subscription", identifier=granted)
        assert list((await stage.heard(client.sid, "disconnect")).subscriptions) == [granted]
        assert stage.story(client.sid) == ["connect", "subscribe", "subscribe", "disconnect"]

    async def test_failed_subscribe_is_rejected(self, stage: Stage) -> None:
        failing, unknown = seat(Order(say=("never said",), fail=True)), seat().replace(CHANNEL, "NoSuchChannel")
        async with stage.client() as client:
            for wanted in (failing, unknown):
                await client.send(command="subscribe", identifier=wanted)
                await client.expect("reject_subscription", identifier=wanted)
            await client.send(command="subscribe", identifier=seat())
            await client.expect("confirm_subscription", identifier=seat())

    async def test_all_streams_are_delivered_after_the_confirmation(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("many/1", "many/2", "many/3")))
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted)
            assert await client.expect("confirm_subscription") == {"type": "confirm_subscription", "identifier": wanted}
            for number in (3, 1, 2):
                await publish(stage.server, f"many/{number}", f'"to {number}"')
            assert await client.messages(3) == ["to 3", "to 1", "to 2"]
            assert {frame["identifier"] for frame in client.received if kind(frame) == "message"} == {wanted}

    async def test_history_covers_all_streams_of_the_subscription(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("past/1", "past/2")))
        for stream in ("past/1", "past/2", "past/1"):
            await publish(stage.server, stream, f'"{stream}"')
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted, history={"since": 1})
            await client.expect("confirm_subscription")
            assert await client.messages(3) == ["past/1", "past/1", "past/2"]
            await client.expect("confirm_history")
            await publish(stage.server, "past/2", '"live"')
            assert await client.messages(1) == ["live"]

    async def test_gap_in_one_stream_is_reported_and_the_others_are_complete(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("whole", "holed", "still")))
        seen = [await publish(stage.server, stream, '"seen"') for stream in ("whole", "holed", "still")]
        await publish(stage.server, "whole", '"missed"')
        for number in range(10):  # more than is kept
            await publish(stage.server, "holed", f"{number}")
        known = history(*({**position, "stream_id": position["stream"]} for position in seen))
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted, history=known)
            await client.expect("confirm_subscription")
            assert await client.messages(1) == ["missed"]
            rejection = await client.expect("reject_history", identifier=wanted)
            assert {stream: gap["reason"] for stream, gap in rejection["streams"].items()} == {"holed": "trimmed"}
            assert await client.messages(5) == [5, 6, 7, 8, 9]
            for stream in ("whole", "holed", "still"):
                await publish(stage.server, stream, f'"live {stream}"')
            assert await client.messages(3) == ["live whole", "live holed", "live still"]

    async def test_replies_arrive_in_the_order_of_the_commands(self, stage: Stage) -> None:
        first, second = seat(Order(say=("first",))), seat(Order(say=("second",)), number=1)
        async with stage.client(protocol=BASE) as client:
            await client.send(command="subscribe", identifier=first)
            await client.send(command="message", identifier=first, data=call(Order(say=("third",))))
            await client.send(command="subscribe", identifier=seat(Order(fail=True)))
            await client.send(command="ping")
            await client.send(command="subscribe", identifier=identifier("own channel"))
            await client.send(command="subscribe", identifier=second)
            await client.send(command="message", identifier=second, data=call(Order(say=("fourth",))))
            await client.send(command="ping")
            frames = [await client.next() for _ in range(10)]
        assert [frame.get("message") or kind(frame) for frame in frames] == [
            "first",
            "confirm_subscription",
            "third",
            "reject_subscription",
            "pong",
            "confirm_subscription",
            "second",
            "confirm_subscription",
            "fourth",
            "pong",
        ]

    async def test_repeated_subscribe_is_confirmed_without_another_call(self, stage: Stage) -> None:
        async with stage.client() as client:
            for _ in range(2):
                await client.send(command="subscribe", identifier=seat())
                await client.expect("confirm_subscription", identifier=seat())
            assert stage.story(client.sid) == ["connect", "subscribe"]

    async def test_built_in_channels_do_not_call_the_application(self, stage: Stage) -> None:
        async with stage.client() as client:
            await client.subscribe("own channel")
            await client.send(command="unsubscribe", identifier=identifier("own channel"))
            await client.quiet()
            assert stage.story(client.sid) == ["connect"]

    async def test_unsubscribe_call_has_the_state_and_delivery_ends(self, stage: Stage) -> None:
        left, stays = seat(Order(streams=("left",), keep={"seat": "1"})), seat(Order(streams=("stays",)))
        async with stage.client(protocol=BASE) as client:
            for wanted in (left, stays):
                await client.send(command="subscribe", identifier=wanted)
                await client.expect("confirm_subscription")
            await client.send(command="unsubscribe", identifier=left)
            assert (await stage.heard(client.sid, "unsubscribe")).own == {"seat": "1"}
            await client.send(command="message", identifier=stays, data=call())
            await client.quiet()
            await publish(stage.server, "left", '"not heard"')
            await publish(stage.server, "stays", '"heard"')
            assert await client.messages(1) == ["heard"]
        assert list((await stage.heard(client.sid, "disconnect")).subscriptions) == [stays]
        assert stage.story(client.sid) == ["connect", "subscribe", "subscribe", "unsubscribe", "message", "disconnect"]

    async def test_new_subscription_starts_with_an_empty_state(self, stage: Stage) -> None:
        wanted = seat()
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted)
            await client.send(command="message", identifier=wanted, data=call(Order(keep={"old": "1"})))
            await client.send(command="unsubscribe", identifier=wanted)
            await client.send(command="subscribe", identifier=wanted)
            await client.send(command="message", identifier=wanted, data=call())
            for _ in range(2):
                await client.expect("confirm_subscription")
            await client.quiet()
            last = await stage.heard(client.sid, "message")
            assert last.own == {}
