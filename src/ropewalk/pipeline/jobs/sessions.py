"""`sessions`: a row for each connection that ended: how it began, how long it lasted, why it ended."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from ropewalk.pipeline.config import seconds
from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.tables import Appending


class SessionsOptions(StreamOptions, frozen=True, kw_only=True):
    vanished_after: Annotated[
        str, Meta(description="A session without rows for this time has ended. Idle sessions write no rows.")
    ] = "168h"
    table: Annotated[str, Meta(description="Directory of the table; empty takes one in `state_dir`.")] = ""


@job("sessions", "record how long sessions last, with reconnects and restores", SessionsOptions)
def sessions(context: Context, options: SessionsOptions) -> DataStreamWriter:
    sink = Appending(options.table or context.table, context.checkpoint(options))
    ended = connections(context.journal(options, timers=True, includeValue="false"), seconds(options.vanished_after))
    return ended.writeStream.outputMode("append").foreachBatch(sink.take)


BEGINS = ("connected", "restored", "alive")


class OpenConnection(Struct, frozen=True):
    """A connection that has not ended yet. Times are microseconds: in Spark's state and rows datetimes differ in their zone."""

    session: str
    how: str
    began: int
    seen: int
    subscriptions: int = 0


class ClosedConnection(Struct, frozen=True):
    """One that has. `reason` is that of its closing, "" when the link was lost, "vanished" when it had no further rows."""

    session: str
    how: str
    began: int
    ended: int
    seconds: float
    subscriptions: int
    kept: bool
    reason: str


class _Snapshot(Struct):
    subscriptions: dict[str, msgspec.Raw] = {}
    names: tuple[str, ...] = ()


class _Detail(Struct):
    """The used fields of the details of all kinds."""

    snapshot: _Snapshot = msgspec.field(default_factory=_Snapshot)
    kept: bool = False
    reason: str = ""


def advance(
    open_connection: OpenConnection | None, sid: str, row: Mapping[str, Any]
) -> tuple[OpenConnection | None, ClosedConnection | None]:
    """The connection after its next row: still open, or closed. Rows of an unknown connection are ignored."""
    event, at = row["event"], row["at"]
    detail = msgspec.json.decode(row["detail"] or b"{}", type=_Detail)
    if open_connection is None:
        return (_begun(sid, event, at, detail) if event in BEGINS else None), None
    now = msgspec.structs.replace(
        open_connection, seen=at, subscriptions=open_connection.subscriptions + (event == "subscribed")
    )
    if event == "disconnected":
        return None, ended(now, detail.kept, detail.reason)
    return now, None


def ended(open_connection: OpenConnection, kept: bool, reason: str) -> ClosedConnection:
    lasted = (open_connection.seen - open_connection.began) / 1_000_000
    return ClosedConnection(
        open_connection.session,
        open_connection.how,
        open_connection.began,
        open_connection.seen,
        lasted,
        open_connection.subscriptions,
        kept,
        reason,
    )


def _begun(sid: str, event: str, at: int, detail: _Detail) -> OpenConnection:
    names = detail.snapshot.names
    return OpenConnection(names[-1] if names else sid, event, at, at, len(detail.snapshot.subscriptions))


EVENTS = ("connected", "restored", "alive", "subscribed", "disconnected")
SCHEMA = (
    "sid string, session string, how string, began bigint, ended bigint, seconds double,"
    " subscriptions bigint, kept boolean, reason string"
)
_STATE = "session string, how string, began bigint, seen bigint, subscriptions bigint, heard bigint"


def connections(rows: DataFrame, vanished_after: float = 7 * 86400.0) -> DataFrame:
    """A row for each ended connection, in a stream. A connection without rows for `vanished_after` seconds has ended too. Idle
    sessions write no rows, so this is only for missing ones. Times are those of the machine, so a shard that is read later than
    others loses nothing."""
    wanted = rows.where(F.col("event").isin(*EVENTS)).select(
        "sid", "event", F.unix_micros("timestamp").alias("at"), "position", "detail"
    )
    processor = SessionProcessor(int(vanished_after * 1000))
    found = wanted.groupBy("sid").transformWithState(
        statefulProcessor=processor, outputStructType=SCHEMA, outputMode="append", timeMode="processingTime"
    )
    times = {name: F.timestamp_micros(name) for name in ("began", "ended")}
    return found.withColumns(times).withColumn("date", F.date_format("ended", "yyyy-MM-dd"))


class SessionProcessor(StatefulProcessor):
    """One open connection for each sid. A sid's rows come in order, for they share a shard; within a batch Spark may mix
    them."""

    def __init__(self, vanished_after: int) -> None:
        self._vanished_after = vanished_after

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("life", _STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        state = self._state.get()
        open_connection = OpenConnection(*state[:-1]) if state else None
        for row in sorted(rows, key=lambda row: row["position"]):
            open_connection, connection = advance(open_connection, key[0], row.asDict())
            if connection is not None:
                yield _row(key[0], connection)
        self._keep(open_connection, now, known=state is not None)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo) -> Iterator[Row]:
        state = self._state.get()
        if state is None:
            return
        due = state[-1] + self._vanished_after
        if due > timerValues.getCurrentProcessingTimeInMs():
            self._handle.registerTimer(due)  # it had rows since
            return
        self._state.clear()
        yield _row(key[0], ended(OpenConnection(*state[:-1]), kept=False, reason="vanished"))

    def close(self) -> None:
        """Nothing is held."""

    def _keep(self, open_connection: OpenConnection | None, now: int, known: bool) -> None:
        if open_connection is None:
            self._state.clear()
            return
        self._state.update((*asdict(open_connection).values(), now))
        if not known:
            self._handle.registerTimer(now + self._vanished_after)


def _row(sid: str, connection: ClosedConnection) -> Row:
    return Row(sid=sid, **asdict(connection))
