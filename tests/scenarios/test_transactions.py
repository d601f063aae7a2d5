"""Transactions: each row is in its stream exactly once and in order, also after crashes."""

import asyncio
import hashlib
import hmac
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from tests.arrow_rows import columns_body, rows_body
from tests.cable import cable
from tests.clients.credentials import SECRET
from tests.scenarios.shared_servers import WORKERS, ServerWith
from tests.server import RunningServer, running_server

TIMEOUT = 60.0
STREAMS = 7
MAX_STAGE_BYTES = 500_000
TOKEN = hmac.new(SECRET.encode(), b"journal-cable", hashlib.sha256).hexdigest()


class Application:
    """One application of the server, as a Spark job would be."""

    def __init__(self, http: aiohttp.ClientSession, name: str = "app") -> None:
        self.http = http
        self.name = name

    async def stage(self, batch: int, part: int, attempt: int, body: bytes, seq: int = 0) -> tuple[int, Any]:
        return await self.post(f"transactions/{self.name}/{batch}/stage?part={part}&attempt={attempt}&seq={seq}", body)

    async def commit(self, batch: int, winners: dict[int, int]) -> tuple[int, Any]:
        order = {"winners": {str(part): attempt for part, attempt in winners.items()}}
        async with self.http.post(f"/journal/transactions/{self.name}/{batch}/commit", json=order) as response:
            return response.status, await response.json()

    async def last(self) -> int | None:
        async with self.http.get(f"/journal/transactions/{self.name}") as response:
            last: int | None = (await response.json())["last"]
            return last

    async def post(self, path: str, body: bytes) -> tuple[int, Any]:
        async with self.http.post(f"/journal/{path}", data=body) as response:
            return response.status, await response.json()


@asynccontextmanager
async def application(server: RunningServer, name: str = "app", token: str = "") -> AsyncIterator[Application]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(server.url, headers=headers) as http:
        yield Application(http, name)


async def journal_rows(http: aiohttp.ClientSession) -> list[dict[str, Any]]:
    """Every publication in the journal."""
    async with http.get("/journal") as response:
        spans = (await response.json())["spans"]
    return [row for span in spans async for row in span_rows(http, span)]


