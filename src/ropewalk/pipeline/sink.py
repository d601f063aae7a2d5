"""`df.writeStream.format("ropewalk")` and `df.write.format("ropewalk")`: rows become publications, each registered once.

Spark may run a task twice, even at the same time, and a batch again days later; the server decides what counts.
"""

import random
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Delivery, SinkOptions
from ropewalk.pipeline.sink_rows import outgoing
from ropewalk.pipeline.wire import Wire, ipc

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# An attempt needs a number that no other one ever had: Spark's own begin anew with every driver.
_ATTEMPTS = 1 << 53


@dataclass
class StagedTask(WriterCommitMessage):
    """What one task left with the server; `pieces` 0 for a task that had nothing."""

    app: str
    part: int
    attempt: int
    pieces: int


class Delivering:
    """What a task does, whichever kind of write it belongs to."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self._wire = Wire(options.address)

    def write(self, batches: Iterator["pa.RecordBatch"], app: str, batch: int) -> StagedTask:
        part = task().partitionId()
        bodies = (piece for given in batches for piece in outgoing(given, self.options))
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
            self._wire.commit(done[0].app, batch, winners, {message.part: message.pieces for message in done})

    def _stage(self, bodies: Iterator["pa.RecordBatch"], app: str, batch: int, part: int) -> StagedTask:
        attempt, pieces = random.SystemRandom().randrange(_ATTEMPTS), 0
        for body in bodies:
            self._wire.stage(app, batch, part, attempt, pieces, ipc(body))
            pieces += 1
        return StagedTask(app, part, attempt, pieces)

    def _produce(self, bodies: Iterator["pa.RecordBatch"], app: str, batch: int, part: int) -> StagedTask:
        rows = 0
        for body in bodies:
            self._wire.produce(f"{app}-{part}", batch << 32 | rows, ipc(body))
            rows += body.num_rows
        return StagedTask(app, part, 0, 0)

    def _publish(self, bodies: Iterator["pa.RecordBatch"], app: str, part: int) -> StagedTask:
        for body in bodies:
            self._wire.publish(ipc(body))
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
