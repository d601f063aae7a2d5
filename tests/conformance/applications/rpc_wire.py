"""What only applications that are asked by RPC can do: say the wire's own messages, or leave them to the server."""

from ropewalk.testing.application_orders import WELCOME_BACK, Order, call, seat
from tests.cable import BASE, cable, identifier
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.stage import Stage

SILENT = {"silent": "1"}


class RpcWire:
    async def test_a_welcome_a_confirmation_and_a_rejection_are_said_even_if_the_application_does_not(
        self, stage: Stage
    ) -> None:
        granted, refused = seat(Order(say=("hello",))), seat(Order(say=("no",), reject=True))
        async with stage.client(params=SILENT) as client:
            await client.send(command="subscribe", identifier=granted)
            assert await client.messages(1) == ["hello"]
            await client.expect("confirm_subscription", identifier=granted)
            await client.send(command="subscribe", identifier=refused)
            assert await client.messages(1) == ["no"]
            await client.expect("reject_subscription", identifier=refused)

    async def test_what_is_no_message_of_the_wire_reaches_nobody(self, stage: Stage) -> None:
        blurting, wanted = seat(Order(blurt=("hello",))), seat()
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=blurting)
            await client.expect("reject_subscription", identifier=blurting)
            await subscribed(client, wanted)
            await client.send(command="message", identifier=wanted, data=call(Order(blurt=("[1]",))))
            await client.quiet()

    async def test_who_is_refused_is_told_so_even_if_the_application_does_not(self, stage: Stage) -> None:
        async with cable(stage.server, welcome=False, params=SILENT) as client:
            await client.expect("disconnect", reason="unauthorized", reconnect=False)
            assert await client.closed() == (1000, "Auth Failed")

    async def test_an_action_on_a_channel_of_the_servers_own_leaves_it_the_servers_own(self, stage: Stage) -> None:
        own = identifier("commons")
        async with stage.client() as one, stage.client(protocol=BASE) as two:
            for client in (one, two):
                await client.subscribe("commons")
            await two.send(command="message", identifier=own, data=call(Order(say=("done",))))
            assert await two.messages(1) == ["done"]
            await two.send(command="whisper", identifier=own, data="psst")
            assert await one.messages(1) == ["psst"]
        assert (await stage.heard(two.sid, "disconnect")).subscriptions == {}

    async def test_a_return_is_told_with_the_former_sid(self, stage: Stage) -> None:
        async with stage.client() as client:
            await subscribed(client, seat())
            await client.cut()
            async with stage.client(sid=client.sid) as back:
                assert await back.messages(1) == [WELCOME_BACK]
                told = await stage.heard(back.sid, "restored")
                assert told.former == client.sid