async def span_rows(http: aiohttp.ClientSession, span: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    position = span["first"]
    while position < span["end"]:
        query = {"from": str(position), "to": str(span["end"]), "max_bytes": "500000"}
        async with http.get(f"/journal/{span['shard']}", params=query) as response:
            assert response.status == 200, await response.text()
            rows = pa.ipc.open_stream(await response.read()).read_all().to_pylist()
        for row in rows:
            if row["position"] >= position and row["event"] == "publish":
                yield row
        assert rows[-1]["position"] >= position
        position = rows[-1]["position"] + 1


async def by_stream(http: aiohttp.ClientSession) -> dict[str, list[str]]:
    """Values by stream, in the order of their offsets, which are dense within the one epoch of each stream."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in await journal_rows(http):
        found.setdefault(row["stream"], []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["offset"])
        assert [row["offset"] for row in rows] == list(range(1, len(rows) + 1))
        assert len({row["epoch"] for row in rows}) == 1
    return {stream: [row["value"].decode() for row in rows] for stream, rows in found.items()}


@pytest.fixture(scope="module")
def server(worker_flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = ("--data_dir", str(tmp_path_factory.mktemp("data")), "--max_stage_size", str(MAX_STAGE_BYTES), *worker_flags)
    with running_server("--public", *flags) as server:
        yield server


# --- staging and committing ----------------------------------------------------------------------------------------------


async def test_committed_batch_reaches_subscribers_and_the_journal(server: RunningServer) -> None:
    async with application(server, "road") as app, cable(server) as client:
        await client.subscribe("road")
        assert await app.last() is None
        assert await app.stage(0, 0, 0, rows_body(("road", '{"n":1}'), ("road", "text"))) == (
            200,
            {"rows": 2, "duplicate": False},
        )
        assert (await app.commit(0, {0: 0})) == (200, {"published": 2, "skipped": 0, "duplicate": False, "last": 0})
        assert await client.messages(2) == [{"n": 1}, "text"]
        assert await app.last() == 0
        rows = [row for row in await journal_rows(app.http) if row["stream"] == "road"]
        assert [(row["producer"], row["sequence"]) for row in rows] == [("road", 0), ("road", 1)]


async def test_repeated_commit_is_a_duplicate(server: RunningServer) -> None:
    async with application(server, "again") as app:
        for expected in (False, True):
            status, staged = await app.stage(4, 0, 0, rows_body(("again", "1")))
            assert (status, staged["duplicate"]) == (200, expected)
            status, committed = await app.commit(4, {0: 0})
            assert (status, committed["duplicate"], committed["last"]) == (200, expected, 4)
        assert (await by_stream(app.http))["again"] == ["1"]


async def test_simultaneous_commits_publish_once(server: RunningServer) -> None:
    async with application(server, "twice") as app:
        await app.stage(0, 0, 0, columns_body(["twice"] * 5000, [str(n) for n in range(5000)]))
        answers = await asyncio.gather(*(app.commit(0, {0: 0}) for _ in range(4)))
        assert [status for status, _ in answers] == [200] * 4
        assert sorted(answer["published"] for _, answer in answers) == [0, 0, 0, 5000]
        assert (await by_stream(app.http))["twice"] == [str(n) for n in range(5000)]


async def test_only_the_winning_attempts_are_published(server: RunningServer) -> None:
    chance = random.Random(11)
    async with application(server, "attempts") as app:
        expected: list[str] = []
        for batch in range(5):
            attempts = [(part, attempt) for part in range(3) for attempt in chance.sample(range(100), 2)]
            await asyncio.gather(
                *(
                    app.stage(batch, part, attempt, rows_body(("attempts", f"{batch}.{part}.{attempt}")))
                    for part, attempt in attempts
                )
            )
            winners = {part: chance.choice([attempt for other, attempt in attempts if other == part]) for part in range(3)}
            assert (await app.commit(batch, winners))[0] == 200
            expected += [f"{batch}.{part}.{attempt}" for part, attempt in winners.items()]
        assert (await by_stream(app.http))["attempts"] == [f'"{value}"' for value in expected]


async def test_commit_with_a_missing_part_publishes_nothing(server: RunningServer) -> None:
    async with application(server, "missing") as app:
        await app.stage(0, 0, 0, rows_body(("missing", "1")))
        status, answer = await app.commit(0, {0: 0, 1: 5})
        assert (status, answer["missing"]) == (409, [{"part": 1, "attempt": 5}])
        assert "missing" not in await by_stream(app.http)
        assert await app.last() is None


async def test_invalid_bodies_are_refused(server: RunningServer) -> None:
    chance = random.Random(3)
    async with application(server, "junk") as app:
        for size in (0, 1, 100, 10_000):
            assert (await app.stage(0, 0, 0, chance.randbytes(size)))[0] == 422
        status, answer = await app.stage(0, 0, 0, columns_body(["junk"] * 600 + [""], ["1"] * 601))
        assert (status, answer["index"]) == (422, 600)
        assert (await app.post("transactions/..%2F..%2Fetc/0/stage?part=0&attempt=0&seq=0", rows_body()))[0] == 400
        assert (await app.commit(0, {0: 0}))[0] == 409
        assert "junk" not in await by_stream(app.http)


async def test_body_over_the_limit_is_refused(server: RunningServer) -> None:
    async with application(server, "limit") as app:
        assert (await app.stage(0, 0, 0, columns_body(["s"], ["." * MAX_STAGE_BYTES])))[0] == 413
        assert (await app.stage(0, 0, 0, rows_body(("s", "1"))))[0] == 200


# --- authorization and paths --------------------------------------------------------------------------------------------


async def test_token_derives_from_the_secret(tmp_path: Path, worker_flags: tuple[str, ...]) -> None:
    with running_server("--secret", SECRET, "--data_dir", str(tmp_path), *worker_flags) as server:
        for token in ("", "wrong", SECRET):
            async with application(server, token=token) as app:
                assert (await app.commit(0, {}))[0] == 401
                async with app.http.get("/journal") as response:
                    assert response.status == 401
        async with application(server, token=TOKEN) as app:
            assert (await app.commit(0, {}))[0] == 200


async def test_server_without_a_journal_has_no_such_paths(server_with: ServerWith) -> None:
    async with application(server_with("--public")) as app:
        for path in ("/journal", "/journal/0", "/journal/transactions/app"):
            async with app.http.get(path) as response:
                assert (response.status, await response.json()) == (404, {"error": "no such path"})


async def test_unsupported_method_is_refused_as_json(server: RunningServer) -> None:
    async with application(server) as app:
        for path in ("/api/streams", "/journal", "/journal/0"):
            async with app.http.put(path) as response:
                assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
                assert "PUT" in (await response.json())["error"]


# --- crashes ------------------------------------------------------------------------------------------------------------


async def journaled(http: aiohttp.ClientSession) -> int:
    async with http.get("/journal") as response:
        return sum(span["end"] - span["first"] for span in (await response.json())["spans"])


async def kill_after(server: RunningServer, rows: int) -> None:
    """Kill as soon as the journal has this many rows more than now, before or after the end of the commit."""
    async with aiohttp.ClientSession(server.url) as http:
        enough = await journaled(http) + rows
        deadline = time.monotonic() + TIMEOUT
        while await journaled(http) < enough:
            assert time.monotonic() < deadline
    server.kill()


async def stage_numbers(app: Application, batch: int, first: int, parts: int, rows: int) -> dict[int, int]:
    """Consecutive numbers, spread over the streams; returns the winners."""
    for part in range(parts):
        numbers = range(first + part * rows, first + (part + 1) * rows)
        body = columns_body([f"s{n % STREAMS}" for n in numbers], [str(n) for n in numbers])
        assert (await app.stage(batch, part, batch, body))[0] == 200
    return dict.fromkeys(range(parts), batch)


def numbers_by_stream(total: int) -> dict[str, list[str]]:
    return {f"s{stream}": [str(n) for n in range(stream, total, STREAMS)] for stream in range(STREAMS)}


@pytest.mark.tier("all")
@pytest.mark.parametrize(("durability", "flags"), [("journal", ()), ("fsync", WORKERS)], ids=["journal", "fsync-workers"])
async def test_transactions_are_complete_and_in_order_after_crashes(
    tmp_path: Path, durability: str, flags: tuple[str, ...]
) -> None:
    chance = random.Random(durability)
    flags += ("--public", "--data_dir", str(tmp_path), "--durability", durability)
    parts, rows, total, batch, cut_off = 4, 3000, 0, 0, 0
    while batch < 2 or not cut_off:
        assert batch < 20, "no commit was cut off between its rows"
        with running_server(*flags) as server:
            async with application(server) as app:
                winners = await stage_numbers(app, batch, total, parts, rows)
                commit = asyncio.create_task(app.commit(batch, winners))
                await kill_after(server, chance.randrange(parts * rows))
                await asyncio.gather(commit, return_exceptions=True)
        with running_server(*flags) as server:
            async with application(server) as app:
                if await app.last() != batch:  # killed before the decision
                    status, answer = await app.commit(batch, winners)
                    assert (status, answer["duplicate"]) == (200, False)
                assert (await app.commit(batch, winners))[1]["duplicate"] is True
                total += parts * rows
                cut_off += "skipped=" in server.log() and "skipped=0" not in server.log()
                batch += 1
    with running_server(*flags) as server:
        async with application(server) as app:
            assert await by_stream(app.http) == numbers_by_stream(total)


@pytest.mark.tier("all")
async def test_numbered_rows_are_published_once_after_crashes(tmp_path: Path) -> None:
    chance = random.Random(23)
    flags = ("--public", "--data_dir", str(tmp_path))
    count, total = 8000, 0
    for _ in range(2):
        numbers = range(total, total + count)
        body = columns_body([f"s{n % STREAMS}" for n in numbers], [str(n) for n in numbers])
        with running_server(*flags) as server:
            async with application(server) as app:
                publishing = asyncio.create_task(app.post(f"producers/p?sequence={total}", body))
                await kill_after(server, chance.randrange(1, count))
                await asyncio.gather(publishing, return_exceptions=True)
        with running_server(*flags) as server:
            async with application(server) as app:
                status, answer = await app.post(f"producers/p?sequence={total}", body)
                assert (status, answer["published"] + answer["skipped"]) == (200, count)
                assert answer["skipped"] > 0
                total += count
                assert await by_stream(app.http) == numbers_by_stream(total)


async def test_staged_rows_survive_a_crash(tmp_path: Path, worker_flags: tuple[str, ...]) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), *worker_flags)
    with running_server(*flags) as server:
        async with application(server) as app:
            await app.stage(0, 0, 0, rows_body(("s", "1")))
        server.kill()
    with running_server(*flags) as server:
        async with application(server) as app:
            assert (await app.commit(0, {0: 0}))[1]["published"] == 1
