"""Time and ends: pings, expiry of tokens, drain, remote disconnects."""

import asyncio

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from tests.unit.engine.workbench import Workbench, public, settle


class As:
    """Everybody is `ids`, until `expires_at`."""

    def __init__(self, ids: str, expires_at: float | None = None) -> None:
        self.answer = Accepted(ids, expires_at)

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        return self.answer


async def test_a_remote_disconnect_ends_every_session_of_the_identifier_and_no_other() -> None:
    async with Workbench(authenticators=[As("bo")]) as bench:
        named = [await bench.connect() for _ in range(3)]
        assert await bench.node.broker.disconnect(RemoteDisconnect("someone else", True)) == 0
        assert await bench.node.broker.disconnect(RemoteDisconnect("bo", False)) == 3
        for client in named:
            assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "remote", "reconnect": False}


async def test_a_token_that_is_over_ends_a_live_connection() -> None:
    async with Workbench(authenticators=[As("bo", 1_800_000_000.0 + 1e-4)]) as bench:
        client = await bench.connect()
        bench.clock.now += 1
        while client.connection.closed is None:
            await settle()
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "token_expired", "reconnect": False}


async def test_a_token_that_ends_in_a_thousand_years_is_no_problem() -> None:
    async with Workbench(authenticators=[As("bo", 4e10)]) as bench:
        client = await bench.connect()
        assert client.seen() == ["welcome"]


@pytest.mark.parametrize(("precision", "stamp"), [("", 1_800_000_000), ("ms", 1_800_000_000_000), ("xx", 1_800_000_000)])
async def test_pings_carry_the_precision_the_client_asked_for(precision: str, stamp: int) -> None:
    async with Workbench(Limits(ping_interval=0.001)) as bench:
        client = await bench.connect(ptp=precision)
        while "ping" not in client.seen():
            await asyncio.sleep(0)
        assert client.connection.replies()[1] == {"type": "ping", "message": stamp}


async def test_a_client_may_switch_pings_off() -> None:
    async with Workbench(Limits(ping_interval=0.001)) as bench:
        quiet, other = await bench.connect(pi="0"), await bench.connect()
        while other.seen().count("ping") < 3:
            await asyncio.sleep(0)
        assert quiet.seen() == ["welcome"]


async def test_a_draining_node_tells_everybody_and_lets_nobody_in() -> None:
    async with Workbench() as bench:
        clients = [await bench.connect() for _ in range(5)]
        await clients[0].send(command="subscribe", identifier=public("s"))
        await bench.node.drain(0)
        for client in clients:
            assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "server_restart", "reconnect": True}
            assert client.connection.closed == (1001, "Server restart")
        assert bench.node.health() == ["shutting down"]
        late = await bench.connect()
        assert late.connection.replies()[0]["reason"] == "server_restart"
        assert bench.report().streams_listened == 0


async def test_a_node_about_to_leave_says_so_and_works_on() -> None:
    async with Workbench() as bench:
        assert bench.node.health() == []
        bench.node.leave()
        assert bench.node.health() == ["shutting down"]
        client = await bench.connect()
        assert client.seen() == ["welcome"]


async def test_connections_are_counted_while_they_are_there() -> None:
    async with Workbench() as bench:
        one, _ = await bench.connect(), await bench.connect()
        assert bench.report().connections == 2
        one.session.lost()
        assert bench.report().connections == 1
