"""Files of the journal: damaged, verified, repaired from the archive, backed up under load and restored."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
import pyarrow as pa
import pytest

from ropewalk.pipeline.offsets import PositionRange
from ropewalk.pipeline.options import source_options
from ropewalk.pipeline.rows import RangeReader
from tests.archive_writer import archive_journal
from tests.arrow_rows import rows_body
from tests.cable import cable
from tests.metrics import metrics
from tests.scenarios.command_line import run_ropewalk
from tests.server import RunningServer, running_server

TEXT = "x" * 400

Published = dict[tuple[str, str, int], int]
"""Numbers by (stream, epoch, offset)."""


def flags(home: Path, *more: str) -> tuple[str, ...]:
    size = ("--journal_shards", "2", "--journal_segment_size", "64KiB", "--history_limit", "5000")
    return ("--public", "--data_dir", str(home / "data"), *size, *more)


async def publish(server: RunningServer, stream: str, first: int, last: int) -> None:
    async with aiohttp.ClientSession() as http:
        for start in range(first, last + 1, 50):
            drafts = [{"stream": stream, "data": json.dumps([n, TEXT])} for n in range(start, min(start + 50, last + 1))]
            async with http.post(f"{server.url}/api/publish", json=drafts) as answer:
                assert answer.status == 201, await answer.text()


async def journal(server: RunningServer) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/journal") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def published(server: RunningServer) -> Published:
    """The number in every publication of the journal, by (stream, epoch, offset)."""
    found: Published = {}
    async with aiohttp.ClientSession() as http:
        for span in (await journal(server))["spans"]:
            query = f"from={span['first']}&to={span['end']}&max_bytes=67108864"
            async with http.get(f"{server.url}/journal/{span['shard']}?{query}") as answer:
                rows = pa.ipc.open_stream(await answer.read()).read_all().to_pylist()
            for row in rows:
                if row["event"] == "publish":
                    found[row["stream"], row["epoch"], row["offset"]] = json.loads(row["value"])[0]
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Published]]:
    """A journal with 1500 publications and its archive, after the server has stopped; and the publications."""
    home = tmp_path_factory.mktemp("written")
    with running_server(*flags(home)) as server:

        async def write() -> Published:
            await publish(server, "a", 1, 1500)
            await asyncio.to_thread(archive_journal, server, home / "archive")
            return await published(server)

        before = asyncio.run(write())
        assert server.stop() == 0
    yield home, before
    shutil.rmtree(home)


@pytest.fixture
def before(written: tuple[Path, Published], tmp_path: Path) -> Published:
    """The publications of the journal. The test has a copy of it in `tmp_path`."""
    home, found = written
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    return found


def as_spark_reads(server: RunningServer, hole: dict[str, Any]) -> list[dict[str, Any]]:
    """The first 1500 positions of the shard that has the hole."""
    options = source_options({"url": server.url, "failOnDataLoss": "false"}, streaming=False)
    rows = pa.Table.from_batches(list(RangeReader(options, PositionRange(hole["shard"], hole["epoch"], 0, 1500)).batches()))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def damage(data_dir: Path) -> Path:
    """Overwrite 32 bytes of the third segment in the longest shard; returns its path."""
    shards = [sorted(shard.glob("*.arrow")) for shard in (data_dir / "journal").glob("shard=*")]
    segments = max(shards, key=len)
    assert len(segments) > 6
    path = segments[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 32] = bytes(32)
    path.write_bytes(data)
    return path


async def test_damage_is_reported_as_a_hole_and_all_other_rows_are_read(tmp_path: Path, before: Published) -> None:
    path = damage(tmp_path / "data")
    verified = run_ropewalk("journal", "verify", str(tmp_path / "data"))
    with running_server(*flags(tmp_path)) as server:
        found = await published(server)
        assert len(before) - len(found) == 50
        assert found.items() <= before.items()
        assert (verified.returncode, str(path) in verified.stdout) == (1, True), verified.stdout + verified.stderr
        (hole,) = (await journal(server))["holes"]
        assert hole["end"] - hole["first"] == 50
        assert f"positions {hole['first']} to {hole['end'] - 1} " in server.log()
        assert (await metrics(server))["journal_hole_rows"] == 50
        report = json.loads(run_ropewalk("journal", "verify", str(tmp_path / "data"), "--format", "json").stdout)
        assert (report["running"], report["whole"], [{**each, "file": ""} for each in report["holes"]]) == (
            True,
            False,
            [{**hole, "file": ""}],
        )
        rows = await asyncio.to_thread(as_spark_reads, server, hole)
        (gap,) = [json.loads(row["detail"]) for row in rows if row["event"] == "gap"]
        assert gap == {"reason": "damaged", "epoch": hole["epoch"], "first": hole["first"], "end": hole["end"]}
        assert len(rows) == 1500 - 50 + 1
        await publish(server, "a", 1501, 1510)


@pytest.mark.tier("all")
async def test_lost_first_segment_is_reported_and_repaired_from_the_archive(tmp_path: Path, before: Published) -> None:
    data, archive = tmp_path / "data", tmp_path / "archive"
    first, second, *_ = max((sorted(shard.glob("*.arrow")) for shard in (data / "journal").glob("shard=*")), key=len)
    first.unlink()
    end = int(second.stem)
    stray = first.with_name(f"{10**20 - 1}.arrow")
    stray.write_bytes(b"x")
    for _ in range(2):
        with running_server(*flags(tmp_path)) as server:
            assert f"{stray} is a stray file" in server.log()
            (hole,) = (await journal(server))["holes"]
            assert (hole["first"], hole["end"]) == (0, end)
            assert ((await metrics(server))["journal_holes"], (await metrics(server))["journal_hole_rows"]) == (1, end)
            rows = await asyncio.to_thread(as_spark_reads, server, hole)
            (gap,) = [json.loads(row["detail"]) for row in rows if row["event"] == "gap"]
            assert gap == {"reason": "damaged", "epoch": hole["epoch"], "first": 0, "end": end}
            assert server.stop() == 0
        verified = run_ropewalk("journal", "verify", str(data))
        assert (verified.returncode, f"positions 0 to {end - 1}" in verified.stdout) == (1, True), verified.stdout
        assert f"{stray} is a stray file" in verified.stdout
    repaired = run_ropewalk("journal", "repair", str(data), "--archive", str(archive))
    assert (repaired.returncode, f": {end}\n" in repaired.stdout) == (0, True), repaired.stdout + repaired.stderr
    spoiled = bytearray(second.read_bytes())
    spoiled[:4] = bytes(4)
    second.write_bytes(spoiled)
    verified = run_ropewalk("journal", "verify", str(data))
    assert (verified.returncode, "Arrow schema" in verified.stdout) == (1, True), verified.stdout
    assert "repaired Arrow schema: 1" in run_ropewalk("journal", "repair", str(data)).stdout
    assert run_ropewalk("journal", "verify", str(data)).returncode == 0
    with pa.OSFile(str(second)) as file:
        assert pa.ipc.open_stream(file).read_all()["position"][0].as_py() == end
    with running_server(*flags(tmp_path)) as server:
        assert before.items() <= (await published(server)).items()
        assert (await journal(server))["holes"] == []


@pytest.mark.usefixtures("before")
async def test_journal_repaired_from_its_archive_is_complete(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with running_server(*flags(tmp_path)) as server:
        await publish(server, "a", 1501, 1600)
        everything = await published(server)
        refused = run_ropewalk("journal", "repair", str(tmp_path / "data"), "--archive", str(archive))
        assert (refused.returncode, "another server" in refused.stderr) == (2, True)
        server.kill()
    path = damage(tmp_path / "data")
    spoiled = path.read_bytes()
    repaired = run_ropewalk("journal", "repair", str(tmp_path / "data"), "--archive", str(archive))
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert "rows restored" in repaired.stdout
    assert path.with_suffix(".damaged").read_bytes() == spoiled
    assert run_ropewalk("journal", "verify", str(tmp_path / "data")).returncode == 0
    with running_server(*flags(tmp_path)) as server:
        assert await published(server) == everything, "with the epochs they had"
        async with cable(server) as client:
            history = await client.subscribe("a", history={"since": 1})
            assert [message["message"][0] for message in history] == list(range(1, 1601))
            assert {("a", message["epoch"], message["offset"]) for message in history} == everything.keys()


@pytest.mark.tier("all")
async def test_backup_made_under_load_can_be_restored(tmp_path: Path) -> None:
    with running_server(*flags(tmp_path)) as server:
        await publish(server, "a", 1, 500)
        await committed(server, 1)
        acknowledged = 500

        async def go_on() -> None:
            nonlocal acknowledged
            for start in range(501, 20_001, 50):
                await publish(server, "a", start, start + 49)
                acknowledged = start + 49
                if start % 500 == 1:
                    await committed(server, 1 + start // 500)

        publishing = asyncio.create_task(go_on())
        while acknowledged < 1000:
            await asyncio.sleep(0.005)
        before = acknowledged
        made = await asyncio.to_thread(
            run_ropewalk, "journal", "backup", str(tmp_path / "data"), "--to", str(tmp_path / "copy")
        )
        assert made.returncode == 0, made.stdout + made.stderr
        publishing.cancel()
        await asyncio.wait([publishing])
        everything = await published(server)
    again = run_ropewalk("journal", "backup", str(tmp_path / "data"), "--to", str(tmp_path / "copy"))
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "copy").rename(tmp_path / "data")
    assert run_ropewalk("journal", "verify", str(tmp_path / "data")).returncode == 0
    with running_server(*flags(tmp_path)) as server:
        found = await published(server)
        # A transaction that was being committed when the copy was made is finished at the start, in a new epoch.
        finished = found.items() - everything.items()
        assert [stream for (stream, _, _), _ in finished] in ([], ["batches"])
        kept = {number for (stream, _, _), number in found.items() if stream == "a"}
        assert kept == set(range(1, max(kept) + 1))
        assert max(kept) >= before
        assert "every stream begins a new epoch" in server.log()
        last = max((number for (stream, _, _), number in found.items() if stream == "batches"), default=0)
        # The batches that the copy has are not published again, and those that it has not are.
        for batch in (last, last + 1):
            await committed(server, batch)
        batches = sorted(number for (stream, _, _), number in (await published(server)).items() if stream == "batches")
        assert batches == list(range(1, last + 2)), "each once, and none is missing"


async def committed(server: RunningServer, batch: int) -> None:
    """Publish one row by a transaction: the number of its batch."""
    async with aiohttp.ClientSession(server.url) as http:
        stage = f"/journal/transactions/app/{batch}/stage?part=0&attempt=0&seq=0"
        async with http.post(stage, data=rows_body(("batches", f"[{batch}]"))) as answer:
            assert answer.status == 200, await answer.text()
        async with http.post(f"/journal/transactions/app/{batch}/commit", json={"winners": {"0": 0}}) as answer:
            assert answer.status == 200, await answer.text()


def newer(record: bytes) -> bytes:
    body = json.dumps({**json.loads(record.splitlines()[0]), "format": 1000}).encode()
    return b"%s\n%08x\n" % (body, crc32(body))


@pytest.mark.usefixtures("before")
def test_journal_with_a_newer_or_unreadable_record_is_refused_and_not_changed(tmp_path: Path) -> None:
    files = tmp_path / "data" / "journal"
    records = {record: record.read_bytes() for record in files.glob("*.json")}
    changes: list[tuple[Callable[[bytes], bytes], str]] = [
        (newer, "has format 1000, and this version of Ropewalk knows formats up to"),
        (lambda record: bytes(len(record)), "cannot be read"),
    ]
    for change, error in changes:
        for record, content in records.items():
            record.write_bytes(change(content))
        before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
        with pytest.raises(AssertionError, match=error), running_server(*flags(tmp_path)):
            pass
        assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    for words, error in (
        (["verify", str(tmp_path / "nowhere")], "no journal in"),
        (["verify"], "pass the data directory"),
        (["repair", str(tmp_path), "--archive", str(tmp_path)], "no archive in"),
        (["backup", str(tmp_path), "--to", str(tmp_path / "inside")], "inside the directory"),
    ):
        done = run_ropewalk("journal", *words)
        assert (done.returncode, error in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []
