"""`df.writeStream.format("ropewalk")` and `df.write.format("ropewalk")`: rows become publications, each registered once.

Spark may run a task twice, even at the same time, and a batch again days later; the server decides what counts.
"""

import random
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.journal_client import JournalClient, ipc
from ropewalk.pipeline.options import Delivery, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


# Attempts need unique numbers: Spark's own restart with every driver.
_ATTEMPTS = 1 << 53


@dataclass
class StagedTask(WriterCommitMessage):
    """What one task left with the server; `pieces` 0 for a task that had nothing."""

    app: str
    part: int
    attempt: int
    pieces: int


class Delivering:
    """The work of a task, for streaming and batch writes."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self._client = JournalClient(options.address)

    def write(self, batches: Iterator["pa.RecordBatch"], app: str, batch: int) -> StagedTask:
        part = task().partitionId()
        bodies = (piece for given in batches for piece in publication_bodies(given, self.options))
        match self.options.delivery:
            case Delivery.TRANSACTIONAL:
                return self._stage(bodies, app, batch, part)
            case Delivery.IDEMPOTENT:
                return self._produce(bodies, app, batch, part)
            case Delivery.KEYED:
                return self._publish(bodies, app, part)

    def commit(self, messages: Iterable[WriterCommitMessage | None], batch: int) -> None:
        done = [message for message in messages if isinstance(message, StagedTask) and message.pieces]
        if done and self.options.delivery is Delivery.TRANSACTIONAL:
            winners = {message.part: message.attempt for message in done}
            self._client.commit(done[0].app, batch, winners, {message.part: message.pieces for message in done})

    def _stage(self, bodies: Iterator["pa.RecordBatch"], app: str, batch: int, part: int) -> StagedTask:
        attempt, pieces = random.SystemRandom().randrange(_ATTEMPTS), 0
        for body in bodies:
            self._client.stage(app, batch, part, attempt, pieces, ipc(body))
            pieces += 1
        return StagedTask(app, part, attempt, pieces)

    def _produce(self, bodies: Iterator["pa.RecordBatch"], app: str, batch: int, part: int) -> StagedTask:
        rows = 0
        for body in bodies:
            self._client.produce(f"{app}-{part}", batch << 32 | rows, ipc(body))
            rows += body.num_rows
        return StagedTask(app, part, 0, 0)

    def _publish(self, bodies: Iterator["pa.RecordBatch"], app: str, part: int) -> StagedTask:
        for body in bodies:
            self._client.publish(ipc(body))
        return StagedTask(app, part, 0, 0)


class RopewalkStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's writer. The query's id lives in its checkpoint, so it is the same after a restart."""

    def __init__(self, options: SinkOptions) -> None:
        self._delivering = Delivering(options)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        context = task()
        app = self._delivering.options.app or str(context.getLocalProperty("sql.streaming.queryId"))
        return self._delivering.write(iterator, app, int(str(context.getLocalProperty("streaming.sql.batchId"))))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._delivering.commit(messages, batchId)


class RopewalkBatchWriter(DataSourceArrowWriter):
    """`df.write`. Without txnAppId every write is another one; with it, a version that was written is not written again."""

    def __init__(self, options: SinkOptions) -> None:
        self._delivering = Delivering(options)
        self._app = options.app or uuid.uuid4().hex
        self._version = options.version or 0

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return self._delivering.write(iterator, self._app, self._version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._delivering.commit(messages, self._version)


def check(options: SinkOptions, schema: "StructType") -> None:
    """Raises UserMistake for columns that cannot be published, before anything runs."""
    names = set(schema.fieldNames())
    if "value" not in names:
        raise UserMistake(f"a publication needs the column value; there are {', '.join(sorted(names))}")
    if "stream" not in names and not options.stream:
        raise UserMistake("a publication needs the column stream, or the option stream for all of them")
    if options.delivery is Delivery.KEYED and not names & {"uid", "idempotency_key"}:
        raise UserMistake("delivery keyed needs the column uid (or idempotency_key)")
    if options.app and options.version is None and options.delivery is Delivery.KEYED:
        raise UserMistake("txnAppId has no meaning with delivery keyed")


def task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark runs writers in tasks"
    return context


# Rows are counted, so bytes have to be bounded too: a body is held in memory on both sides.
MAX_BODY = 4 << 20
_OPTIONAL = ("exclude_socket", "broadcast_type")


def publication_bodies(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """Raises UserMistake for a row without a stream, a value or a needed uid."""
    columns = {"stream": _stream(batch, options), "value": _value(batch)}
    if (uid := _uid(batch, options)) is not None:
        columns["uid"] = uid
    for name in _OPTIONAL:
        if name in batch.schema.names:
            columns[name] = batch.column(name).cast(pa.string())
    whole = pa.RecordBatch.from_pydict(columns)
    yield from _bodies(whole, options.batch_rows)


def _bodies(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    fitting = max(1, MAX_BODY * batch.num_rows // max(batch.nbytes, 1))
    step = min(most, fitting)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _stream(batch: pa.RecordBatch, options: SinkOptions) -> pa.Array:
    """The option wins over the column, as Kafka's `topic` does: forwarded rows rarely belong into their old stream."""
    if options.stream:
        return pa.repeat(pa.scalar(options.stream), batch.num_rows)
    return _whole(batch.column("stream").cast(pa.string()), "stream")


def _value(batch: pa.RecordBatch) -> pa.Array:
    column = batch.column("value")
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise UserMistake(f"the column value is JSON text, as string or binary, not {column.type}; to_json() makes it")
    return _whole(column.cast(pa.binary()), "value")


def _uid(batch: pa.RecordBatch, options: SinkOptions) -> pa.Array | None:
    name = next((name for name in ("uid", "idempotency_key") if name in batch.schema.names), None)
    if name is None:
        return None
    column = batch.column(name).cast(pa.string())
    return _whole(column, name) if options.delivery is Delivery.KEYED else column


def _whole(column: pa.Array, name: str) -> pa.Array:
    """Raises UserMistake for rows without it. Empty names, keys and values are invalid too."""
    if absent := column.null_count + (pc.sum(pc.equal(pc.binary_length(column), 0)).as_py() or 0):
        raise UserMistake(f"{absent} rows have no {name}")
    return column
