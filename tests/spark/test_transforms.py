"""Each transform on a few rows."""

import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ropewalk.model.journal import GENERATION_SIZE
from ropewalk.pipeline.context import only_with_rows
from ropewalk.pipeline.jobs import audit, derive, replay, rollup
from ropewalk.pipeline.jobs.presence import PresenceFold, figures, moves
from ropewalk.pipeline.jobs.sessions import connections
from ropewalk.pipeline.tables import read_table

SCHEMA = (
    "shard int, position bigint, event string, stream string, epoch string, offset bigint, timestamp timestamp, key string,"
    " value binary, uid string, exclude_socket string, broadcast_type string, sid string, detail string, producer string,"
    " sequence bigint"
)
NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def row(event: str, at: float, position: int = 0, detail: object = None, **cells: Any) -> dict[str, Any]:
    text = None if detail is None else json.dumps(detail)
    return {
        "event": event,
        "timestamp": NOON + timedelta(seconds=at),
        "position": position,
        "shard": 0,
        "detail": text,
        **cells,
    }


def published(stream: str, offset: int, at: float = 0.0, value: bytes = b"1", **cells: Any) -> dict[str, Any]:
    cells = {"position": offset - 1, "offset": offset, "epoch": "e", **cells}
    return row("publish", at, stream=stream, value=value, **cells)


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    names = [field.partition(" ")[0] for field in SCHEMA.split(", ")]
    return spark.createDataFrame([tuple(each.get(name) for name in names) for each in rows], SCHEMA)


