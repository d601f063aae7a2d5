"""How many members a stream had, at most and at last, minute by minute, out of `joined` and `left` rows.

Rows of one member may lie in several shards and come in any order: for each member the newest word counts.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

SCHEMA = "minute bigint, stream string, peak bigint, members bigint, joins bigint, leaves bigint"
_COUNTS = "minute bigint, peak bigint, members bigint, joins bigint, leaves bigint"
_DETAIL = "id string, told boolean"

MINUTE = 60_000_000

FORGET_AFTER = 600_000
"""Milliseconds for which it is known that a member has left, so that an older `joined` that comes later is not believed."""


def peaks(rows: DataFrame) -> DataFrame:
    """A row for each stream and minute in which somebody came or went, in a stream; the newest row of a minute counts."""
    detail: Column = F.from_json("detail", _DETAIL)
    told = rows.where(F.col("event").isin("joined", "left")).select("stream", "event", "timestamp", detail.alias("who"))
    # Only the first join and the last leave of a member change how many there are.
    moves = told.where("who.told").select(
        "stream", "event", F.unix_micros("timestamp").alias("at"), F.col("who.id").alias("member")
    )
    found = moves.groupBy("stream").transformWithState(
        statefulProcessor=PresenceProcessor(), outputStructType=SCHEMA, outputMode="update", timeMode="processingTime"
    )
    return found.withColumn("minute", F.timestamp_micros("minute")).withColumn("date", F.date_format("minute", "yyyy-MM-dd"))


class PresenceProcessor(StatefulProcessor):
    """One roster for each stream."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._counts = handle.getValueState("counts", _COUNTS)
        self._members = handle.getMapState("members", "member string", "present boolean, at bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        counts = Counts(*(self._counts.get() or ()))
        done: list[Counts] = []
        for row in sorted(rows, key=lambda row: row["at"]):
            change = self._change(row)
            if done_minute := counts.take(row["at"], change):
                done.append(done_minute)
        self._counts.update(counts.values)
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + FORGET_AFTER)
        for each in (*done, counts):
            yield _row(key[0], each)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo) -> Iterator[Row]:
        """Forget those who left long ago."""
        before = (timerValues.getCurrentProcessingTimeInMs() - FORGET_AFTER) * 1000
        gone = [member for member, (present, at) in self._members.iterator() if not present and at < before]
        for member in gone:
            self._members.removeKey(member)
        return iter(())

    def close(self) -> None:
        """Nothing is held."""

    def _change(self, row: Row) -> int:
        """+1, -1, or 0 for a row that is older than what is known of its member or says nothing new."""
        member = (row["member"],)
        present, at = self._members.getValue(member) or (False, None)
        if at is not None and row["at"] < at:
            return 0
        joined = row["event"] == "joined"
        self._members.updateValue(member, (joined, row["at"]))
        return int(joined) - int(present)


class Counts:
    """The figures of the newest minute of one stream; times are microseconds."""

    def __init__(self, minute: int = -1, peak: int = 0, members: int = 0, joins: int = 0, leaves: int = 0) -> None:
        self.minute = minute
        self.peak = peak
        self.members = members
        self.joins = joins
        self.leaves = leaves

    @property
    def values(self) -> tuple[int, int, int, int, int]:
        return self.minute, self.peak, self.members, self.joins, self.leaves

    def take(self, at: int, change: int) -> "Counts | None":
        """Count a change. Returns the minute that it closes. One from an older minute counts in the minute at hand."""
        minute = at - at % MINUTE
        closed = None
        if minute > self.minute:
            closed = Counts(*self.values) if self.minute >= 0 else None
            self.minute, self.peak, self.joins, self.leaves = minute, self.members, 0, 0
        self.members += change
        self.peak = max(self.peak, self.members)
        self.joins += change > 0
        self.leaves += change < 0
        return closed


def _row(stream: str, counts: Counts) -> Row:
    figures = {"peak": counts.peak, "members": counts.members, "joins": counts.joins, "leaves": counts.leaves}
    return Row(minute=counts.minute, stream=stream, **figures)
