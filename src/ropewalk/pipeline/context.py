"""What a job is given: its options, the server, the archive, a place for its tables, and Spark, which starts when it is first
asked for."""

from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from msgspec import Meta, Struct

from ropewalk.pipeline.options import RETRIES, Address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PrintLine = Callable[[str], None]


class JobOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of a job's section. An unknown key is an error."""


class StreamOptions(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a job that is a query: it goes on until it is stopped. A job's own options come in a subclass."""

    trigger: Annotated[str, Meta(description="Time from one batch to the next: `100ms`, `10s`, `5m`.")] = "10s"
    starting: Annotated[str, Meta(description="Where the first run begins: `earliest`, `latest` or JSON by shard.")] = (
        "earliest"
    )
    subscribe: Annotated[str, Meta(description="Streams to read, with commas between; empty reads all.")] = ""
    pattern: Annotated[str, Meta(description="Regular expression of the streams to read.")] = ""
    max_rows: Annotated[int, Meta(description="Rows of one batch at most; 0 sets no limit.", ge=0)] = 100_000
    fail_on_data_loss: Annotated[bool, Meta(description="Stop when rows are gone that were never read.")] = True
    checkpoint: Annotated[str, Meta(description="Directory of the query's progress; empty takes one in `state_dir`.")] = ""


class BatchOptions(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a job that comes to an end."""

    every: Annotated[str, Meta(description="Run it again after this time: `30m`, `24h`; empty runs it once.")] = ""


class Place(Struct, frozen=True):
    """Where a run reads and writes."""

    url: str
    token: str
    archive_dir: str
    state_dir: Path
    ca: str = ""
    retries: int = RETRIES

    @property
    def address(self) -> Address:
        return Address(self.url, self.token, self.retries, ca=self.ca)

    @property
    def options(self) -> dict[str, str]:
        """The same for Spark's formats."""
        named = {"url": self.url, "token": self.token, "caFile": self.ca}
        return {name: value for name, value in named.items() if value}


class RunSession:
    """The Spark session of a run, shared by all of its jobs: made at the first call, and again after its JVM has died."""

    def __init__(self, make: "Callable[[], SparkSession]") -> None:
        self._make = make
        self._made: SparkSession | None = None
        self._making = Lock()

    def __call__(self) -> "SparkSession":
        from ropewalk.pipeline.session import lost_jvm

        with self._making:
            if self._made is None or lost_jvm():
                self._made = self._make()
            return self._made


class Context:
    """One run's surroundings. `stopping` is set when the run shall end; long batch jobs must check it."""

    def __init__(
        self, place: Place, session: "Callable[[], SparkSession]", print_line: PrintLine = print, name: str = ""
    ) -> None:
        self.place = place
        self.name = name
        self.print_line = print_line
        self.stopping = Event()
        self._session = session

    def named(self, name: str) -> "Context":
        """The same for one of the run's jobs; `stopping` is its own."""
        return Context(self.place, self._session, self.print_line, name)

    @property
    def spark(self) -> "SparkSession":
        return self._session()

    def journal(self, options: StreamOptions, timers: bool = False, **extra: str) -> "DataFrame":
        """The journal as a stream, with all of its columns; what it has let go of comes from the archive. `extra` are further
        options of the format.

        `timers`: for a query whose state has timers of the machine's time.
        """
        Path(self.place.archive_dir).mkdir(parents=True, exist_ok=True)  # the job that writes it may start later
        chosen = {
            "startingOffsets": options.starting,
            "failOnDataLoss": str(options.fail_on_data_loss).lower(),
            "maxOffsetsPerTrigger": str(options.max_rows),
            "archive": self.place.archive_dir,
            **({"subscribe": options.subscribe} if options.subscribe else {}),
            **({"subscribePattern": options.pattern} if options.pattern else {}),
        }
        session = only_with_rows(self.spark) if timers else self.spark
        return session.readStream.format("ropewalk").options(**self._server(), **(chosen | extra)).load()

    def journal_now(self, **extra: str) -> "DataFrame":
        """What the journal holds now."""
        return self.spark.read.format("ropewalk").options(**self._server(), **extra).load()

    def archive_now(self, without: Collection[str] = ()) -> "DataFrame | None":
        """What the archive holds now; None where there is none yet. Only what its log names: other files are waste.

        `without` are paths in the table that are left out.
        """
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.place.archive_dir):
            return None
        uris = DeltaTable(self.place.archive_dir).file_uris()
        files = [uri for uri in uris if not any(unquote(uri).endswith(f"/{path}") for path in without)]
        frame = self.spark.read.option("basePath", self.place.archive_dir).parquet(*files) if files else None
        # Spark guesses the types of partition columns.
        return frame and frame.withColumns({"shard": frame["shard"].cast("int"), "date": frame["date"].cast("string")})

    def publishing(self) -> dict[str, str]:
        """Options for `writeStream.format("ropewalk")`: the same server."""
        return {name: value for name, value in self._server().items() if name != "columns"}

    @property
    def table(self) -> str:
        """The directory of the job's own table."""
        return str(self.place.state_dir / "tables" / self.name)

    def checkpoint(self, options: StreamOptions) -> str:
        # The version is that of the query's shape: state written by another shape cannot be read.
        return options.checkpoint or str(self.place.state_dir / "checkpoints" / self.name / "v1")

    def _server(self) -> dict[str, str]:
        return {**self.place.options, "columns": "journal", "fetchOffset.numRetries": str(self.place.retries)}


def only_with_rows(spark: "SparkSession") -> "SparkSession":
    """A session whose queries run no empty batches. With processing-time timers Spark would run them endlessly."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    return session