class Feed:
    """A stream of files, one batch per file. Collects the output of a transform."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._spark = spark
        self._home = home
        self.rows = only_with_rows(spark).readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(home / "in"))

    def add(self, *rows: dict[str, Any]) -> None:
        frame(self._spark, *rows).coalesce(1).write.mode("append").parquet(str(self._home / "in"))

    def out(self, transformed: DataFrame, mode: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        sink = transformed.writeStream.outputMode(mode).foreachBatch(
            lambda rows, _: found.extend(r.asDict() for r in rows.collect())
        )
        sink.option("checkpointLocation", str(self._home / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
        return found


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    (tmp_path / "in").mkdir()
    return Feed(spark, tmp_path)


def counted(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return alone(spark, rollup.timed(frame(spark, *rows), {}, timedelta(minutes=1)))


def alone(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """The figures of rows without earlier subscribers."""
    return rollup.minutely(rows, rollup.intervals(rows, spark.createDataFrame([], rollup.SCHEMA)))


@pytest.mark.tier("all")
def test_subscriber_is_counted_in_every_minute_until_it_leaves(spark: SparkSession) -> None:
    other = {"subscription": {"identifier": "i", "streams": ["b"]}}
    first = [
        row("subscribed", 1, 1, {"identifier": "i", "streams": ["a"]}, sid="stays"),
        row("subscribed", 2, 2, {"identifier": "i", "streams": ["a"]}, sid="leaves"),
        row("subscribed", 3, 3, {"identifier": "i", "streams": ["a"]}, sid="unsubscribes"),
        row("subscribed", 4, 4, {"identifier": "i", "streams": ["a"]}, sid="changes"),
    ]
    second = [
        *(published("a", minute, 60 * minute) for minute in range(1, 5)),
        row("disconnected", 125, 12, {"kept": True}, sid="leaves"),
        row("unsubscribed", 125, 13, {"identifier": "i", "streams": []}, sid="unsubscribes"),
        row("changed", 185, 14, other, sid="changes"),
    ]
    told = frame(spark, *first)
    before = rollup.remaining(rollup.intervals(told, spark.createDataFrame([], rollup.SCHEMA)))
    after = frame(spark, *second)
    present = rollup.intervals(after, before)

    found = (
        rollup.combined(rollup.minutely(rollup.timed(after, {}, timedelta(minutes=1)), present))
        .where("stream = 'a'")
        .orderBy("minute")
        .collect()
    )

    assert [(r.minute.minute, r.subscribers) for r in found] == [(1, 4), (2, 4), (3, 2), (4, 1)]
    left = sorted((r.sid, tuple(r.streams)) for r in rollup.remaining(present).collect())
    assert left == [("changes", ("b",)), ("stays", ("a",))]


def test_rollup_goes_on_after_the_last_subscriber_has_left(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "query"}')
    fold = rollup.Fold(str(tmp_path / "rollup"), str(checkpoint), timedelta(minutes=1))
    batches = (
        row("subscribed", 1, 1, {"identifier": "i", "streams": ["a"]}, sid="s"),
        row("disconnected", 2, 2, {"kept": False}, sid="s"),
        published("a", 3, 3),
    )

    for number, each in enumerate(batches):
        fold.take(frame(spark, each).withColumnRenamed("shard", "partition"), number)

    found = read_table(str(tmp_path / "rollup"))
    assert found is not None
    assert found.select(["messages", "subscribers"]).to_pylist() == [{"messages": 1, "subscribers": 1}]


def test_minute_has_the_same_figures_from_parts(spark: SparkSession) -> None:
    rows = [
        published("a", 1, 1, b"12345", producer="p1"),
        published("a", 2, 2, b"123", producer="p2"),
        published("a", 3, 30, b"1", producer="p1"),
        published("a", 4, 61, b"1"),
        published("b", 1, 5, b"", exclude_socket="s9"),
        row("subscribed", 3, detail={"identifier": "i", "streams": ["a", "b"]}, sid="s1"),
        row("alive", 50, detail={"resumable": True, "snapshot": {"subscriptions": {"i": {"streams": ["a"]}}}}, sid="s2"),
        row("disconnected", 55, position=1, detail={"kept": True}, sid="s1"),
    ]
    whole = rollup.combined(counted(spark, *rows)).toArrow()
    parts = counted(spark, *rows[:2]).unionByName(counted(spark, *rows[2:]))

    figures = ["stream", "minute", "messages", "bytes", "publishers", "subscribers", "deliveries", "late"]
    found = sorted(tuple(r[name] for name in figures) for r in whole.to_pylist())
    assert found == [
        ("a", NOON, 3, 9, 2, 2, 6, 0),
        ("a", NOON + timedelta(minutes=1), 1, 1, 0, 1, 1, 0),
        ("b", NOON, 1, 0, 1, 1, 1, 0),
    ]
    assert sorted(tuple(r[name] for name in figures) for r in rollup.combined(parts).toArrow().to_pylist()) == found


@pytest.mark.tier("all")
def test_publication_is_late_only_behind_its_own_shard(spark: SparkSession) -> None:
    """In a backlog, shards are days apart, and no message is late."""
    went_back = [published("a", 1, 70), published("a", 2, 10), published("a", 3, 65)]
    other_shard = [published("b", 1, 5, shard=1, position=0)]
    rows = rollup.timed(frame(spark, *went_back, *other_shard), {}, timedelta(seconds=30))
    found = {(r.stream, r.minute.minute): (r.messages, r.late) for r in alone(spark, rows).collect()}
    assert found == {("a", 0): (1, 1), ("a", 1): (2, 0), ("b", 0): (1, 0)}

    later = rollup.timed(frame(spark, *other_shard), {0: NOON + timedelta(hours=1)}, timedelta(seconds=30))
    assert [r.late for r in alone(spark, later).collect()] == [0]
    known = rollup.timed(frame(spark, *other_shard), {1: NOON + timedelta(hours=1)}, timedelta(seconds=30))
    assert [r.late for r in alone(spark, known).collect()] == [1]


@pytest.mark.tier("all")
def test_restored_connection_belongs_to_the_former_session(feed: Feed) -> None:
    snapshot = {"subscriptions": {"i": {"streams": ["a"]}}, "names": ["s2", "s1"]}
    feed.add(
        row("connected", 0, 0, {"ids": "", "resumable": True}, sid="s1"),
        row("subscribed", 1, 1, {"identifier": "i", "streams": ["a"]}, sid="s1"),
        row("connected", 2, 0, {"ids": "", "resumable": True}, sid="other"),
    )
    feed.add(
        row("disconnected", 10, 2, {"kept": True, "reason": ""}, sid="s1"),
        row("restored", 14, 3, {"resumable": True, "snapshot": snapshot, "former": "s1"}, sid="s2"),
        row("disconnected", 44, 4, {"kept": False, "reason": "server_restart"}, sid="s2"),
    )

    found = feed.out(connections(feed.rows), "append")

    shown = [(c["sid"], c["session"], c["how"], c["seconds"], c["subscriptions"], c["kept"], c["reason"]) for c in found]
    assert sorted(shown) == [
        ("s1", "s1", "connected", 10.0, 1, True, ""),
        ("s2", "s1", "restored", 30.0, 1, False, "server_restart"),
    ]


@pytest.mark.tier("all")
def test_session_without_further_rows_has_vanished(feed: Feed) -> None:
    feed.add(row("connected", 0, 0, {"ids": "", "resumable": True}, sid="s1"), row("alive", 60, 1, {}, sid="s1"))
    feed.add(row("connected", 90, 0, {"ids": "", "resumable": True}, sid="s2"))

    found = feed.out(connections(feed.rows, vanished_after=0.001), "append")

    assert [(c["sid"], c["seconds"], c["reason"]) for c in found if c["sid"] == "s1"] == [("s1", 60.0, "vanished")]


def seated(kind: str, at: float, member: str, told: bool = True, position: int = 0) -> dict[str, Any]:
    return row(kind, at, position, detail={"id": member, "told": told, "info": {}}, stream="room", sid="s")


def peaks(found: Sequence[Mapping[str, Any]]) -> dict[int, tuple[int, ...]]:
    return {r["minute"].minute: (r["peak"], r["members"], r["joins"], r["leaves"]) for r in found}


def test_presence_peak_does_not_depend_on_the_order_of_rows(spark: SparkSession) -> None:
    rows = [
        *(seated("joined", 1, "ann"), seated("joined", 2, "bob"), seated("joined", 3, "bob", told=False)),
        *(seated("left", 9, "eve"), seated("joined", 8, "eve"), seated("left", 20, "ann"), seated("joined", 70, "eve")),
        *(seated("left", 130, "bob"), seated("left", 131, "eve"), seated("left", 132, "nobody")),
    ]
    wanted = {0: (3, 1, 3, 2), 1: (2, 2, 1, 0), 2: (2, 0, 0, 2)}
    assert peaks([r.asDict() for r in figures(moves(frame(spark, *rows))).collect()]) == wanted
    assert peaks([r.asDict() for r in figures(moves(frame(spark, *reversed(rows)))).collect()]) == wanted


@pytest.mark.tier("all")
@pytest.mark.parametrize("seed", range(2))
def test_presence_does_not_depend_on_the_batches(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Also with a repeated batch, and with older rows in a later batch."""
    chance = random.Random(seed)
    rows = [
        seated(kind, chance.randrange(300) + chance.random(), f"m{chance.randrange(9)}", position=n)
        for n, kind in enumerate(chance.choices(("joined", "left"), (3, 2), k=60))
    ]
    whole = peaks([r.asDict() for r in figures(moves(frame(spark, *rows))).collect()])
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "query"}')
    left, batch = rows.copy(), 0
    chance.shuffle(left)
    while left:
        size = chance.randrange(1, 25)
        part, left = frame(spark, *left[:size]), left[size:]
        for _ in range(chance.choice((1, 1, 2))):
            PresenceFold(str(tmp_path / "presence"), str(checkpoint)).take(part.withColumnRenamed("shard", "partition"), batch)
        batch += 1

    found = read_table(str(tmp_path / "presence"))

    assert found is not None
    assert peaks(found.to_pylist()) == whole


