"""The jobs with a real server, run by `ropewalk pipeline run … --available-now`."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ropewalk.cli.main import main
from ropewalk.core.ring import locate_shard
from ropewalk.pipeline.tables import read_table
from tests.cable import cable, identifier
from tests.metrics import metrics_when
from tests.server import RunningServer, running_server
from tests.spark.journal import FLAGS, call, forget_last_commit, kept, publish_all

Run = Callable[..., int]


@pytest.fixture
def run(spark: SparkSession, server: RunningServer, tmp_path: Path) -> Run:
    """Process the available rows. An option `rollup.lateness` is the keyword `rollup__lateness`."""

    def run(*jobs: str, **options: str) -> int:
        sets = [word for name, value in options.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]
        where = ["--url", server.url, "--state-dir", str(tmp_path), "--config_path", "", "--restarts", "0"]
        return main(["pipeline", "run", *jobs, "--available-now", *where, *sets])

    return run


def rows(home: Path, table: str) -> list[dict[str, Any]]:
    found = read_table(str(home / "tables" / table))
    assert found is not None, f"there is no table {table}"
    listed: list[dict[str, Any]] = found.to_pylist()
    return listed


def checkpoint(home: Path, job: str) -> Path:
    return home / "checkpoints" / job / "v1"


def test_archive_equals_the_journal_by_an_audit(
    run: Run, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_all(server, [(f"audited/{n % 5}", n) for n in range(200)])
    report = tmp_path / "report.json"

    assert run("archive", "audit", audit__report=str(report)) == 0

    assert "the log holds" in capsys.readouterr().out
    found = json.loads(report.read_bytes())
    assert found["holds"]
    assert found["compared"] == found["journal"]["rows"] == found["archive"]["rows"] >= 200


@pytest.mark.tier("all")
def test_archive_grows_over_runs_without_its_checkpoint_and_the_audit_finds_a_deleted_row(
    run: Run, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_all(server, [(f"lost/{n % 5}", n) for n in range(50)])
    assert run("archive") == 0
    publish_all(server, [(f"lost/{n % 5}", n) for n in range(50, 100)])
    assert run("archive", "compact", "vacuum") == 0
    shutil.rmtree(tmp_path / "checkpoints")
    [*_, (_, epoch, last)] = publish_all(server, [("damaged", n) for n in range(10)])
    assert last == 10

    assert run("archive") == 2
    assert "archive.starting=archive" in capsys.readouterr().err
    assert run("archive", "audit", archive__starting="archive") == 0

    DeltaTable(tmp_path / "archive").delete("stream = 'damaged' AND offset = 4")
    capsys.readouterr()
    assert run("audit") == 1

    output = capsys.readouterr().out
    assert "the log does NOT hold" in output
    assert "not in the archive" in output
    assert f"damaged epoch {epoch}" not in output, "the journal has the row, so the stream itself is complete"


def delete_rows(archive: Path) -> None:
    DeltaTable(archive).delete("stream = 'lossy' AND offset > 12")


def remove_from_the_last_commit(archive: Path) -> None:
    commit = max((archive / "_delta_log").glob("*.json"))
    lines = commit.read_text().splitlines(keepends=True)
    commit.write_text("".join(line for line in lines if '"add"' not in line or "lossy" not in line))


@pytest.mark.tier("all")
@pytest.mark.parametrize("lose", [delete_rows, remove_from_the_last_commit])
def test_rows_that_the_archive_loses_are_no_longer_archived_for_the_server(
    run: Run, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], lose: Callable[[Path], None]
) -> None:
    """Retention would delete the journal's rows, too."""

    def archived() -> int:
        return int(call(f"{server.url}/journal")["archived"][str(shard)])

    shard = locate_shard("lossy", 16)
    publish_all(server, [("lossy", n) for n in range(12)])
    assert run("archive") == 0
    before = archived()
    publish_all(server, [("lossy", n) for n in range(12, 20)])
    assert run("archive") == 0
    assert archived() == before + 8

    lose(tmp_path / "archive")
    capsys.readouterr()
    assert run("audit") == 1
    assert f"archive: shard {shard}: positions {before} to {before + 7} were archived" in capsys.readouterr().out
    assert archived() == before

    publish_all(server, [("lossy", 20)])
    assert run("archive") == 0
    assert archived() == before


