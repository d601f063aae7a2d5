"""The journal endpoint over a real socket: spans, bounded ranges, and errors for missing ones."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.journal import ARROW_STREAM, DEFAULT_BYTES, MAX_BYTES, JournalEndpoint
from ropewalk.model.errors import BadRequest, Unavailable
from ropewalk.model.journal import ShardSpan
from tests.unit.adapters.http_server import Client, serving

SPANS = [ShardSpan(0, "a", 10, 20), ShardSpan(0, "b", 100, 130), ShardSpan(1, "c", 0, 0)]
SHOWN = [{"shard": span.shard, "epoch": span.epoch, "first": span.first, "end": span.end} for span in SPANS]


class FakeJournal:
    """A journal of fixed chunks that may fail after them."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int, int]] = []
        self.chunks = [b"chunk one, ", b"chunk two"]
        self.breaks = False
        self.released = 0
        self._archived: dict[int, int] = {}

    def spans(self) -> list[ShardSpan]:
        return SPANS

    async def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        if first < 10:
            raise BadRequest(f"position {first} is gone")
        self.asked.append((shard, first, end, max_bytes))
        try:
            for chunk in self.chunks:
                yield chunk
            if self.breaks:
                raise Unavailable("the disk is gone")
        finally:
            self.released += 1

    def mark_archived(self, positions: dict[int, int]) -> None:
        self._archived.update(positions)

    def archived_ends(self) -> dict[int, int]:
        return self._archived


@pytest.fixture
def journal() -> FakeJournal:
    return FakeJournal()


@pytest.fixture
async def client(journal: FakeJournal) -> AsyncIterator[Client]:
    opened = JournalEndpoint(journal, KeyGuard("", Counter())).routes("/journal")
    closed = JournalEndpoint(journal, KeyGuard("k3y", Counter())).routes("/closed")
    async with serving([*opened, *closed]) as client:
        yield client


async def test_journal_lists_its_spans(client: Client) -> None:
    async with client.get("/journal") as response:
        assert (response.status, await response.json()) == (200, {"shards": 2, "spans": SHOWN, "holes": [], "archived": {}})