def test_derived_row_has_the_position_of_its_source_as_key(spark: SparkSession) -> None:
    rows = frame(spark, published("in", 7, value=b'{"n": 41}'), row("connected", 1, sid="s"))
    source = derive.source(rows)

    one = derive.publications(source.selectExpr("at", "get_json_object(text, '$.n') + 1 AS n2"), "out").collect()
    many = derive.publications(source.selectExpr("at", "posexplode(array('\"x\"', '\"y\"')) AS (n, value)"), "out").collect()

    assert [tuple(r) for r in one] == [("out", '{"n2":42}', "in:e:7:0")]
    assert [tuple(r) for r in many] == [("out", '"x"', "in:e:7:0"), ("out", '"y"', "in:e:7:1")]


def test_replay_has_the_chosen_rows_in_order_under_new_names(spark: SparkSession) -> None:
    rows = frame(
        spark,
        published("chat/1", 2, 5, b"2"),
        published("chat/1", 1, 4, b"1"),
        published("chat/2", 1, 4.5, b"x", shard=1, position=0),
        published("other", 1, 1),
        published("chat/1", 3, 99, b"3"),
        row("connected", 1, sid="s"),
    )

    some = replay.chosen(rows, "chat/.*", until="2026-01-31T12:01:00Z")
    found = replay.in_order(replay.renamed(some, "^chat/(.)", "copy/$1"), 2).collect()

    assert [(r.stream, bytes(r.value)) for r in found] == [("copy/1", b"1"), ("copy/2", b"x"), ("copy/1", b"2")]


