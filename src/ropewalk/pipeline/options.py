"""The options of source and sink, parsed from Spark's strings into records. An unknown name is an error."""

import json
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from ropewalk.model.errors import UserMistake

EARLIEST = "earliest"
LATEST = "latest"
PARTITION_ROWS = 100_000
RETRIES = 8
RETRY_MILLISECONDS = 200
TOKEN_VARIABLE = "ROPEWALK_JOURNAL_TOKEN"

_SHARED = ("url", "token", "caFile", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
_SOURCE = (
    *("subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions"),
    *(
        "maxRecordsPerPartition",
        "recordsPerPartition",
        "failOnDataLoss",
        "includeHeaders",
        "includeValue",
        "columns",
        "consumer",
    ),
    *("tiered", "archive", "pushdown"),
)
_SINK = ("stream", "delivery", "txnAppId", "txnVersion", "batchRows")
# Spark passes its own along with ours.
_SPARK = ("path", "checkpointLocation", "queryName", "outputMode")
_KNOWN = {name.lower(): name for name in (*_SHARED, *_SOURCE, *_SINK, *_SPARK)}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Delivery(StrEnum):
    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"
    KEYED = "keyed"


class Columns(StrEnum):
    """What a row shows: Kafka's names where the meaning is the same, or the journal's columns as they are."""

    STANDARD = "standard"
    JOURNAL = "journal"


class Address(Struct, frozen=True):
    """A server and the retries for it.

    Args:
        retries: attempts after the first one.
        interval: seconds before the first retry. They grow up to ten seconds.
        ca: file with the certificates to trust; "" trusts those of the system.
    """

    url: str
    token: str = ""
    retries: int = RETRIES
    interval: float = RETRY_MILLISECONDS / 1000
    ca: str = ""

    def __post_init__(self) -> None:
        """Raises UserMistake for an invalid address: requests to it would fail with obscure errors."""
        if not _is_address(self.url):
            raise UserMistake(f"the url is the server's address, like http://127.0.0.1:8080, not {self.url!r}")


class Selection(Struct, frozen=True):
    """Which rows. At most one of the first three is given; `assign` chooses shards, the others streams by name."""

    streams: tuple[str, ...] = ()
    pattern: str = ""
    assign: tuple[int, ...] = ()


class Boundary(Struct, frozen=True):
    """Start or end of a query: earliest, latest, a mark for each shard as JSON, or a time in milliseconds."""

    offsets: str
    timestamp: int | None = None


class BatchLimits(Struct, frozen=True):
    """How much goes into one batch and one task. 0: no limit."""

    max_rows: int = 0
    max_bytes: int = 0
    min_rows: int = 0
    max_delay: float = 900.0
    min_partitions: int = 0
    max_partition_rows: int = 0
    partition_rows: int = PARTITION_ROWS


class SourceOptions(Struct, frozen=True):
    address: Address
    selection: Selection
    start: Boundary
    end: Boundary
    batch_limits: BatchLimits
    fail_on_data_loss: bool = True
    headers: bool = False
    value: bool = True
    columns: Columns = Columns.STANDARD
    consumer: str = ""
    archive: str = ""
    pushdown: bool = False


class SinkOptions(Struct, frozen=True):
    """`app` and `version` name the transaction of a batch write; a streaming query brings its own."""

    address: Address
    stream: str = ""
    delivery: Delivery = Delivery.TRANSACTIONAL
    app: str = ""
    version: int | None = None
    batch_rows: int = 10_000


def source_options(given: Mapping[str, str], streaming: bool) -> SourceOptions:
    """Raises UserMistake that names the option."""
    options = _Options(given)
    return SourceOptions(
        address=_address(options),
        selection=_selection(options),
        start=_boundary(options, "starting", LATEST if streaming else EARLIEST),
        end=_boundary(options, "ending", LATEST),
        batch_limits=_batch_limits(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        headers=options.flag("includeHeaders", False),
        value=options.flag("includeValue", True),
        columns=Columns(options.choice("columns", list(Columns), Columns.STANDARD)),
        consumer=options.text("consumer"),
        archive=_archive(options),
        pushdown=options.flag("pushdown", False),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises UserMistake that names the option."""
    options = _Options(given)
    if options.text("txnVersion") and not options.text("txnAppId"):
        raise UserMistake("txnVersion needs txnAppId: together they name the write")
    return SinkOptions(
        address=_address(options),
        stream=options.text("stream"),
        delivery=Delivery(options.choice("delivery", list(Delivery), Delivery.TRANSACTIONAL)),
        app=options.text("txnAppId"),
        version=options.number("txnVersion", 0) if options.text("txnVersion") else None,
        batch_rows=max(1, options.number("batchRows", 10_000)),
    )


class _Options:
    """Names without case, as everywhere in Spark."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        if "provider" in self._given:  # a property of tables that Spark's catalog keeps
            raise UserMistake(
                "Spark's catalog would keep the table and forget its options, for it does not hand them to sources in Python: "
                "use CREATE TEMPORARY VIEW … USING ropewalk OPTIONS (…)"
            )
        for name in self._given:
            if name not in _KNOWN:
                near = get_close_matches(name, _KNOWN, n=1)
                hint = f"; did you mean {_KNOWN[near[0]]}?" if near else ""
                raise UserMistake(f"the format ropewalk has no option {name!r}{hint}")

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def number(self, name: str, default: int) -> int:
        text = self.text(name, str(default))
        try:
            value = int(text)
        except ValueError:
            value = -1
        if value < 0:
            raise UserMistake(f"the option {name} is a whole number from 0 on, not {text!r}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ["true", "false"], str(default).lower()) == "true"

    def choice(self, name: str, words: list[str], default: str) -> str:
        word = self.text(name, default).lower()
        if word not in words:
            raise UserMistake(f"the option {name} is one of {', '.join(words)}, not {word!r}")
        return word


def _address(options: _Options) -> Address:
    url = options.text("url", options.text("path"))
    return Address(
        url.rstrip("/"),
        options.text("token", os.environ.get(TOKEN_VARIABLE, "")),
        options.number("fetchOffset.numRetries", RETRIES),
        options.number("fetchOffset.retryIntervalMs", RETRY_MILLISECONDS) / 1000,
        options.text("caFile"),
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        reachable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment) and url.isascii() and url.isprintable() and " " not in url
    return parts.scheme in ("http", "https") and reachable and plain


def _selection(options: _Options) -> Selection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
    if len(given) > 1:
        raise UserMistake(f"{' and '.join(given)} exclude each other")
    pattern = options.text("subscribePattern")
    if pattern:
        _check_pattern(pattern)
    try:
        assign = tuple(int(shard) for shard in _list(options.text("assign")))
    except ValueError as error:
        raise UserMistake(f"the option assign is a list of shards, like 0,1,2, not {options.text('assign')!r}") from error
    return Selection(tuple(_list(options.text("subscribe"))), pattern, assign)


def _check_pattern(pattern: str) -> None:
    """In the language of the engine that will match: RE2, which has no lookahead and no references back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        raise UserMistake(f"the option subscribePattern is not a regular expression of RE2: {error}") from error


def _list(text: str) -> list[str]:
    """A comma list, or JSON where a name has a comma in it."""
    if text.startswith("["):
        return [str(item) for item in json.loads(text)]
    return [item.strip() for item in text.split(",") if item.strip()]


def _boundary(options: _Options, which: str, default: str) -> Boundary:
    timestamp = options.text(f"{which}Timestamp")
    offsets = options.text(f"{which}Offsets", default)
    if offsets.lower() in (EARLIEST, LATEST):
        offsets = offsets.lower()
    elif not offsets.startswith("{"):
        raise UserMistake(f"the option {which}Offsets is earliest, latest or JSON with a mark for each shard, not {offsets!r}")
    return Boundary(offsets, options.number(f"{which}Timestamp", 0) if timestamp else None)


def _batch_limits(options: _Options) -> BatchLimits:
    return BatchLimits(
        options.number("maxOffsetsPerTrigger", 0),
        options.number("maxBytesPerTrigger", 0),
        options.number("minOffsetsPerTrigger", 0),
        _duration(options.text("maxTriggerDelay", "15m")),
        options.number("minPartitions", 0),
        options.number("maxRecordsPerPartition", 0),
        options.number("recordsPerPartition", PARTITION_ROWS),
    )


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if not match:
        raise UserMistake(f"the option maxTriggerDelay is a duration, like 90s or 15m, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


def local_path(path: str) -> str:
    """Raises UserMistake for a place that is not a directory of this machine: nothing here could read or write there."""
    bare = path.removeprefix("file://")
    if "://" in bare or bare.startswith("file:"):
        raise UserMistake(f"the archive is a directory that tasks and server can reach, like /mnt/archive, not {path!r}")
    return bare


def _archive(options: _Options) -> str:
    """The archive's path where ranges may come from there; "" where they may not. It may have no table yet."""
    archive = options.text("archive")
    if options.flag("tiered", bool(archive)) and not archive:
        raise UserMistake("tiered needs the option archive: the path of the archive's table")
    if not archive or not options.flag("tiered", True):
        return ""
    place = Path(local_path(archive))
    if not place.is_dir():
        raise UserMistake(f"the option archive: directory {place} does not exist; create it if it will be written")
    return str(place)
