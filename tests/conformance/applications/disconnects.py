"""End of a session: the application receives one disconnect call with all its subscriptions and state."""

import asyncio
import json
import signal

import pytest

from ropewalk.testing.application_orders import SLOW, Order, call, seat
from tests.cable import BASE, EXTENDED, Cable
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.stage import PYTHON, Stage, staged
from tests.tcp import CLOSE, client_frame, tcp, upgrade_request

GOING_AWAY = 1001
STOP_SECONDS = 60
CROWD = 30  # more than the calls that are made at once


async def lost_and_back(stage: Stage) -> tuple[list[str], str]:
    """Lose sessions until one is resumed. Returns the sids of the lost ones and the new sid of the last."""
    lost: list[str] = []
    while True:
        async with stage.client(user="carl") as client:
            await subscribed(client, seat())
            await client.cut()
            lost.append(client.sid)
        async with stage.client(user="carl", welcome=False, sid=client.sid) as back:
            if (await back.expect("welcome")).get("restored"):
                await back.cut()
                return lost, back.received[0]["sid"]


class Leaving:
    kind: str
    flags: tuple[str, ...] = ()

    async def test_base_protocol_client_that_closes_is_disconnected_at_once(self, stage: Stage) -> None:
        wanted = seat(Order(keep={"seat": "1"}, remember={"lang": "de"}))
        for cut in (False, True):
            async with stage.client(protocol=BASE) as client:
                await subscribed(client, wanted)
                await client.send(command="message", identifier=wanted, data=call(Order(keep={"seat": "2"})))
                await client.quiet()
                if cut:
                    await client.cut()
            disconnect_call = await stage.heard(client.sid, "disconnect")
            assert disconnect_call.subscriptions == {wanted: {"seat": "2"}}
            assert disconnect_call.state == {"entered": "yes", "lang": "de"}
            assert disconnect_call.ids == '{"user":"ann"}'
            assert stage.story(client.sid) == ["connect", "subscribe", "message", "disconnect"]

    async def test_client_that_goes_away_is_disconnected_at_once(self, stage: Stage) -> None:
        async with tcp(stage.server) as link:
            await link.send(upgrade_request("/cable?user=ann", EXTENDED))
            assert b" 101 " in await link.head()
            sid = json.loads((await link.frame())[1])["sid"]
            await link.send(client_frame(GOING_AWAY.to_bytes(2), CLOSE))
            await stage.heard(sid, "disconnect")
            assert stage.story(sid) == ["connect", "disconnect"]

    async def test_client_that_leaves_during_the_connect_call_is_disconnected(self, stage: Stage) -> None:
        async with stage.client(user="brief", welcome=False, params={SLOW: "1"}, protocol=BASE) as client:
            sid = (await stage.heard_by("user=brief", "connect")).sid
            await client.cut()
        disconnect_call = await stage.heard(sid, "disconnect")
        assert disconnect_call.ids == '{"user":"brief"}'
        assert disconnect_call.state == {"entered": "yes"}
        assert stage.story(sid) == ["connect", "disconnect"]

    async def test_disconnect_call_includes_commands_that_end_after_the_client_left(self, stage: Stage) -> None:
        slow, quick = seat(Order(slow=True, keep={"seat": "1"})), seat(Order(keep={"seat": "1"}))
        async with stage.client(protocol=BASE) as one, stage.client(protocol=BASE) as two:
            await subscribed(two, quick)
            await one.send(command="subscribe", identifier=slow)
            await two.send(command="message", identifier=quick, data=call(Order(slow=True, keep={"seat": "2"})))
            await stage.heard(one.sid, "subscribe")
            await stage.heard(two.sid, "message")
            await one.cut()
            await two.cut()
        assert (await stage.heard(one.sid, "disconnect")).subscriptions == {slow: {"seat": "1"}}
        assert (await stage.heard(two.sid, "disconnect")).subscriptions == {quick: {"seat": "2"}}

    @pytest.mark.parametrize("path", ["/_broadcast", "/api/publish"])
    async def test_remote_disconnect_ends_all_sessions_of_the_user(self, stage: Stage, path: str) -> None:
        wanted = seat(Order(keep={"seat": "1"}))
        async with stage.client(user=path) as one, stage.client(user=path, protocol=BASE) as two, stage.client() as other:
            for client in (one, two, other):
                await subscribed(client, wanted)
            assert await stage.dismiss(json.dumps({"user": path}, separators=(",", ":")), path) == 2
            for client in (one, two):
                await client.expect("disconnect", reason="remote", reconnect=False)
                assert await client.closed() == (1000, "Closed remotely")
                assert (await stage.heard(client.sid, "disconnect")).subscriptions == {wanted: {"seat": "1"}}
            await other.quiet()
            assert stage.story(other.sid) == ["connect", "subscribe"]

    async def test_lost_session_is_disconnected_after_its_ttl(self) -> None:
        with staged(self.kind, *self.flags, "--sessions_ttl", "1s") as stage:
            async with stage.client(headers={"X-Tenant": "acme", "Cookie": "user=ann; theme=dark"}) as client:
                await subscribed(client, seat(Order(keep={"seat": "1"})))
                await client.cut()
            lost, back = await lost_and_back(stage)
            disconnect_call = await stage.heard(client.sid, "disconnect")
            assert disconnect_call.subscriptions == {seat(Order(keep={"seat": "1"})): {"seat": "1"}}
            assert disconnect_call.headers == {"cookie": "user=ann; theme=dark", "REMOTE_ADDR": "127.0.0.1"}  # by default
            await stage.heard(back, "disconnect")
            returns = ["restored"] if self.kind == PYTHON else []  # RPC applications need the setting
            assert stage.story(lost[-1], back) == ["connect", "subscribe", *returns, "disconnect"]
            assert stage.story(lost[-1])[-1] == "subscribe"

    async def test_stopping_server_disconnects_all_sessions(self) -> None:
        with staged(self.kind, *self.flags) as stage:
            clients = [await Cable.connect(stage.server.cable, params={"user": f"u{number}"}) for number in range(CROWD)]
            for client in clients:
                await client.welcomed()
                await subscribed(client, seat(Order(keep={"seat": "1"})))
            away = clients.pop()
            await away.cut()
            stage.server.process.send_signal(signal.SIGTERM)
            for client in clients:
                await client.expect("disconnect", reason="server_restart", reconnect=True)
                assert await client.closed() == (1001, "Server restart")
                await client.close()
            assert await asyncio.to_thread(stage.server.process.wait, STOP_SECONDS) == 0
            for client in (*clients, away):
                assert stage.story(client.sid) == ["connect", "subscribe", "disconnect"]
                disconnect_call = await stage.heard(client.sid, "disconnect")
                assert disconnect_call.subscriptions == {seat(Order(keep={"seat": "1"})): {"seat": "1"}}
