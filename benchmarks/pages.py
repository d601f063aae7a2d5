"""`python -m benchmarks.pages`: writes the figures of the last full run into docs/topics/performance.md, and five of them into
README.md.

A row shows one figure, or two of the same unit beside each other.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.__main__ import LATEST
from benchmarks.report import Figure, Run

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)


class Row(Struct, frozen=True):
    """One row of a table.

    Args:
        keys: one figure, or two that `names` tells apart.
        floor: a description of the floor, if the table's head has none. None if there is no meaningful floor.
    """

    text: str
    keys: tuple[str, ...]
    floor: str | None = ""
    names: tuple[str, ...] = ("",)


class Table(Struct, frozen=True):
    about: str
    floor: str
    rows: tuple[Row, ...]


PERCENTILES = ("p50 ", "p99 ")

TABLES = (
    Table(
        "live",
        "a bare loop of `send()` with the same bytes",
        (
            Row("one stream to 1,000 subscribers, messages one by one", ("a",)),
            Row("the same, published in batches of 10", ("b10",)),
            Row("the same, published in batches of 50", ("b50",)),
            Row("memory of an idle, subscribed connection, at 10,000", ("c",), None),
            Row("publish to the last of 1,000 subscribers, 50 messages/s", ("d50", "d99"), names=PERCENTILES),
            Row("5,000 connections cut; until all are resumed, with all they missed", ("e",), "connecting only"),
            Row("processor time of an HTTP publish to one subscriber", ("q",), "a bare parser on the same loop"),
            Row(
                "processor time of connecting and subscribing with history, 5,000 at once", ("s",), "the bare WebSocket library"
            ),
        ),
    ),
    Table(
        "push and subscribe over TCP",
        "on the same cores",
        (
            Row("one message to one subscriber and back", ("te50", "te99"), "an echo of the same bytes", PERCENTILES),
            Row("the same across two workers, the load on a core of its own, p50", ("tx50",), "an echo of the same bytes"),
            Row("the same with all four processes on one core, p50", ("txs",), "an echo of the same bytes"),
            Row("Python clients over TCP at both ends, batches of 100", ("tcn",), "nats-server with nats-py"),
            Row("the same on a stream with history", ("tch",), "without history"),
            Row("64 producers with a key each, runs of 10", ("ti10",), "a relay that reads nothing"),
            Row("one stream to 1,000 subscribers, one by one", ("to1",), "over WebSocket"),
            Row("the same in batches of 100", ("to100",), "over WebSocket"),
            Row("to nobody, runs of 1", ("tn1",), "to one subscriber"),
            Row("to nobody, runs of 10", ("tn10",), "to one subscriber"),
            Row("memory after 1,000,000 topics that came and went", ("tm",), "before"),
        ),
    ),
    Table(
        "two workers",
        "one process",
        (
            Row("one stream to 1,000 subscribers, processor time of a delivery, all processes", ("wc",)),
            Row("the same, deliveries while the load shares the two cores", ("wr",)),
            Row("publish to the last of 20 subscribers on both workers, p50: what a second worker adds", ("wl",)),
        ),
    ),
    Table(
        "more than one node",
        "a bare client of the same engine",
        (
            Row("Redis, 256 publishers at one stream", ("nr1",), "`XADD` and `PUBLISH`"),
            Row("NATS, 64 publishers at one stream", ("nn1",), "`js.publish` with 64 in flight"),
            Row("publish → deliver at another node with Redis, p50", ("or",)),
            Row("publish → deliver at another node with NATS, p50", ("on",)),
        ),
    ),
    Table(
        "journal and Spark",
        "",
        (
            Row("publish with `--durability journal`, one by one", ("fj1",), "durability `memory`"),
            Row("publish with `--durability fsync`, one by one", ("ff1",), "durability `memory`"),
            Row("journal → Parquet, 1 M rows of 200 bytes in one batch", ("g",), "Spark's own Parquet source"),
            Row("journal → archive, 1 M rows", ("h",), "Spark's own Parquet sink"),
            Row(
                "DataFrame → streams, one transaction",
                ("i",),
                "a loop that posts the same rows, without Spark and transaction",
            ),
            Row("publish → queryable in the archive, p50", ("j",), "a file until Spark's own Parquet sink names it"),
            Row("100 cold messages out of 10 M rows, p50", ("k10",), "pyarrow reading one row group"),
            Row("a row added to the archive while it is compacted in 32 rounds", ("mx",), "in 8 rounds"),
            Row("publish → deliver while archiving, p99", ("l99",), "without"),
        ),
    ),
)


SHORT = ("a", "b10", "c", "q", "tcn")
"""The figures of the README."""


def short_table(run: Run) -> str:
    """The figures of the README, each with its floor named."""
    rows = [
        Row(row.text, row.keys, None if row.floor is None else row.floor or table.floor)
        for table in TABLES
        for row in table.rows
        if row.keys[0] in SHORT
    ]
    return _table(Table(f"on {run.machine.cores} cores", "", tuple(rows)), {figure.key: figure for figure in run.figures})


def full_tables(run: Run) -> str:
    """The figures of docs/topics/performance.md."""
    figures = {figure.key: figure for figure in run.figures}
    minutes = round(run.seconds / 60)
    text = [
        f"The last full run of `make bench`, on {run.machine.cores} cores of which other processes used {run.other_cores:.2f}"
        f" ({minutes} minutes); every round is in `benchmarks/results/latest.json`.\n"
        "Each figure stands beside a floor of the same run.\n"
    ]
    text += [_table(table, figures) for table in TABLES]
    missed = [f"{_row_title(figure.key)} ({figure.ratio:.2f})" for figure in run.figures if figure.holds is False]
    barred = sum(figure.bar is not None for figure in run.figures)
    outcome = "all of them hold in this run" if not missed else f"these missed theirs in this run: {'; '.join(missed)}"
    text.append(f"{barred} figures have a bar; {outcome}.\n")
    return "\n".join(text)


def _row_title(key: str) -> str:
    return next((row.text for table in TABLES for row in table.rows if key in row.keys), key)


def _table(table: Table, figures: Mapping[str, Figure]) -> str:
    floor = f"floor: {table.floor}" if table.floor else "floor"
    lines = [f"| {table.about} | measured | {floor} | ratio |", "|---|---|---|---|"]
    for row in table.rows:
        found = [figures[key] for key in row.keys]
        measured = ", ".join(f"{name}{shown(each.value, each.unit)}" for name, each in zip(row.names, found, strict=True))
        beside = "" if row.floor is None else ", ".join(shown(each.floor, each.unit) for each in found)
        ratio = "" if row.floor is None else ", ".join(f"{each.ratio:.2f}" for each in found)
        lines.append(f"| {row.text} | {measured} | {beside}{f', {row.floor}' if row.floor else ''} | {ratio} |")
    return "\n".join(lines) + "\n"


def shown(value: float, unit: str) -> str:
    """Rounded to three figures."""
    text = f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {unit}"


PAGES = {ROOT / "README.md": short_table, ROOT / "docs" / "topics" / "performance.md": full_tables}


def filled(page: Path, run: Run) -> str:
    """The page with the figures of this run."""
    return BLOCK.sub(lambda found: f"{found[1]}{PAGES[page](run)}\n{found[2]}", page.read_text())


def main() -> int:
    run = msgspec.json.decode(LATEST.read_bytes(), type=Run)
    for page in PAGES:
        page.write_text(filled(page, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
