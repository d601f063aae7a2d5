"""Range reads of the archive against a plain list: random streams, epochs, batches, row groups, with and without compaction."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.adapters.archives.delta import DeltaArchive
from ropewalk.model.history import ColdPiece, HistoryRange
from ropewalk.model.messages import Registered
from ropewalk.pipeline.archive import compact
from tests.archive_writer import Scribe, message

STREAMS = ("", "a", "a\x00", "b/ä", "b", "\U0010fffe")
EPOCHS = ("e", "f")


class Layout(NamedTuple):
    batches: list[list[tuple[str, str]]]
    row_group: int
    shards: int
    compacted: bool


class Query(NamedTuple):
    stream: str
    epoch: str
    first: int
    span: int
    limit: int
    since: float


layouts = st.builds(
    Layout,
    st.lists(st.lists(st.tuples(st.sampled_from(STREAMS), st.sampled_from(EPOCHS)), max_size=40), max_size=5),
    st.integers(1, 9),
    st.integers(1, 2),
    st.booleans(),
)
queries = st.builds(
    Query,
    st.sampled_from(STREAMS),
    st.sampled_from(EPOCHS),
    st.integers(0, 30),
    st.integers(0, 40),
    st.integers(1, 20),
    st.sampled_from((0.0, 0.0, 3.0, 40.0, 90.0)),
)


@given(layouts, st.lists(queries, min_size=1, max_size=8))
def test_range_read_equals_a_scan_of_all_messages(layout: Layout, wanted: list[Query]) -> None:
    with TemporaryDirectory() as home:
        everything = write_archive(Path(home) / "archive", layout)
        answers = asyncio.run(read(Path(home) / "archive", layout.shards, wanted))
    for query, answer in zip(wanted, answers, strict=True):
        assert answer == naive(everything, query)


def write_archive(root: Path, layout: Layout) -> list[Registered]:
    """Write the archive. Offsets of each stream and epoch are dense; messages are a second apart."""
    scribe = Scribe(root, layout.shards, layout.row_group)
    everything: list[Registered] = []
    for batch in layout.batches:
        start = len(everything)
        for stream, epoch in batch:
            offset = 1 + sum((each.stream, each.epoch) == (stream, epoch) for each in everything)
            everything.append(message(stream, offset, epoch, second=len(everything)))
        scribe.archive(everything[start:], joined=[("a", "sid")])
    if layout.compacted:
        compact(str(root))
    return everything


async def read(root: Path, shards: int, wanted: list[Query]) -> list[ColdPiece]:
    archive = DeltaArchive(str(root), shards, lambda: 0.0, refresh=2.0)
    try:
        return [
            await archive.read(
                each.stream,
                HistoryRange(each.stream, each.epoch, each.first, each.first + each.span, each.limit, moment(each.since)),
            )
            for each in wanted
        ]
    finally:
        await archive.stop()


def naive(everything: list[Registered], query: Query) -> ColdPiece:
    last = query.first + query.span
    found = [
        each
        for each in everything
        if (each.stream, each.epoch) == (query.stream, query.epoch)
        and query.first <= each.offset <= last
        and each.timestamp >= moment(query.since)
    ]
    return ColdPiece(tuple(found[: query.limit]), more=len(found) > query.limit)


def moment(second: float) -> float:
    return message("", 0, second=second).timestamp if second else 0.0
