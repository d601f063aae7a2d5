"""The rows of the journal as people read them: a list for the terminal, and the reference page.

Nothing here knows a column by name; all of it is drawn from the declarations in `model.journal`.
"""

from typing import get_args

import msgspec

from ropewalk.model.journal import COLUMNS, GENERATION_BITS, Column, RowKind, ShardMark, ShardSpan

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
