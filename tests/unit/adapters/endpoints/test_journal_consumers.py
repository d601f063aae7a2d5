"""The consumers endpoint over a real socket: offsets are validated, have one spelling, and only move forward."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.journal import ConsumersEndpoint
from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.core.ring import locate_shard
from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running
from tests.unit.adapters.http_server import Client, serving

CLOCK = ManualClock()
ROWS = 10
FULL = locate_shard("a", 3)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[ArrowJournal]:
    async with running(tmp_path, CLOCK, new_epoch=lambda: "x") as (journal, _):
        await journal.write([publication("a", offset) for offset in range(1, ROWS + 1)])
        yield journal


@pytest.fixture
async def client(journal: ArrowJournal) -> AsyncIterator[Client]:
    opened = ConsumersEndpoint(journal, journal, KeyGuard("", Counter())).routes("/journal")
    closed = ConsumersEndpoint(journal, journal, KeyGuard("k3y", Counter())).routes("/closed")
    endpoints = (opened, closed)
    async with serving([route for endpoint in endpoints for route in endpoint]) as client:
        yield client


def offset(position: int, shard: int = FULL) -> dict[str, object]:
    return {str(shard): {"e": "x", "p": position}}


async def send(client: Client, method: str, body: object, name: str = "etl") -> tuple[int, object]:
    async with client.request(method, f"/journal/consumers/{name}", json=body) as response:
        return response.status, await response.json()


async def listed(client: Client) -> list[dict[str, object]]:
    async with client.get("/journal/consumers") as response:
        found: list[dict[str, object]] = (await response.json())["consumers"]
        return found


async def test_first_offset_is_pinned_and_returned_later(client: Client) -> None:
    assert await send(client, "POST", offset(4)) == (200, offset(4))
    assert await send(client, "POST", offset(9)) == (200, offset(4))


async def test_consumer_moves_forward_only(client: Client) -> None:
    await send(client, "POST", offset(4))

    assert await send(client, "PUT", offset(7)) == (200, offset(7))
    assert await send(client, "PUT", offset(5)) == (200, offset(7))
    assert await send(client, "POST", offset(0)) == (200, offset(7))


async def test_unknown_consumer_starts_where_it_is_moved_to(client: Client) -> None:
    assert await send(client, "PUT", offset(7)) == (200, offset(7))


async def test_offset_has_its_shards_in_order(client: Client) -> None:
    marks = {shard: {"p": 0, "e": ""} for shard in ("2", "0", "1")}
    async with client.post("/journal/consumers/etl", json=marks) as response:
        assert await response.read() == b'{"0":{"e":"","p":0},"1":{"e":"","p":0},"2":{"e":"","p":0}}'


async def test_consumers_are_listed_with_their_lag_by_shard(client: Client) -> None:
    await send(client, "POST", {**offset(4), **offset(0, (FULL + 1) % 3)}, "b")
    await send(client, "POST", offset(ROWS), "a")

    first, second = await listed(client)
    assert first == {"name": "a", "offset": offset(ROWS), "moved": CLOCK.now, "lag": {str(FULL): 0}}
    assert (second["name"], second["lag"]) == ("b", {str(FULL): ROWS - 4, str((FULL + 1) % 3): 0})


async def test_deleted_consumer_can_be_pinned_again(client: Client) -> None:
    await send(client, "POST", offset(4))
    async with client.delete("/journal/consumers/etl") as response:
        assert response.status == 200
    async with client.delete("/journal/consumers/etl") as response:
        assert response.status == 404
    assert await listed(client) == []
    assert await send(client, "POST", offset(9)) == (200, offset(9))


async def test_invalid_offsets_are_refused(client: Client, subtests: pytest.Subtests) -> None:
    rows: list[object] = [
        {},
        [],
        {"x": {"e": "", "p": 0}},
        {"3": {"e": "", "p": 0}},
        {"0": {"e": ""}},
        {"0": {"e": "", "p": -1}},
        {"0": {"e": "", "p": 1.5}},
        offset(ROWS + 1),
        {"0": {"e": "e" * 65, "p": 0}},
        {"0": {"e": "another", "p": 0}},
        {str(FULL): {"e": "another", "p": 4}},
        {str(FULL): {"e": "", "p": 4}},
    ]
    for body in rows:
        for method in ["POST", "PUT"]:
            with subtests.test(body=body, method=method):
                status, _ = await send(client, method, body)
                assert status == 400
                assert await listed(client) == []


async def test_invalid_names_are_refused(client: Client, subtests: pytest.Subtests) -> None:
    for name in ["a%20b", "x" * 129, "%2F", "ä"]:
        with subtests.test(name=name):
            status, _ = await send(client, "POST", offset(1), name)
            assert status == 400


async def test_body_that_is_too_large_is_refused(client: Client) -> None:
    async with client.post("/journal/consumers/etl", data=b" " * 70_000) as response:
        assert response.status == 413


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/a"), ("PUT", "/a"), ("DELETE", "/a")])
async def test_every_path_needs_the_key(client: Client, method: str, path: str) -> None:
    async with client.post("/journal/consumers/a", json=offset(1)) as response:
        assert response.status == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        async with client.request(method, f"/closed/consumers{path}", json=offset(1), headers=headers) as response:
            assert response.status == 401
    headers = {"Authorization": "Bearer k3y"}
    async with client.request(method, f"/closed/consumers{path}", json=offset(1), headers=headers) as response:
        assert response.status == 200