@pytest.mark.tier("all")
def test_rollup_counts_each_message_once_and_keeps_subscribers_between_runs(
    run: Run, server: RunningServer, tmp_path: Path
) -> None:
    async def clients() -> None:
        async with cable(server) as ann, cable(server) as bob:
            await ann.subscribe("listened")
            await bob.subscribe("listened")
            await asyncio.to_thread(publish_all, server, [("counted", "x" * 8)] * 30)
            assert await asyncio.to_thread(run, "rollup") == 0
            await asyncio.to_thread(publish_all, server, [("listened", "x")] * 3 + [("counted", "y" * 8)] * 12)
            assert await asyncio.to_thread(run, "rollup") == 0
            forget_last_commit(checkpoint(tmp_path, "rollup"))
            assert await asyncio.to_thread(run, "rollup") == 0

    asyncio.run(clients())
    counted = [row for row in rows(tmp_path, "rollup") if row["stream"] == "counted"]
    assert sum(row["messages"] for row in counted) == 42
    assert sum(row["bytes"] for row in counted) == 42 * len('"xxxxxxxx"')
    listened = [row for row in rows(tmp_path, "rollup") if row["stream"] == "listened"]
    assert sum(row["messages"] for row in listened) == 3
    assert [row["subscribers"] for row in listened if row["messages"]] == [2] * sum(1 for row in listened if row["messages"])
    assert {row["identifier"] for row in rows(tmp_path, "rollup-audience")} == {identifier("listened")}


@pytest.mark.tier("all")
def test_sessions_and_presence_tables_have_the_clients(run: Run, server: RunningServer, tmp_path: Path) -> None:
    async def clients() -> str:
        async with cable(server) as ann, cable(server) as bob:
            await ann.subscribe("room", presence={"id": "ann"})
            await bob.subscribe("room", presence={"id": "bob"})
        await metrics_when(server, lambda found: found["sessions"] == 0)
        return ann.sid

    sid = asyncio.run(clients())
    assert run("sessions", "presence") == 0

    [row] = [row for row in rows(tmp_path, "sessions") if row["sid"] == sid]
    assert (row["session"], row["how"], row["subscriptions"]) == (sid, "connected", 1)
    assert 0 <= row["seconds"] < 600
    assert max(row["peak"] for row in rows(tmp_path, "presence") if row["stream"] == "room") == 2


@pytest.mark.tier("all")
def test_derived_stream_has_each_result_once(run: Run, server: RunningServer, tmp_path: Path) -> None:
    query = "SELECT at, cast(text AS int) * 2 AS value FROM source WHERE cast(text AS int) % 2 = 1"
    options = {"derive__sql": query, "derive__stream": "odd", "derive__subscribe": "numbers,odd"}
    publish_all(server, [("numbers", n) for n in range(10)])
    assert run("derive", **options) == 0
    publish_all(server, [("numbers", n) for n in range(10, 20)])
    assert run("derive", **options) == 0
    forget_last_commit(checkpoint(tmp_path, "derive"))
    assert run("derive", **options) == 0

    assert kept(server, "odd") == [n * 2 for n in range(20) if n % 2]


@pytest.mark.tier("all")
def test_aggregate_with_a_watermark_counts_a_whole_backlog_in_small_batches(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {locate_shard(f"backlog/{n}", 16): f"backlog/{n}" for n in range(10)}
    older, newer = list(names.values())[:2]
    query = (
        "SELECT stream AS of, window.start AS at_time, count(*) AS messages FROM source "
        "WHERE stream LIKE 'backlog/%' GROUP BY 1, window(timestamp, '10 milliseconds')"
    )
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "data")) as server:
        for stream in (older, newer):
            for start in range(0, 300, 10):
                publish_all(server, [(stream, n) for n in range(start, start + 10)])
        where = ["--url", server.url, "--state-dir", str(tmp_path), "--config_path", ""]
        options = {"sql": query, "stream": "counts", "watermark": "10 milliseconds", "output_mode": "update", "max_rows": "200"}
        sets = [word for name, value in options.items() for word in ("--set", f"derive.{name}={value}")]
        assert main(["pipeline", "run", "derive", "--available-now", *where, *sets]) == 0
        found = kept(server, "counts")

    totals = {(row["of"], row["at_time"]): row["messages"] for row in found}  # the last result of each window
    counted = {stream: sum(n for (of, _), n in totals.items() if of == stream) for stream in (older, newer)}
    assert counted == {older: 300, newer: 300}
    shown = capsys.readouterr().err.splitlines()[-1]
    batches = re.search(r"(\d+) batches", shown)
    assert batches is not None, shown
    assert int(batches[1]) >= 3
    assert "late" not in shown


def shouted(source: DataFrame) -> DataFrame:
    return source.select("at", F.upper("text").alias("value"))