async def test_lost_positions_are_listed_as_holes(
    client: Client, journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [ShardSpan(0, "a", 10, 20), ShardSpan(0, "a", 25, 30), ShardSpan(0, "a", 40, 40), *SPANS[1:]]
    monkeypatch.setattr(journal, "spans", lambda: broken)
    async with client.get("/journal") as response:
        assert (await response.json())["holes"] == [
            {"shard": 0, "epoch": "a", "first": 20, "end": 25},
            {"shard": 0, "epoch": "a", "first": 30, "end": 40},
        ]


async def test_range_is_streamed_as_arrow(client: Client, journal: FakeJournal) -> None:
    async with client.get("/journal/0?from=12&to=15&max_bytes=1000") as response:
        assert (response.status, response.headers["Content-Type"]) == (200, ARROW_STREAM)
        assert await response.read() == b"chunk one, chunk two"
    assert journal.asked == [(0, 12, 15, 1000)]
    assert journal.released == 1


async def test_response_to_head_has_no_body(client: Client, subtests: pytest.Subtests) -> None:
    for path in ["/journal", "/journal/0", "/journal/0?from=3", "/journal/7"]:
        with subtests.test(path=path):
            async with client.get(path) as response:
                status, kind = response.status, response.headers["Content-Type"]
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            writer.write(b"GET /journal/0?from=12 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(60):
                answers = await reader.read()
            writer.close()
            head, following = answers.split(b"\r\n\r\n", 1)
            assert head.startswith(f"HTTP/1.1 {status} ".encode())
            assert f"Content-Type: {kind}".encode() in head
            assert following.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"chunk two" in following


async def test_range_without_bounds_ends_with_its_span_and_has_the_default_size(client: Client, journal: FakeJournal) -> None:
    for query in ("", "?from=15", "?from=101", "?from=50"):
        async with client.get(f"/journal/0{query}") as response:
            assert response.status == 200
    assert journal.asked == [(0, first, end, DEFAULT_BYTES) for first, end in ((10, 20), (15, 20), (101, 130), (50, 130))]


async def test_range_without_bounds_skips_generations_without_rows(
    client: Client, journal: FakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "spans", lambda: [ShardSpan(0, "a", 20, 20), *SPANS[1:]])
    async with client.get("/journal/0") as response:
        assert response.status == 200
    assert journal.asked == [(0, 100, 130, DEFAULT_BYTES)]


async def test_missing_range_is_answered_with_416_and_the_spans(client: Client) -> None:
    async with client.get("/journal/0?from=3") as response:
        assert (response.status, await response.json()) == (416, {"error": "position 3 is gone", "spans": SHOWN[:2]})


async def test_unknown_shard_is_answered_with_404(client: Client) -> None:
    async with client.get("/journal/2") as response:
        assert (response.status, await response.json()) == (404, {"error": "unknown shard: 2", "shards": 2})


async def test_invalid_numbers_are_refused(client: Client, journal: FakeJournal, subtests: pytest.Subtests) -> None:
    for query in ["from=x", "to=-1", "max_bytes=0", f"max_bytes={MAX_BYTES + 1}", "from=99999999999999999999"]:
        with subtests.test(query=query):
            async with client.get(f"/journal/0?{query}") as response:
                assert response.status == 400
            assert journal.asked == []


async def test_response_that_breaks_off_is_detected_by_the_client(client: Client, journal: FakeJournal) -> None:
    journal.breaks = True
    with pytest.raises(aiohttp.ClientPayloadError):
        async with client.get("/journal/0") as response:
            await response.read()
    assert journal.released == 1


async def test_disconnected_reader_releases_the_journal(client: Client, journal: FakeJournal) -> None:
    journal.chunks = [b"x" * 1_000_000] * 60
    async with client.get("/journal/0") as response:
        await response.content.read(1000)
        response.close()
    async with client.get("/journal/1?from=10") as response:
        await response.read()
    async with asyncio.timeout(60):
        while journal.released < 2:
            await asyncio.sleep(0)


async def test_archived_positions_are_stored_and_listed(client: Client) -> None:
    async with client.post("/journal/archived", json={"positions": {"0": 110, "1": 0}}) as response:
        assert response.status == 200
    async with client.get("/journal") as response:
        assert (await response.json())["archived"] == {"0": 110, "1": 0}


async def test_lower_archived_positions_are_logged_in_one_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for positions in ({"0": 110, "1": 0}, {"0": 110, "1": 0}, {"0": 30, "1": 0}):
        assert not caplog.records
        async with client.post("/journal/archived", json={"positions": positions}) as response:
            assert response.status == 200
    [record] = caplog.records
    assert "lower end than before" in record.message
    assert vars(record)["shards"] == "0 from 110 to 30"


async def test_invalid_archived_positions_are_refused(client: Client, journal: FakeJournal, subtests: pytest.Subtests) -> None:
    for body in [
        b"",
        b"{}",
        b'{"positions":{"0":131}}',
        b'{"positions":{"0":-1}}',
        b'{"positions":{"7":0}}',
        b'{"positions":{"x":0}}',
    ]:
        with subtests.test(body=body):
            async with client.post("/journal/archived", data=body) as response:
                assert response.status == 400
            assert journal.archived_ends() == {}


async def test_every_path_needs_the_key(client: Client, subtests: pytest.Subtests) -> None:
    for method, path in [("GET", "/closed"), ("GET", "/closed/0"), ("POST", "/closed/archived")]:
        with subtests.test(method=method, path=path):
            body = b'{"positions":{}}'
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                async with client.request(method, path, data=body, headers=headers) as response:
                    assert response.status == 401
            async with client.request(method, path, data=body, headers={"Authorization": "Bearer k3y"}) as response:
                assert response.status == 200
