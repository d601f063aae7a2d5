"""The archive sink: sorted files, each batch once, and a server that serves the archived messages."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery

from ropewalk.cli.main import main
from ropewalk.model.messages import Registered
from ropewalk.pipeline.archive import archived_positions, compact
from ropewalk.pipeline.archive.layout import partitioned, write_file
from ropewalk.pipeline.archive.log import ARCHIVED
from ropewalk.pipeline.archive.sink import ArchiveOptions, ArchiveWriter, TaskFiles
from ropewalk.protocol.journal_schema import SCHEMA
from tests.archive_writer import Scribe, message
from tests.cable import cable
from tests.server import RunningServer, running_server
from tests.spark.journal import call, finish, forget_last_commit, publish_all, stream


class Feed:
    """Journal rows as a stream of files, one file per batch."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._spark = spark
        self._incoming = home / "incoming"
        self._incoming.mkdir()
        self._scribe = Scribe(home / "none", shards=2)
        self.root = home / "archive"
        self.checkpoint = home / "checkpoint"
        self.messages: list[Registered] = []

    def add_batch(self, *messages: Registered, joined: tuple[tuple[str, str], ...] = ()) -> None:
        self.messages += messages
        rows = self._scribe.rows(messages, joined)
        path = self._incoming / f"{len(self.messages):06d}.parquet"
        pq.write_table(rows, path)
        # Spark takes the oldest first, and two files written at once have no order.
        os.utime(path, (len(self.messages), len(self.messages)))

    def frame(self) -> DataFrame:
        schema = self._spark.read.parquet(str(self._incoming)).schema
        return self._spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(self._incoming))

    def archive(self, frame: DataFrame | None = None, **options: str) -> StreamingQuery:
        return finish(archiving(frame or self.frame(), self.root, self.checkpoint, **options))

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.root).to_pyarrow_table().sort_by("position").to_pylist()
        return found

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*.parquet")}

    def committed(self) -> set[str]:
        return set(pa.table(DeltaTable(self.root).get_add_actions(True))["path"].to_pylist())


def archiving(frame: DataFrame, root: Path, checkpoint: Path, **options: str) -> StreamingQuery:
    writer = frame.writeStream.format("ropewalk_archive").option("path", str(root)).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def messages(stream: str, first: int, last: int) -> list[Registered]:
    return [message(stream, offset, second=offset) for offset in range(first, last + 1)]


def positions(rows: list[dict[str, Any]]) -> set[tuple[str, int]]:
    return {(row["stream"], row["offset"]) for row in rows}


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path)


def test_files_are_partitioned_sorted_and_have_every_row(feed: Feed) -> None:
    feed.add_batch(*messages("b", 1, 90), *messages("a", 1, 90), joined=(("a", "sid"),))

    feed.archive()

    rows = feed.rows()
    assert {(row["stream"], row["offset"], row["value"], row["timestamp"].timestamp()) for row in rows if row["offset"]} == {
        (each.stream, each.offset, each.payload, each.timestamp) for each in feed.messages
    }
    assert [(row["stream"], row["event"], row["sid"]) for row in rows if row["offset"] is None] == [("a", "joined", "sid")]
    assert {row["date"] for row in rows} == {"2026-03-01", "2026-03-02"}
    assert feed.files() == feed.committed()
    for path in feed.files():
        place, _, name = path.rpartition("/")
        body = pq.read_table(feed.root / path, partitioning=None)
        assert {(row["date"], row["shard"]) for row in rows if row["position"] in body["position"].to_pylist()}
        assert place.startswith("date=2026-03-0")
        assert body.schema.names == SCHEMA.names
        assert body == body.sort_by([("stream", "ascending"), ("offset", "ascending"), ("position", "ascending")])
        assert name.rsplit("-", 4)[1:4] == ["0", "0", "0"]


def test_repeated_batch_changes_nothing(feed: Feed) -> None:
    feed.add_batch(*messages("a", 1, 50))
    feed.add_batch(*messages("a", 51, 80))
    feed.archive()
    version, files = DeltaTable(feed.root).version(), feed.files()
    forget_last_commit(feed.checkpoint)

    feed.add_batch(*messages("a", 81, 90))
    feed.archive()

    assert [row["offset"] for row in feed.rows()] == list(range(1, 91))
    assert DeltaTable(feed.root).version() == version + 1
    assert files < feed.files() == feed.committed()


