"""Verifies, repairs and copies a journal's files, beside the server that writes them.

Invariant: a verification reads every byte and changes nothing.
"""

import fcntl
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ropewalk.adapters.journals.arrow.backup import JournalCopy
from ropewalk.adapters.journals.arrow.consumers import load_consumer
from ropewalk.adapters.journals.arrow.inspection import InspectedGeneration, Progress, Survey, stateless, survey
from ropewalk.adapters.journals.arrow.records import damaged_copies, stored_format
from ropewalk.adapters.journals.arrow.repair import ArchivedRows, Repaired, repair
from ropewalk.adapters.journals.arrow.segment import index_path, load_index, state_path
from ropewalk.adapters.journals.arrow.state import load_state


class ShardReport(Struct, frozen=True):
    """One shard. `generations` counts those with rows; `rows` and `bytes` count readable rows."""

    shard: int
    generations: int
    segments: int
    rows: int
    bytes: int
    hole_rows: int


class HoleReport(Struct, frozen=True):
    """Lost positions [first, end), and their file; "" if the file is missing."""

    shard: int
    epoch: str
    first: int
    end: int
    file: str


class JournalReport(Struct, frozen=True):
    """The result of a verification.

    Attributes:
        format: on disk; 0 if it cannot be read.
        holes: lost rows.
        problems: other damage that needs a repair.
        remarks: damage that the next server start fixes, and stray files.
    """

    path: str
    format: int
    running: bool
    shards: list[ShardReport]
    holes: list[HoleReport]
    problems: list[str]
    remarks: list[str]

    @property
    def whole(self) -> bool:
        return not self.holes and not self.problems


def verify(data_dir: Path, progress: Progress) -> JournalReport:
    """Raises UserMistake without a journal, or for a newer format."""
    found = survey(data_dir, progress)
    return JournalReport(
        str(found.directory),
        stored_format(found.directory) or 0,
        in_use(found.directory),
        [_shard(shard, generations) for shard, generations in enumerate(found.generations)],
        [hole for generations in found.generations for generation in generations for hole in _holes(generation)],
        [*_record(found), *_headers(found), *_consumers(found.directory)],
        _remarks(found),
    )


def in_use(directory: Path) -> bool:
    """Whether a server holds the journal's lock."""
    try:
        with (directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _holes(generation: InspectedGeneration) -> Iterator[HoleReport]:
    shard, epoch = generation.chain.shard, generation.chain.record.epoch
    for hole in generation.missing_head:
        yield HoleReport(shard, epoch, *hole, "")
    for segment in generation.segments:
        yield from (HoleReport(shard, epoch, *hole, str(segment.path)) for hole in segment.holes)


def _shard(shard: int, generations: list[InspectedGeneration]) -> ShardReport:
    segments = [segment for generation in generations for segment in generation.segments]
    return ShardReport(
        shard,
        sum(1 for generation in generations if generation.segments),
        len(segments),
        sum(segment.rows for segment in segments),
        sum(segment.size for segment in segments),
        sum(hole.end - hole.first for generation in generations for hole in _holes(generation)),
    )


def _record(found: Survey) -> list[str]:
    if not found.recorded:
        return ["the manifest cannot be read (journal.json and its copy): the server does not start"]
    return [
        f"shard {generation.chain.shard}: the state of producers and idle streams cannot be read, and older rows are removed"
        for generations in found.generations
        for generation in generations[-1:]
        if stateless(generation)
    ]


def _headers(found: Survey) -> list[str]:
    return [
        f"the Arrow schema at the beginning of shard={segment.shard:02}/{segment.path.name} is damaged: the server reads its "
        "rows, other programs cannot; `ropewalk journal repair` rewrites it"
        for generations in found.generations
        for generation in generations
        for segment in generation.segments
        if segment.headless
    ]


def _consumers(directory: Path) -> list[str]:
    return [
        f"the consumer in {path.name} cannot be read"
        for path in sorted((directory / "consumers").glob("*.json"))
        if not _readable(path)
    ]


def _readable(path: Path) -> bool:
    try:
        return load_consumer(path) is not None
    except FileNotFoundError:  # deleted meanwhile
        return True


def _remarks(found: Survey) -> list[str]:
    remarks = [f"{name} is damaged; the other copy is good" for name in damaged_copies(found.directory) if found.recorded]
    if not found.committed.whole:
        remarks.append("the commit log is damaged: incomplete rows at the end of a shard may be a loss")
    for stray in (path for generations in found.generations for generation in generations for path in generation.chain.strays):
        remarks.append(f"{stray} is a stray file: not a segment of this journal, ignored")
    for segment in (
        segment for generations in found.generations for generation in generations for segment in generation.segments
    ):
        name = f"shard={segment.shard:02}/{segment.path.name}"
        if index_path(segment.path).exists() and load_index(segment.path, segment.shard, segment.first) is None:
            remarks.append(f"the index of {name} is damaged or outdated")
        if state_path(segment.path).exists() and load_state(segment.path, segment.shard, segment.first) is None:
            remarks.append(f"the state beside {name} is damaged")
    return remarks


# --- for one data directory ------------------------------------------------------------------------------------------


class JournalFiles:
    """All methods raise UserMistake without a journal, or for a newer format."""

    def __init__(self, data_dir: Path, progress: Progress) -> None:
        self._data_dir = data_dir
        self._progress = progress

    def verify(self) -> JournalReport:
        """Changes nothing. A server may run."""
        return verify(self._data_dir, self._progress)

    def repair(self, archived: ArchivedRows | None) -> Repaired:
        """Raises UserMistake while a server runs. Without an archive no hole is filled."""
        return repair(self._data_dir, archived, self._progress)

    def copy(self, target: Path) -> JournalCopy:
        """Call its steps in order. A server may run."""
        return JournalCopy(self._data_dir / "journal", target / "journal", self._progress)
