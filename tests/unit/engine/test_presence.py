"""Asking who is there: an answer is bounded by bytes, and what it does not hold is asked for page by page."""

from typing import Any

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.presence import Member
from tests.unit.engine.workbench import Client, Workbench, public

INFO = b'"%s"' % (b"x" * 4000)
UNPACED = Limits(ping_interval=0, command_rate=0)


async def _crowd(bench: Workbench, count: int, info: bytes = INFO) -> list[str]:
    ids = [f"{number:05}" for number in range(count)]
    for each in ids:
        await bench.backend.presence.join("s", f"sid-{each}", Member(each, info))
    return ids


async def _ask(client: Client, **options: object) -> dict[str, Any]:
    await client.send(command="presence", identifier=public("s"), data=options)
    reply = client.connection.replies()[-1]
    assert reply["type"] == "presence"
    message: dict[str, Any] = reply["message"]
    return message


async def test_an_answer_is_bounded_however_large_the_set() -> None:
    async with Workbench() as bench:
        await _crowd(bench, 2000)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        answer = await _ask(client)
        assert answer["total"] == 2000
        assert 0 < len(answer["records"]) < 2000
        assert max(map(len, client.connection.written)) < 140_000


async def test_the_pages_of_a_large_set_make_up_all_of_it() -> None:
    async with Workbench(UNPACED) as bench:
        ids = await _crowd(bench, 300)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        page = await _ask(client)
        found = [record["id"] for record in page["records"]]
        while "next" in page:
            page = await _ask(client, after=page["next"])
            assert page["total"] == 300
            found += [record["id"] for record in page["records"]]
        assert found == ids


async def test_a_set_that_fits_is_answered_as_the_reference_does() -> None:
    async with Workbench() as bench:
        await _crowd(bench, 2, b"")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        assert await _ask(client) == {"type": "info", "total": 2, "records": [{"id": "00000"}, {"id": "00001"}]}


@pytest.mark.parametrize("max_pending", [20_000, 200_000])
async def test_no_answer_takes_more_than_a_share_of_what_may_wait(max_pending: int) -> None:
    async with Workbench(Limits(ping_interval=0, command_rate=0, max_pending=max_pending)) as bench:
        await _crowd(bench, 300)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.writing_paused()
        for _ in range(2):
            await client.send(command="presence", identifier=public("s"))
        assert client.connection.closed is None
        assert 0 < client.session.link.pending() <= max_pending
        for _ in range(5):
            await client.send(command="presence", identifier=public("s"))
        assert client.connection.closed == (1000, "Too slow")


async def test_a_set_of_many_small_members_fills_an_answer() -> None:
    async with Workbench(UNPACED) as bench:
        await _crowd(bench, 6000, b"")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        answer = await _ask(client)
        assert 1000 < len(answer["records"]) < 6000
        assert answer["next"] == answer["records"][-1]["id"]


async def test_a_long_answer_counts_as_several_commands() -> None:
    async with Workbench(Limits(ping_interval=0, command_rate=0.001, command_burst=10)) as bench:
        await _crowd(bench, 100)
        client, modest = await bench.connect(), await bench.connect()
        for each in (client, modest):
            await each.send(command="subscribe", identifier=public("s"))
        await client.send(command="presence", identifier=public("s"))
        await modest.send(command="presence", identifier=public("s"), data={"return_records": False})
        for each in (client, modest):
            await each.send(command="ping")
        assert client.seen() == ["welcome", "confirm_subscription", "presence"]
        assert modest.seen() == ["welcome", "confirm_subscription", "presence", "pong"]


async def test_the_id_of_a_member_is_bounded_in_bytes() -> None:
    async with Workbench() as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        for member_id in ("\N{GRINNING FACE}" * 1025, "x" * 4097, "\N{GRINNING FACE}" * 1024):
            await client.send(command="join", identifier=public("s"), presence={"id": member_id})
        page = await bench.backend.presence.page("s", "", 10)
        assert [len(member.id) for member in page.members] == [1024]
