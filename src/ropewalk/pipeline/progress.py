"""How a query is doing, out of the reports that Spark keeps of its last batches. Pure: dictionaries in, records out."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from ropewalk.pipeline.offsets import rows_behind


class QueryProgress(Struct, frozen=True):
    """`rows` and `batches` are those of this run; `rate` and `seconds` those of the last batch that had rows.

    `reports` counts Spark's progress reports: after each batch, and every ten seconds of an idle one.
    `lag` is rows still to read by shard, as of the last report. `late`: rows that the watermark dropped, or
    groups of rows if they were aggregated before.
    """

    batch: int = -1
    batches: int = 0
    rows: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    lag: dict[int, int] = {}
    late: int = 0
    reports: int = 0


class ProgressTally:
    """Adds up reports. Spark gives the same ones again and again, so each counts by its time once."""

    def __init__(self) -> None:
        self.progress = QueryProgress()
        self._newest = ""

    def take(self, reports: Iterable[Mapping[str, Any]]) -> bool:
        """Reports, the oldest first. True if there was a batch among those not seen before."""
        before = self.progress.batches
        for report in reports:
            if report["timestamp"] > self._newest:
                self._newest = report["timestamp"]
                self.progress = _after(self.progress, report)
        return self.progress.batches > before


def _after(progress: QueryProgress, report: Mapping[str, Any]) -> QueryProgress:
    durations = report.get("durationMs") or {}
    ran = "addBatch" in durations  # an idle trigger reports too
    rows = int(report.get("numInputRows") or 0)
    seconds = durations.get("triggerExecution", 0) / 1000
    return QueryProgress(
        batch=int(report["batchId"]) if ran else progress.batch,
        batches=progress.batches + ran,
        rows=progress.rows + rows,
        rate=rows / seconds if rows and seconds else (0.0 if not ran else progress.rate),
        seconds=seconds if ran else progress.seconds,
        lag=count_lag(report),
        reports=progress.reports + 1,
        late=progress.late
        + sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in report.get("stateOperators") or ()),
    )


def count_lag(report: Mapping[str, Any]) -> dict[int, int]:
    """Rows between where the batch ended and where the journal ends, by shard, through all of the shard's generations."""
    lag: dict[int, int] = {}
    for source in report.get("sources") or ():
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for shard, mark in latest.items():
            lag[int(shard)] = lag.get(int(shard), 0) + rows_behind(int(shard), end.get(shard), mark)
    return lag


def _offsets(raw: object) -> dict[str, Any]:
    """Spark shows an offset as JSON text or parsed. Offsets of other formats are ignored."""
    value = json.loads(raw) if isinstance(raw, str) and raw.startswith("{") else raw
    if not isinstance(value, Mapping):
        return {}
    return {str(shard): mark for shard, mark in value.items() if isinstance(mark, Mapping) and mark.keys() >= {"e", "p"}}