@pytest.mark.tier("all")
def test_derive_function_in_two_jobs_publishes_each_key_once(run: Run, server: RunningServer) -> None:
    options = {"function": f"{__name__}:shouted", "stream": "loud", "subscribe": "quiet", "delivery": "keyed"}
    publish_all(server, [("quiet", word) for word in ("a", "b")])

    # Two independent jobs: only the key prevents duplicates.
    names = ("derive:one", "derive:two")
    assert run(*names, **{f"{name}__{key}": value for name in names for key, value in options.items()}) == 0

    assert kept(server, "loud") == ["A", "B"]


@pytest.mark.tier("all")
def test_replay_publishes_in_order_under_new_names_only_once(
    run: Run, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_all(server, [(f"tape/{n % 3}", n) for n in range(60)])
    assert run("archive") == 0
    options = {"replay__pattern": "tape/.*", "replay__match": "^tape", "replay__to": "copy", "replay__name": "tape-to-copy"}

    assert run("replay", **options) == 0
    assert run("replay", **options) == 0

    for track in range(3):
        assert kept(server, f"copy/{track}") == list(range(track, 60, 3))
    output = capsys.readouterr().out
    assert "60 of 60 rows published\n" in output
    assert "0 of 60 rows published, 60 were published before" in output


@pytest.mark.tier("all")
def test_other_selection_under_the_name_of_a_replay_is_refused(
    run: Run, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows before the end of the first selection would count as published, but are not."""
    publish_all(server, [(f"select/{n % 2}", n) for n in range(20)])
    options = {"replay__source": "journal", "replay__match": "^select", "replay__to": "again", "replay__name": "select"}
    assert run("replay", **options, replay__pattern="select/0") == 0
    capsys.readouterr()

    assert run("replay", **options, replay__pattern="select/.*") == 2

    shown = capsys.readouterr()
    assert "pattern was 'select/0' and is 'select/.*'" in shown.out + shown.err

    shutil.rmtree(tmp_path / "replays")
    assert run("replay", **options, replay__pattern="select/.*") == 0

    assert "20 of 20 rows published\n" in capsys.readouterr().out
    assert kept(server, "again/1") == list(range(1, 20, 2))


INVALID_OPTIONS: list[tuple[str, dict[str, str], str]] = [
    ("replay", {"pattern": "("}, "pattern is not a regular expression: '('"),
    ("replay", {"match": "("}, "match is not a regular expression: '('"),
    ("replay", {"match": "(a)", "to": "$2"}, "to names a group that match has not: '$2'"),
    ("replay", {"since": "abc"}, "a time is written like"),
    ("derive:mistaken", {"sql": "SELEC"}, "sql: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'"),
]


def test_invalid_options_are_refused_with_the_reason(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    failures = []
    for job, options, reason in INVALID_OPTIONS:
        given = {"source": "journal", "name": "mistaken", **options} if job == "replay" else options
        code = run(job, **{f"{job}__{name}": value for name, value in given.items()})
        output = "".join(capsys.readouterr())
        if code != 2 or reason not in output or "Traceback" in output:
            failures.append((job, options, code, output))
    assert failures == []


def test_replay_uses_java_regular_expressions(run: Run, server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    publish_all(server, [("java/x", 1), ("java/1", 2)])
    options = {"replay__pattern": r"java/\p{L}", "replay__match": "^(?<first>java)/", "replay__to": "${first}-letters/"}
    assert run("replay", **options, replay__source="journal", replay__name="java") == 0
    assert kept(server, "java-letters/x") == [1]
    assert "1 of 1 rows published" in capsys.readouterr().out


@pytest.mark.tier("all")
def test_replay_resumes_after_the_archive_has_grown_between_its_rows(
    run: Run, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ranks as row numbers, the new rows would shift the old ones, and some would be published twice."""
    # Of different shards: the archive is uneven only between shards, after a batch with some of them.
    tracks = list({locate_shard(f"uneven/{number}", 16): number for number in range(40)}.values())
    publish_all(server, [(f"uneven/{track}", n) for n in range(10) for track in tracks])
    options = {"replay__pattern": "uneven/.*", "replay__match": "^uneven", "replay__to": "even", "replay__name": "grow"}
    some = "|".join(str(track) for track in tracks[:5])
    assert run("archive", archive__pattern=f"uneven/({some})", archive__checkpoint=str(tmp_path / "some")) == 0
    assert run("replay", **options, replay__fail_on_data_loss="false") == 0
    shutil.rmtree(tmp_path / "archive")
    assert run("archive") == 0

    assert run("replay", **options) == 0

    for track in tracks:
        assert kept(server, f"even/{track}") == list(range(10))
