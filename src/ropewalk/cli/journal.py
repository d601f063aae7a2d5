"""`ropewalk journal`: verifies a journal, repairs it from an archive, backs it up, lists its columns.

The defaults of the journal's and the archive's directory are in the server's settings.
"""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ropewalk.app.journal import back_up_journal, repair_journal, verify_journal
from ropewalk.app.settings import load
from ropewalk.cli.output import ProgressLine
from ropewalk.model.errors import Unavailable, UserMistake

if TYPE_CHECKING:
    from ropewalk.adapters.journals.arrow.maintenance import JournalReport

from typing import get_args

from ropewalk.model.journal import COLUMNS, GENERATION_BITS, Column, RowKind, ShardMark, ShardSpan

SUMMARY = "verify, repair or back up the journal of a server, or list its columns"
SHOWN_HOLES = 50
STATE_LOST = "the state of producers, idle streams and sessions is lost, because no archive contains it; shards"
STATE_MEANS = (
    "All remaining rows are readable. The next start rebuilds the state from them: streams without a row begin a new epoch, "
    "sessions without one cannot be resumed, and repeated messages of producers without one are published again"
)


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    if wanted.action == "columns":
        print(as_markdown() if wanted.format == "markdown" else as_table(), end="")
        return 0
    settings = load([], os.environ)
    data_dir = Path(wanted.directory or settings.journal.data_dir)
    if not str(wanted.directory or settings.journal.data_dir):
        raise UserMistake("pass the data directory, or set ROPEWALK_DATA_DIR")
    try:
        match wanted.action:
            case "verify":
                return _verify(data_dir, wanted.format)
            case "repair":
                return _repair(data_dir, wanted.archive or settings.archive.archive_dir)
            case _:
                return _back_up(data_dir, Path(wanted.to) if wanted.to else _dated(data_dir))
    except OSError as error:
        raise Unavailable(f"the files of the journal: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk journal", description=SUMMARY, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    verify = actions.add_parser("verify", help="check every byte and list losses; changes nothing", allow_abbrev=False)
    verify.add_argument("--format", choices=("table", "json"), default="table")
    repair = actions.add_parser("repair", help="fill holes from the archive; the server must be stopped", allow_abbrev=False)
    repair.add_argument("--archive", metavar="ARCHIVE_DIR", help="the archive (default: the server's setting)")
    backup = actions.add_parser("backup", help="make a consistent copy; the server may run", allow_abbrev=False)
    backup.add_argument("--to", metavar="DEST", help="the copy, a new directory (default: DIR.backup-TIME)")
    columns = actions.add_parser("columns", help="list the columns of its rows", allow_abbrev=False)
    columns.add_argument("--format", choices=("table", "markdown"), default="table")
    for each in (verify, repair, backup):
        each.add_argument("directory", metavar="DIR", nargs="?", help="the server's data_dir (default: its setting)")
    return parser


# --- verify ----------------------------------------------------------------------------------------------------------


def _verify(data_dir: Path, format: str) -> int:
    with _progress("verified") as progress:
        report = verify_journal(data_dir, progress)
    if format == "json":
        print(msgspec.json.encode({**msgspec.structs.asdict(report), "whole": report.whole}).decode())
    else:
        print("\n".join(_table(report, data_dir)))
    return 0 if report.whole else 1


def _table(report: "JournalReport", data_dir: Path) -> list[str]:
    state = "a server is running" if report.running else "no server is running"
    lines = [f"{report.path}: format {report.format}, {len(report.shards)} shards, {state}", ""]
    lines += [f"{'shard':>5} {'generations':>12} {'segments':>9} {'rows':>12} {'bytes':>15} {'rows lost':>10}"]
    for shard in report.shards:
        files = f"{shard.shard:>5} {shard.generations:>12} {shard.segments:>9}"
        lines.append(f"{files} {shard.rows:>12} {shard.bytes:>15} {shard.hole_rows:>10}")
    lines.append("")
    for hole in report.holes[:SHOWN_HOLES]:
        where = f"in {hole.file}" if hole.file else "of a missing file"
        lines.append(f"hole: shard {hole.shard}, epoch {hole.epoch}, positions {hole.first} to {hole.end - 1}, {where}")
    if len(report.holes) > SHOWN_HOLES:
        lines.append(f"and {len(report.holes) - SHOWN_HOLES} more holes, see --format json")
    lines += [f"problem: {problem}" for problem in report.problems]
    lines += [f"note: {remark}" for remark in report.remarks]
    if report.holes:
        lost = sum(shard.hole_rows for shard in report.shards)
        lines.append(f"rows lost: {lost}; restore those in the archive with `ropewalk journal repair {data_dir}`")
    return [*lines, "damaged" if not report.whole else "no damage found"]


# --- repair and backup -----------------------------------------------------------------------------------------------


def _repair(data_dir: Path, archive_dir: str) -> int:
    with _progress("read") as progress:
        repaired = repair_journal(data_dir, archive_dir, progress)
    if repaired.rebuilt:
        print("the journal's metadata was rebuilt; every stream begins a new epoch at the next start")
    for path in repaired.kept:
        print(f"the damaged file is kept as {path}")
    if repaired.headers:
        print(f"files with a repaired Arrow schema: {repaired.headers}")
    if repaired.filled_rows:
        print(f"rows restored from {archive_dir}: {repaired.filled_rows}")
    for fault in repaired.damaged:
        print(f"not used: {archive_dir}/{fault}")
    if repaired.missing_rows:
        lacking = "has them in damaged files or not at all" if repaired.damaged else "does not have them"
        where = f"{archive_dir} {lacking}" if archive_dir else "pass an archive with --archive"
        print(f"rows still lost: {repaired.missing_rows} ({where})")
    if repaired.stateless:
        print(f"{STATE_LOST}: {', '.join(map(str, repaired.stateless))}. {STATE_MEANS}")
    if repaired.missing_rows or repaired.stateless:
        return 1
    if not (repaired.filled_rows or repaired.rebuilt or repaired.headers):
        print("there is nothing to repair")
    return 0


def _back_up(data_dir: Path, destination: Path) -> int:
    with _progress("copied") as progress:
        copied = back_up_journal(data_dir, destination, progress)
    print(f"copied to {destination}: {copied.rows} rows of {copied.shards} shards, {copied.bytes} bytes")
    if copied.hole_rows:
        warning = f"rows lost in the journal itself: {copied.hole_rows}; see `ropewalk journal verify {data_dir}`"
        print(warning, file=sys.stderr)
    return 0


def _dated(data_dir: Path) -> Path:
    return data_dir.with_name(f"{data_dir.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")


def _progress(verb: str) -> ProgressLine:
    return ProgressLine(lambda done, total: f"{verb} {done >> 20} of {total >> 20} MiB")


PAGE = f"""\
# Rows of the journal

<!-- Drawn from the code by `ropewalk journal columns --format markdown`. Change it there. -->

What the [journal](journal.md) and the [archive](../topics/archive.md) hold of each row, and how places in the journal are
written. The [Spark format](spark.md) has the same columns.

## Columns

In this order, in segments, in what the server answers to readers, and in files of the archive. Every column is nullable in the
Arrow schema. Those marked *always* have a value in every row that the server writes; the others are null in rows that have
nothing for them.

| column | Arrow type | | meaning |
|---|---|---|---|
{{columns}}
A [body of rows](journal.md#stage) to publish may have {{sent}}.

## Events

The column `event`. Every row that is not a publication tells of a session or of a member. Readers pass over events that they do
not know.

| `event` | when |
|---|---|
{{events}}
## Generations

Positions of a shard are dense. A generation is one unbroken run of them; a new one begins after rows were lost by damage. The
nth generation of a shard begins at position n × 2^{GENERATION_BITS}, counted from 0, so that a position tells its generation.
Its name is called `epoch`.

A span is a range of positions of one generation that can be read. [`GET /journal`](journal.md#list-spans) lists them.

| field | type | meaning |
|---|---|---|
{{spans}}
## Marks

How far a reader has come in one shard: in [offsets of consumers](journal.md#consumers), and in
[offsets of Spark](spark.md#offsets), by the number of the shard.

| field | type | meaning |
|---|---|---|
{{marks}}"""


def as_table() -> str:
    return "".join(f"{column.name:<16}{column.type:<24}{_always(column)}".rstrip() + "\n" for column in COLUMNS)


def as_markdown() -> str:
    columns = "".join(f"| `{each.name}` | {each.type} | {_always(each)} | {each.meaning} |\n" for each in COLUMNS)
    events = "".join(f"| `{kind}` | {kind.meaning} |\n" for kind in RowKind)
    sent = ", ".join(f"`{each.name}`" for each in COLUMNS if each.sent)
    return PAGE.format(columns=columns, sent=sent, events=events, spans=_fields(ShardSpan), marks=_fields(ShardMark))


def _always(column: Column) -> str:
    return "always" if column.required else ""


def _fields(record: type[msgspec.Struct]) -> str:
    """The fields as they are encoded, with the descriptions that they are annotated with."""
    lines = []
    for field in msgspec.structs.fields(record):
        kind, meta = get_args(field.type)
        lines.append(f"| `{field.encode_name}` | {'string' if kind is str else 'number'} | {meta.description} |\n")
    return "".join(lines)
