"""RPC applications may send the protocol's own messages (welcome, confirmation, rejection) or leave them to the server."""

from ropewalk.testing.application_orders import WELCOME_BACK, Order, call, seat
from tests.cable import BASE, cable, identifier
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.stage import Stage

SILENT = {"silent": "1"}


class RpcWire:
    async def test_server_sends_welcome_and_replies_that_the_application_omits(self, stage: Stage) -> None:
        granted, refused = seat(Order(say=("hello",))), seat(Order(say=("no",), reject=True))
        async with stage.client(params=SILENT) as client:
            await client.send(command="subscribe", identifier=granted)
            assert await client.messages(1) == ["hello"]
            await client.expect("confirm_subscription", identifier=granted)
            await client.send(command="subscribe", identifier=refused)
            assert await client.messages(1) == ["no"]
            await client.expect("reject_subscription", identifier=refused)

    async def test_malformed_transmission_is_not_sent(self, stage: Stage) -> None:
        blurting, wanted = seat(Order(blurt=("hello",))), seat()
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=blurting)
            await client.expect("reject_subscription", identifier=blurting)
            await subscribed(client, wanted)
            await client.send(command="message", identifier=wanted, data=call(Order(blurt=("[1]",))))
            await client.quiet()

    async def test_server_sends_the_refusal_that_the_application_omits(self, stage: Stage) -> None:
        async with cable(stage.server, welcome=False, params=SILENT) as client:
            await client.expect("disconnect", reason="unauthorized", reconnect=False)
            assert await client.closed() == (1000, "Auth Failed")

    async def test_action_on_a_built_in_channel_does_not_take_it_over(self, stage: Stage) -> None:
        own = identifier("commons")
        async with stage.client() as one, stage.client(protocol=BASE) as two:
            for client in (one, two):
                await client.subscribe("commons")
            await two.send(command="message", identifier=own, data=call(Order(say=("done",))))
            assert await two.messages(1) == ["done"]
            await two.send(command="whisper", identifier=own, data="psst")
            assert await one.messages(1) == ["psst"]
        assert (await stage.heard(two.sid, "disconnect")).subscriptions == {}

    async def test_restored_call_has_the_former_sid(self, stage: Stage) -> None:
        async with stage.client() as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(sid=client.sid) as back:
                assert await back.messages(1) == [WELCOME_BACK]
                event = await stage.heard(back.sid, "restored")
                assert event.former == client.sid
