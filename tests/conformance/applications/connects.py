"""Accepting and refusing clients, and the connection data that the application receives."""

import pytest

from ropewalk.testing.application_orders import FAILING, NAME, Order, call, seat
from tests.cable import BASE, EXTENDED, cable
from tests.conformance.applications.stage import Stage


class Connecting:
    @pytest.mark.parametrize("protocol", [BASE, EXTENDED])
    async def test_accepted_client_is_welcomed_with_the_sid_of_its_connect_call(self, stage: Stage, protocol: str) -> None:
        async with stage.client(protocol=protocol) as client:
            assert stage.story(client.sid) == ["connect"]
            await client.send(command="subscribe", identifier=seat())
            await client.expect("confirm_subscription", identifier=seat())
            event = await stage.heard(client.sid, "subscribe")
            assert event.ids == '{"user":"ann"}'

    @pytest.mark.parametrize("protocol", [BASE, EXTENDED])
    async def test_refused_client_is_disconnected_as_unauthorized(self, stage: Stage, protocol: str) -> None:
        async with cable(stage.server, welcome=False, protocol=protocol) as client:
            await client.expect("disconnect", reason="unauthorized", reconnect=False)
            assert await client.closed() == (1000, "Auth Failed")

    @pytest.mark.parametrize("protocol", [BASE, EXTENDED])
    async def test_failed_connect_call_closes_the_connection_without_a_message(self, stage: Stage, protocol: str) -> None:
        async with cable(stage.server, welcome=False, protocol=protocol, params={NAME: FAILING}) as client:
            assert await client.closed() == (1011, "Auth Error")
            assert client.received == []

    async def test_calls_carry_the_configured_headers_and_cookies(self, stage: Stage) -> None:
        headers = {
            "Cookie": "session=hidden; user=bea; theme=dark",
            "X-Tenant": "acme",
            "X-Hidden": "yes",
            "Authorization": "Bearer hidden",
        }
        seen = {"cookie": "user=bea; theme=dark", "x-tenant": "acme", "REMOTE_ADDR": "127.0.0.1"}
        async with cable(stage.server, headers=headers, protocol=BASE) as client:
            await client.send(command="subscribe", identifier=seat())
            await client.send(command="message", identifier=seat(), data=call())
            await client.expect("confirm_subscription")
            await client.quiet()
        await stage.heard(client.sid, "disconnect")
        calls = [event for event in stage.told() if event.sid == client.sid]
        assert [event.kind for event in calls] == ["connect", "subscribe", "message", "disconnect"]
        assert [event.headers for event in calls] == [seen] * 4
        assert [event.ids for event in calls] == [""] + ['{"user":"bea"}'] * 3

    async def test_connect_call_has_the_url_with_its_query(self, stage: Stage) -> None:
        async with stage.client(params={"room": "7", "q": "a b&c"}) as client:
            event = await stage.heard(client.sid, "connect")
            assert event.url == f"{stage.server.url}/cable?user=ann&room=7&q=a+b%26c"

    async def test_commands_before_the_welcome_are_executed_after_it(self, stage: Stage) -> None:
        async with cable(stage.server, welcome=False, params={NAME: "ann"}) as client:
            await client.send(command="subscribe", identifier=seat(Order(say=("hello",))))
            await client.send(command="ping")
            await client.welcomed()
            assert await client.messages(1) == ["hello"]
            await client.expect("confirm_subscription")
            await client.expect("pong")