@pytest.mark.tier("all")
def test_failed_batch_is_archived_once_by_the_next_run(feed: Feed, tmp_path: Path) -> None:
    feed.add_batch(*(each for name in "abcdef" for each in messages(name, 1, 50)))
    poisoned = tmp_path / "poisoned"
    poisoned.touch()

    def broken_once(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if "a" in batch["stream"].to_pylist() and poisoned.exists():
                raise RuntimeError("out of luck")

    frame = feed.frame()
    with pytest.raises(StreamingQueryException):
        feed.archive(frame.repartition(4, "stream").mapInArrow(broken_once, frame.schema))
    assert not DeltaTable.is_deltatable(str(feed.root))
    poisoned.unlink()

    feed.archive(frame.repartition(4, "stream").mapInArrow(broken_once, frame.schema))

    assert positions(feed.rows()) == {(each.stream, each.offset) for each in feed.messages}
    assert len(feed.rows()) == len(feed.messages)


def test_abort_after_a_commit_keeps_the_files(tmp_path: Path) -> None:
    scribe = Scribe(tmp_path, shards=2)
    [(date, shard, rows)] = partitioned(scribe.rows([message("a", 1)]))
    done: list[WriterCommitMessage | None] = [TaskFiles("query", (write_file(tmp_path, date, shard, "query-0-0-0", rows),))]
    writer = ArchiveWriter(ArchiveOptions(str(tmp_path)))

    writer.commit(done, 0)
    writer.abort(done, 0)  # as Spark does when the committing process dies before it has responded

    assert DeltaTable(str(tmp_path)).to_pyarrow_table()["offset"].to_pylist() == [1]


def test_query_without_its_checkpoint_does_not_archive_rows_twice(feed: Feed, tmp_path: Path) -> None:
    feed.add_batch(*messages("a", 1, 50))
    feed.archive()
    feed.checkpoint = tmp_path / "another checkpoint"

    with pytest.raises(StreamingQueryException, match="below the end of the archive"):
        feed.archive()

    assert len(feed.rows()) == 50
    assert feed.files() == feed.committed()


def test_each_commit_has_the_archived_positions(feed: Feed) -> None:
    feed.add_batch(*messages("a", 1, 50))
    feed.add_batch(*messages("a", 51, 80))

    feed.archive()

    commits = [json.loads(commit[ARCHIVED]) for commit in DeltaTable(feed.root).history()]
    [(shard, end)] = archived_positions(str(feed.root)).items()
    assert end == 80
    assert commits == [{str(shard): 80}, {str(shard): 50}]


def test_wrong_options_and_missing_columns_are_named(feed: Feed) -> None:
    feed.add_batch(*messages("a", 1, 2))

    with pytest.raises(PySparkException, match="no option 'paht'"):
        feed.archive(paht="x")
    with pytest.raises(PySparkException, match="needs the option path"):
        feed.archive(path="")
    with pytest.raises(PySparkException, match="not 's3://bucket/archive'"):
        feed.archive(path="s3://bucket/archive")
    with pytest.raises(StreamingQueryException, match="columns=journal"):
        feed.archive(feed.frame().drop("uid", "sid"))


@pytest.fixture
def tiered(tmp_path: Path) -> Any:
    places = ("--data_dir", str(tmp_path / "data"), "--archive_dir", str(tmp_path / "archive"), "--archive_refresh", "0s")
    with running_server("--public", "--history_limit", "10", *places) as server:
        yield server


async def test_clients_get_archived_then_cached_then_live_messages(
    spark: SparkSession, tiered: RunningServer, tmp_path: Path
) -> None:
    names = [f"room/{number}" for number in range(5)]
    publish_all(tiered, [(name, n) for n in range(1, 401) for name in names])
    source = stream(spark, tiered, columns="journal", maxOffsetsPerTrigger=700)

    query = finish(archiving(source, tmp_path / "archive", tmp_path / "checkpoint", url=tiered.url))

    assert query.lastProgress is not None
    journal = call(f"{tiered.url}/journal")
    ends = {str(span["shard"]): span["end"] for span in journal["spans"] if span["end"]}
    assert {shard: end for shard, end in journal["archived"].items() if end} == ends
    publish_all(tiered, [(name, n) for n in range(401, 431) for name in names])
    compact(str(tmp_path / "archive"))
    for name in names:
        async with cable(tiered) as client:
            history = await client.subscribe(name, history={"streams": {name: {"epoch": "", "offset": 0}}})
            publish_all(tiered, [(name, 431)])
            assert [(each["offset"], each["message"]) for each in history] == [(n, n) for n in range(1, 431)]
            assert await client.messages(1) == [431]


@pytest.mark.tier("all")
def test_job_restores_deleted_rows_only_when_asked(
    spark: SparkSession, tiered: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_all(tiered, [("chat/3", n) for n in range(1, 201)])
    places = ["--url", tiered.url, "--archive_dir", str(tmp_path / "archive"), "--state_dir", str(tmp_path / "state")]
    run = ["pipeline", "run", "archive", "--available_now", *places, "--config_path", ""]
    assert main(run) == 0
    DeltaTable(tmp_path / "archive").delete("stream = 'chat/3' AND offset > 100 AND offset <= 110")

    assert main(run) == 0
    assert DeltaTable(tmp_path / "archive").to_pyarrow_table().num_rows == 190
    assert main([*run, "--set", "archive.restore=true"]) == 0

    assert "archive: 10 lost rows were archived again" in capsys.readouterr().out
    assert sorted(DeltaTable(tmp_path / "archive").to_pyarrow_table()["offset"].to_pylist()) == list(range(1, 201))
    assert sum(call(f"{tiered.url}/journal")["archived"].values()) == 200
    assert tiered.log().count("the archive reports a lower end than before") == 1