def test_holes_and_duplicates_of_a_stream_are_found(spark: SparkSession) -> None:
    def faults(oldest: int, *offsets: int) -> list[tuple[Any, ...]]:
        rows = frame(spark, *(published("a", offset) for offset in offsets))
        begins = spark.createDataFrame([(0, 0, oldest)], "shard int, generation bigint, first bigint")
        return [
            (r["first"], r["last"], r["holes"], r["duplicates"]) for r in audit.faults(audit.streams(rows), begins).collect()
        ]

    assert faults(0, 1, 2, 3) == []
    assert faults(0, 2, 3) == [(1, 3, 1, 0)]
    assert faults(5, 2, 3) == []  # the oldest rows of the shard are gone, perhaps with the first offset
    assert faults(0, 1, 2, 2, 5) == [(1, 5, 2, 1)]


def test_new_generation_of_a_shard_is_not_a_hole(spark: SparkSession) -> None:
    after = [published("a", offset, epoch="new", position=GENERATION_SIZE + offset - 1) for offset in (1, 2)]
    rows = frame(spark, published("a", 1), published("a", 2), *after)

    generations = audit.shards(rows)

    found = {row["generation"]: (row["first"], row["last"], row["different"]) for row in generations.collect()}
    assert found == {0: (0, 1, 2), 1: (GENERATION_SIZE, GENERATION_SIZE + 1, 2)}
    assert audit.faults(audit.streams(rows), generations.select("shard", "generation", "first")).count() == 0


def test_journal_and_archive_are_compared_by_cell(spark: SparkSession) -> None:
    journal = frame(spark, *(published("a", offset) for offset in (1, 2, 3)))
    archive = frame(spark, published("a", 1), published("a", 2, value=b"other", uid="u"), published("a", 4))

    found = audit.differences(journal, archive).orderBy("position").collect()

    assert [(r.position, r.difference) for r in found] == [
        (1, "differs in value, uid"),
        (2, "not in the archive"),
        (3, "not in the journal"),
    ]
    assert audit.within(journal, {(0, 0): (1, 3)}).agg(F.collect_set("position")).first()[0] == [1, 2]  # type: ignore[index]
