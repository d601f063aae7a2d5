"""Spark in a process of its own: one session for all parts, and the queries that are timed.

A query's time is that of its micro-batches, as Spark itself reports it, from the first look at the source to the noted commit.
"""

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ropewalk.pipeline.session import spark_session

Options = dict[str, str]
# Whose workers' time counts as ours.
DAEMON = {"spark.python.daemon.module": "benchmarks.pipeline.daemon"}
# For a run that measures nothing: code that is compiled fast instead of fast code.
HURRIED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class Batches(Struct, frozen=True):
    """What a query did until it came to its end."""

    rows: int
    batches: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


class Spark:
    """Lives in a process of its own (see `benchmarks.remote`), with its JVM, and ends with it."""

    def __init__(self, hurried: bool = False) -> None:
        self._hurried = hurried
        self._session: SparkSession | None = None
        self._running: StreamingQuery | None = None

    @property
    def session(self) -> SparkSession:
        """Created at the first call, not with the process, so that the caller receives errors."""
        if self._session is None:
            self._session = spark_session("benchmarks", **DAEMON, **(HURRIED if self._hurried else {}))
            # a query that is stopped amid a batch would be logged at length; one that fails is raised here anyway
            self._session.sparkContext.setLogLevel("OFF")
        return self._session

    def from_journal(self, options: Options, sink: str, target: Options, home: str) -> Batches:
        """Everything the journal has now into `sink`."""
        return self._finish(self._journal(options), sink, target, home)

    def from_files(self, directory: str, sink: str, target: Options, home: str) -> Batches:
        """All files of a directory into `sink`, in one batch."""
        return self._finish(self._files(directory), sink, target, home)

    def keep_running(self, source: str, options: Options, sink: str, target: Options, home: str, trigger: str) -> None:
        """A query that goes on until `stop`. `source` is a directory of files, or "ropewalk"."""
        frame = self._journal(options) if source == "ropewalk" else self._files(source)
        writer = frame.writeStream.format(sink).options(**target).option("checkpointLocation", f"{home}/checkpoint")
        self._running = writer.trigger(processingTime=trigger).start()

    def stop(self) -> Batches:
        """Stops the running query and returns the progress that Spark still has. Raises the query's exception."""
        query = self._running
        assert query is not None
        self._running = None
        if error := query.exception():
            raise RuntimeError(str(error))
        query.stop()
        return _batches(query)

    def _journal(self, options: Options) -> DataFrame:
        return self.session.readStream.format("ropewalk").options(**options).load()

    def _files(self, directory: str) -> DataFrame:
        schema = self.session.read.parquet(directory).schema
        return self.session.readStream.schema(schema).parquet(directory)

    def _finish(self, frame: DataFrame, sink: str, target: Options, home: str) -> Batches:
        writer = frame.writeStream.format(sink).options(**target).option("checkpointLocation", f"{home}/checkpoint")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return _batches(query)


def _batches(query: StreamingQuery) -> Batches:
    done = [progress for progress in query.recentProgress if progress.numInputRows]
    seconds = sum(progress.durationMs["triggerExecution"] for progress in done) / 1000
    return Batches(sum(progress.numInputRows for progress in done), len(done), seconds)
