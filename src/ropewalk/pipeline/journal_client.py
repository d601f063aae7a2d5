"""Blocking client of the journal's HTTP endpoints for Spark's processes. Retries with backoff.

A refusal (4xx) is raised to the caller and never retried.
"""

import http.client
import random
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import ClientError, Unavailable, UserMistake
from ropewalk.model.journal import ShardSpan
from ropewalk.pipeline.offsets import OffsetJson, Spans, by_shard
from ropewalk.pipeline.options import TOKEN_VARIABLE, Address

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
# One answer is held in memory whole; several of them fill a batch.
READ_BYTES = 8 << 20
TIMEOUT = 60.0
MAX_RETRY_SECONDS = 10.0

Query = Mapping[str, int]
_NOTHING: Query = {}


class JournalRefused(ClientError):
    """An HTTP 4xx response, with the status and the error text of the server."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class JournalState(Struct):
    """The readable positions, and by shard the reported end of the archive."""

    shards: int
    spans: list[ShardSpan]
    archived: dict[int, int] = {}


class ProduceReply(Struct):
    """Rows that got their position by this call, and rows that had it before."""

    published: int
    skipped: int


class _Committed(Struct):
    duplicate: bool = False


class _ErrorBody(Struct):
    error: str = ""


class JournalClient:
    """HTTP client of one server's journal, for drivers and tasks. It holds no connection."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def spans(self) -> Spans:
        """What can be read now, by shard."""
        journal = self.journal()
        return by_shard(journal.spans, journal.shards)

    def journal(self) -> JournalState:
        return msgspec.json.decode(self._call("GET", "/journal"), type=JournalState)

    def read(self, shard: int, first: int, end: int, max_bytes: int = READ_BYTES) -> pa.Table:
        """The beginning of [first, end), or all of it. Raises JournalRefused for missing or deleted positions."""
        answer = self._call("GET", f"/journal/{shard}", {"from": first, "to": end, "max_bytes": max_bytes})
        return _cut(_joined(answer), first, end)

    def pin(self, consumer: str, offset: OffsetJson) -> OffsetJson:
        """Pin the start of this consumer at `offset`, unless it has one. Returns the start. Not all servers store consumers."""
        try:
            kept = self._consumer("POST", consumer, offset)
        except JournalRefused as refused:
            if refused.status in (404, 405):
                return offset
            raise
        # The server may return other shards too, from another query with this name.
        return {shard: kept.get(shard, mark) for shard, mark in offset.items()}

    def move(self, consumer: str, offset: OffsetJson) -> None:
        """Report progress. Ignored if the server stores no consumers or its journal was replaced."""
        with suppress(JournalRefused):
            self._consumer("PUT", consumer, offset)

    def _consumer(self, method: str, name: str, offset: OffsetJson) -> OffsetJson:
        answer = self._call(method, f"/journal/consumers/{_quote(name)}", _NOTHING, msgspec.json.encode(offset), JSON)
        return msgspec.json.decode(answer, type=OffsetJson)

    def archived(self, positions: Mapping[int, int]) -> None:
        """Report the end of the archive by shard."""
        body = msgspec.json.encode({"positions": {str(shard): end for shard, end in sorted(positions.items())}})
        self._call("POST", "/journal/archived", _NOTHING, body, JSON)

    def stage(self, app: str, batch: int, part: int, attempt: int, sequence: int, body: bytes) -> None:
        """Stage rows on the server. They are invisible before the commit."""
        place = {"part": part, "attempt": attempt, "seq": sequence}
        self._call("POST", f"/journal/transactions/{_quote(app)}/{batch}/stage", place, body, ARROW)

    def commit(self, app: str, batch: int, winners: Mapping[int, int], pieces: Mapping[int, int]) -> bool:
        """Publish what the winning attempts (by part) staged, so many pieces each. False if this batch was published before."""
        body = msgspec.json.encode({"winners": winners, "pieces": pieces})
        answer = self._call("POST", f"/journal/transactions/{_quote(app)}/{batch}/commit", _NOTHING, body, JSON)
        return not msgspec.json.decode(answer, type=_Committed).duplicate

    def produce(self, producer: str, sequence: int, body: bytes) -> None:
        """Publish rows that are numbered from `sequence` on; known ones are skipped."""
        self._call("POST", f"/journal/producers/{_quote(producer)}", {"sequence": sequence}, body, ARROW)

    def publish(self, body: bytes) -> ProduceReply:
        """Publish rows that each carry a uid, or a producer and a sequence; known ones are skipped."""
        return msgspec.json.decode(self._call("POST", "/journal/publications", _NOTHING, body, ARROW), type=ProduceReply)

    def _call(self, method: str, path: str, query: Query = _NOTHING, body: bytes | None = None, kind: str = "") -> bytes:
        attempt = 0
        while True:
            try:
                return self._once(method, path, query, body, kind)
            except Unavailable:
                if attempt >= self._address.retries:
                    raise
                self._wait(attempt)
                attempt += 1

    def _once(self, method: str, path: str, query: Query, body: bytes | None, kind: str) -> bytes:
        url = f"{self._address.url}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {"Content-Type": kind} if kind else {}
        if self._address.token:
            headers["Authorization"] = f"Bearer {self._address.token}"
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT, context=self._trust()) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                raise UserMistake(
                    f"{self._address.url} shows a certificate that is not trusted here ({error}): the option caFile names a "
                    "file with the certificates to trust, on every machine that runs tasks"
                ) from error
            raise Unavailable(f"{url} did not respond: {str(error) or type(error).__name__}") from error

    def _trust(self) -> ssl.SSLContext | None:
        if not (self._address.ca and self._address.url.startswith("https:")):
            return None
        try:
            return ssl.create_default_context(cafile=self._address.ca)
        except (OSError, ssl.SSLError) as error:
            raise UserMistake(f"the option caFile, {self._address.ca!r}, cannot be read: {error}") from error

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        reason = _reason(error)
        if error.code == 401:
            return UserMistake(
                f"{self._address.url} refused the journal's token ({reason}): set the option token, or {TOKEN_VARIABLE}"
            )
        if error.code == 429 or error.code >= 500:
            return Unavailable(f"{error.url} answered {error.code}: {reason}")
        return JournalRefused(error.code, reason)

    def _wait(self, attempt: int) -> None:
        time.sleep(Backoff(self._address.interval, MAX_RETRY_SECONDS).delay(attempt, random.random))


def ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _joined(answer: bytes) -> pa.Table:
    """One chunk, however small the journal's batches are: table operations cost time per chunk."""
    with pa.ipc.open_stream(pa.py_buffer(answer)) as stream:
        batches = list(stream)
        return pa.Table.from_batches([pa.concat_batches(batches)] if batches else [], stream.schema)


def _cut(table: pa.Table, first: int, end: int) -> pa.Table:
    """Batches come whole, so the answer may begin earlier and end later. Positions in it are dense."""
    if not table.num_rows:
        return table
    skip = max(first - _position(table, 0), 0)
    return table.slice(skip, max(end - max(first, _position(table, 0)), 0))


def _position(table: pa.Table, row: int) -> int:
    position: int = table.column("position")[row].as_py()
    return position


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _reason(error: urllib.error.HTTPError) -> str:
    text: Any = error.read()
    try:
        return msgspec.json.decode(text, type=_ErrorBody).error or error.reason
    except msgspec.DecodeError:
        return str(error.reason)
