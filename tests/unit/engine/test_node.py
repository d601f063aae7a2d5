"""A node's sessions: token expiry, drain, remote disconnects."""

import asyncio

from ropewalk.core.roster import MAX_EXPIRED_AT_ONCE
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from tests.unit.engine.workbench import Workbench, public, settle


class AcceptAs:
    """Accepts every client as `ids`, until `expires_at`."""

    def __init__(self, ids: str, expires_at: float | None = None) -> None:
        self.answer = Accepted(ids, expires_at)

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        return self.answer


async def test_remote_disconnect_ends_all_sessions_of_the_identifier_only() -> None:
    async with Workbench(authenticators=[AcceptAs("bo")]) as bench:
        named = [await bench.connect() for _ in range(3)]
        assert await bench.node.broker.disconnect(RemoteDisconnect("someone else", True)) == 0
        assert await bench.node.broker.disconnect(RemoteDisconnect("bo", False)) == 3
        for client in named:
            assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "remote", "reconnect": False}


async def test_expired_token_ends_a_live_connection() -> None:
    async with Workbench(authenticators=[AcceptAs("bo", 1_800_000_000.0 + 1e-4)]) as bench:
        client = await bench.connect()
        bench.clock.now += 1
        while client.connection.closed is None:
            await settle()
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "token_expired", "reconnect": False}


async def test_token_that_expires_in_a_thousand_years_is_accepted() -> None:
    async with Workbench(authenticators=[AcceptAs("bo", 4e10)]) as bench:
        client = await bench.connect()
        assert client.seen() == ["welcome"]


async def test_draining_node_disconnects_all_clients_and_refuses_new_ones() -> None:
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


async def test_leaving_node_reports_it_and_keeps_working() -> None:
    async with Workbench() as bench:
        assert bench.node.health() == []
        bench.node.leave()
        assert bench.node.health() == ["shutting down"]
        client = await bench.connect()
        assert client.seen() == ["welcome"]


async def test_live_connections_are_counted() -> None:
    async with Workbench() as bench:
        one, _ = await bench.connect(), await bench.connect()
        assert bench.report().connections == 2
        one.session.connection_lost()
        assert bench.report().connections == 1


EXPIRED = 2 * MAX_EXPIRED_AT_ONCE + 1


async def members_after_each_turn(bench: Workbench) -> list[float]:
    """The members during one upkeep, each number once."""
    upkeep, left = asyncio.ensure_future(bench.node.upkeep()), [bench.backend.gauges()["presence_members"]]
    while not upkeep.done():
        await asyncio.sleep(0)
        left.append(bench.backend.gauges()["presence_members"])
    await upkeep
    return list(dict.fromkeys(left))


async def test_one_upkeep_expires_all_members_that_are_due_in_slices() -> None:
    async with Workbench() as bench:
        for number in range(EXPIRED):
            await bench.backend.presence.join("s", f"sid {number}", Member(f"member {number}"))
            await bench.backend.presence.detach(f"sid {number}", 10.0)
        bench.clock.now += 11
        assert await members_after_each_turn(bench) == [EXPIRED, EXPIRED - MAX_EXPIRED_AT_ONCE, 1, 0]


async def test_expired_sids_without_an_event_do_not_delay_the_others() -> None:
    """All sids but the last one hold the same member, which another sid holds too."""
    async with Workbench() as bench:
        presence = bench.backend.presence
        for number in range(EXPIRED):
            await presence.join("s", f"sid {number}", Member("late" if number == EXPIRED - 1 else "same"))
            await presence.detach(f"sid {number}", 10.0)
        await presence.join("s", "connected", Member("same"))
        bench.clock.now += 11
        assert await members_after_each_turn(bench) == [2, 1]
