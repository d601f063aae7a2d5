"""Presence requests: replies are bounded by bytes, and large sets are paged."""

from typing import Any

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.presence import Member
from tests.unit.engine.workbench import Client, Workbench, public

INFO = b'"%s"' % (b"x" * 4000)
UNPACED = Limits(ping_interval=0, command_rate=0)


async def _join_members(bench: Workbench, count: int, info: bytes = INFO) -> list[str]:
    ids = [f"{number:05}" for number in range(count)]
    for each in ids:
        await bench.backend.presence.join("s", f"sid-{each}", Member(each, info))
    return ids


async def _request_presence(client: Client, **options: object) -> dict[str, Any]:
    await client.send(command="presence", identifier=public("s"), data=options)
    reply = client.connection.replies()[-1]
    assert reply["type"] == "presence"
    message: dict[str, Any] = reply["message"]
    return message


async def test_reply_size_is_bounded_for_a_large_set() -> None:
    async with Workbench() as bench:
        await _join_members(bench, 2000)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        answer = await _request_presence(client)
        assert answer["total"] == 2000
        assert 0 < len(answer["records"]) < 2000
        assert max(map(len, client.connection.written)) < 140_000


async def test_pages_of_a_large_set_cover_all_members() -> None:
    async with Workbench(UNPACED) as bench:
        ids = await _join_members(bench, 300)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        page = await _request_presence(client)
        found = [record["id"] for record in page["records"]]
        while "next" in page:
            page = await _request_presence(client, after=page["next"])
            assert page["total"] == 300
            found += [record["id"] for record in page["records"]]
        assert found == ids


async def test_small_set_is_answered_like_the_reference() -> None:
    async with Workbench() as bench:
        await _join_members(bench, 2, b"")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        assert await _request_presence(client) == {"type": "info", "total": 2, "records": [{"id": "00000"}, {"id": "00001"}]}


@pytest.mark.parametrize("max_pending", [20_000, 200_000])
async def test_reply_takes_at_most_a_share_of_the_outbox(max_pending: int) -> None:
    async with Workbench(Limits(ping_interval=0, command_rate=0, max_pending=max_pending)) as bench:
        await _join_members(bench, 300)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        for _ in range(2):
            await client.send(command="presence", identifier=public("s"))
        assert client.connection.closed is None
        assert 0 < client.session.link.pending() <= max_pending
        for _ in range(5):
            await client.send(command="presence", identifier=public("s"))
        assert client.connection.closed == (1000, "Too slow")


async def test_many_small_members_fill_a_reply() -> None:
    async with Workbench(UNPACED) as bench:
        await _join_members(bench, 6000, b"")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        answer = await _request_presence(client)
        assert 1000 < len(answer["records"]) < 6000
        assert answer["next"] == answer["records"][-1]["id"]


async def test_long_reply_counts_as_several_commands() -> None:
    async with Workbench(Limits(ping_interval=0, command_rate=0.001, command_burst=10)) as bench:
        await _join_members(bench, 100)
        client, modest = await bench.connect(), await bench.connect()
        for each in (client, modest):
            await each.send(command="subscribe", identifier=public("s"))
        await client.send(command="presence", identifier=public("s"))
        await modest.send(command="presence", identifier=public("s"), data={"return_records": False})
        for each in (client, modest):
            await each.send(command="ping")
        assert client.seen() == ["welcome", "confirm_subscription", "presence"]
        assert modest.seen() == ["welcome", "confirm_subscription", "presence", "pong"]


async def test_member_id_is_limited_in_bytes() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        for member_id in ("\N{GRINNING FACE}" * 1025, "x" * 4097, "\N{GRINNING FACE}" * 1024):
            await client.send(command="join", identifier=public("s"), presence={"id": member_id})
        page = await bench.backend.presence.members("s", "", 10)
        assert [len(member.id) for member in page.members] == [1024]
