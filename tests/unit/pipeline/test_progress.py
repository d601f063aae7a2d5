"""Figures from Spark's progress reports, and their display."""

import json
from io import StringIO
from typing import Any

from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.display import Display, JobLine, lag_text
from ropewalk.pipeline.offsets import end_offsets
from ropewalk.pipeline.progress import ProgressTally, QueryProgress, count_lag
from ropewalk.testing.clock import ManualClock


def report(second: int, rows: int, batch: int = 0, ran: bool = True, **more: Any) -> dict[str, Any]:
    durations = {"triggerExecution": 500, **({"addBatch": 400} if ran else {})}
    return {
        "timestamp": f"2026-01-31T12:00:{second:02d}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": durations,
        **more,
    }


def marks(**positions: tuple[str, int]) -> str:
    return json.dumps({shard[1:]: {"e": epoch, "p": position} for shard, (epoch, position) in positions.items()})


def test_repeated_report_is_counted_once() -> None:
    tally = ProgressTally()

    assert tally.take([report(1, 10), report(2, 5, 1)])
    assert not tally.take([report(1, 10), report(2, 5, 1)])
    assert tally.take([report(2, 5, 1), report(3, 7, 2)])

    assert tally.progress == QueryProgress(batch=2, batches=3, rows=22, rate=14.0, seconds=0.5, reports=3)


def test_idle_trigger_is_not_a_batch() -> None:
    tally = ProgressTally()
    tally.take([report(1, 10, 4)])

    assert not tally.take([report(2, 0, 5, ran=False)])

    assert (tally.progress.batch, tally.progress.batches, tally.progress.rate) == (4, 1, 0.0)


def test_late_rows_are_summed() -> None:
    tally = ProgressTally()
    tally.take([report(1, 1, stateOperators=[{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 1}])])
    tally.take([report(2, 1, 1, stateOperators=[{"numRowsDroppedByWatermark": 4}])])

    assert tally.progress.late == 7


def test_lag_is_counted_by_shard() -> None:
    source = {
        "endOffset": marks(s0=("a", 10), s1=("a", 5)),
        "latestOffset": marks(s0=("a", 12), s1=("b", GENERATION_SIZE + 3), s2=("a", 4)),
    }

    assert count_lag({"sources": [source]}) == {0: 2, 1: 3, 2: 4}


def test_lag_includes_older_generations() -> None:
    """Shard 0 is read up to its first of three generations, shard 1 not at all, shard 2 to its end."""
    spans = {
        0: [
            ShardSpan(0, "a", 0, 100),
            ShardSpan(0, "b", GENERATION_SIZE, GENERATION_SIZE + 20),
            ShardSpan(0, "c", 2 * GENERATION_SIZE, 2 * GENERATION_SIZE + 3),
        ],
        1: [ShardSpan(1, "a", 40, 50), ShardSpan(1, "b", GENERATION_SIZE, GENERATION_SIZE + 7)],
        2: [ShardSpan(2, "a", 0, 10), ShardSpan(2, "b", GENERATION_SIZE, GENERATION_SIZE + 7)],
    }
    source = {"endOffset": marks(s0=("a", 90), s2=("b", GENERATION_SIZE + 7)), "latestOffset": json.dumps(end_offsets(spans))}

    assert count_lag({"sources": [source]}) == {0: 10 + 20 + 3, 1: 10 + 7, 2: 0}


def test_source_of_another_format_has_no_lag() -> None:
    assert count_lag({"sources": [{"endOffset": '{"logOffset": 3}', "latestOffset": None}, {"endOffset": "7"}]}) == {}


def test_lag_text_lists_the_slowest_shards() -> None:
    assert lag_text({0: 0, 1: 0}) == "0"
    assert lag_text({0: 5, 1: 1000, 2: 0}) == "1,005 (1:1,000 0:5)"
    assert lag_text(dict.fromkeys(range(9), 1)).endswith("…)")


def test_without_a_terminal_lines_are_written_on_change_and_after_a_minute() -> None:
    clock, out = ManualClock(0.0), StringIO()
    display = Display(clock, out)
    for condition in ("waiting", "running", "running"):
        display.show([JobLine("archive", condition, QueryProgress(), 0, "")])
    assert [line.split() for line in out.getvalue().splitlines()] == [["archive", "waiting"], ["archive", "running"]]

    clock.advance(60.0)
    display.show([JobLine("archive", "running", QueryProgress(batches=1, rows=5), 0, "")])
    assert "5 rows" in out.getvalue().splitlines()[-1]


def test_columns_are_aligned_for_long_names() -> None:
    out = StringIO()
    display = Display(ManualClock(0.0), out)
    display.show(
        [JobLine("derive:revenue", "running", QueryProgress(), 0, ""), JobLine("rollup", "waiting", QueryProgress(), 0, "")]
    )

    assert [line.split() for line in out.getvalue().splitlines()] == [["derive:revenue", "running"], ["rollup", "waiting"]]
    assert len({line.index(word) for line, word in zip(out.getvalue().splitlines(), ("running", "waiting"), strict=True)}) == 1


def test_line_shows_an_overdue_report() -> None:
    assert JobLine("archive", "running", QueryProgress(), 0, "", 95.4).text().endswith("no report for 95 s")
