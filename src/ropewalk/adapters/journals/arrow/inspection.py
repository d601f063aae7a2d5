"""Reads the files of a journal without changing anything: for recovery at startup, verification, repair and backup.

Invariant: segments within the recovery horizon are read completely. For older ones the index is trusted; they are checked when
their rows are read. A server may write meanwhile: the survey covers everything committed before it began, and no later rows.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import OPENING, Frame, frame_at, frame_opening
from ropewalk.adapters.journals.arrow.records import CommittedEnds, GenerationRecord, Manifest, load, read_commits
from ropewalk.adapters.journals.arrow.segment import Hole, Listing, Promised, Segment, listing, load_index, mapped, scan
from ropewalk.adapters.journals.arrow.state import load_state
from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.journal import GENERATION_BITS

ALWAYS_READ = 2
"""Last segments of the current generation that are always read: the last group is in them."""


class Chain(Struct, frozen=True):
    """The files of a generation.

    Attributes:
        paths: its segments, in order.
        left_over: segments that retention should have removed.
        promised: all positions below it were acknowledged.
        ended: no position from `promised` on was acknowledged.
        in_use: it is the current generation of the shard.
        strays: other files in the directory of the shard; listed for the current generation.
    """

    shard: int
    record: GenerationRecord
    paths: Sequence[Path]
    left_over: Sequence[Path]
    promised: int
    ended: bool
    in_use: bool
    strays: Sequence[Path] = ()

    def limit(self, number: int) -> tuple[int, bool]:
        """The end of a file's positions, and whether that end is certain. A segment ends where the next one begins."""
        if number + 1 < len(self.paths):
            return int(self.paths[number + 1].stem), True
        return self.promised, self.ended


class InspectedGeneration(Struct):
    """A generation as found on disk.

    Attributes:
        read_from: segments from this number on were read completely.
        tail: the batches of the last group.
        spare: bytes after the last complete batch.
        unborn: last files without acknowledged rows that cannot be continued.
        lost: holes that are new, or in the segments that were read.
    """

    chain: Chain
    segments: list[Segment] = []
    read_from: int = 0
    tail: list[Frame] = []
    spare: int = 0
    unborn: list[Path] = []
    lost: list[Hole] = []

    @property
    def missing_head(self) -> list[Hole]:
        return missing_head(self.chain)

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else max(self.chain.record.first, self.chain.promised)


def missing_head(chain: Chain) -> list[Hole]:
    """Positions missing before the first file, or all positions if every file is missing. Rows removed by retention do not
    count: the manifest, which is written before files are removed, has the oldest kept position."""
    first = chain.record.first
    end = int(chain.paths[0].stem) if chain.paths else chain.promised
    return [(first, end)] if end > first else []


class Scans:
    """Caches complete reads of segments, so that none is read twice."""

    def __init__(self) -> None:
        self._done: dict[Path, tuple[Segment, list[Frame]]] = {}

    def scan(self, chain: Chain, number: int) -> tuple[Segment, list[Frame]]:
        path = chain.paths[number]
        if path not in self._done:
            self._done[path] = scan(path, chain.shard, int(path.stem), *chain.limit(number))
        return self._done[path]

    def newest(self, shards: list[list[Chain]]) -> int:
        """The time of the newest row in the segments that are always read."""
        last = (
            self.scan(chain, number)[0].newest
            for chains in shards
            for chain in chains
            for number in range(max(0, len(chain.paths) - ALWAYS_READ), len(chain.paths))
        )
        return max(last, default=0)


def inspect(chain: Chain, oldest: int, scans: Scans) -> InspectedGeneration:
    """Inspect all segments of a generation, in order."""
    found = InspectedGeneration(chain, [], _read_from(chain, oldest))
    known = chain.record.holes
    found.lost = found.missing_head if chain.in_use else list(_unknown(found.missing_head, known))
    for number, path in enumerate(chain.paths):
        segment = _indexed(chain, number) if number < found.read_from else None
        if segment is None:
            segment, tail = scans.scan(chain, number)
            found.tail = tail or found.tail
        found.spare = path.stat().st_size - segment.size
        if not segment.size and not segment.holes:
            found.unborn = [path]
            break
        found.segments.append(segment)
        judged = segment.holes if chain.in_use and number >= found.read_from else list(_unknown(segment.holes, known))
        found.lost = [*found.lost, *judged]
    return found


def _indexed(chain: Chain, number: int) -> Segment | None:
    """The segment from its index, with its known holes; None if the index is invalid."""
    path = chain.paths[number]
    segment = load_index(path, chain.shard, int(path.stem))
    limit, ended = chain.limit(number)
    if segment is None or (ended and segment.end > limit):
        return None
    segment.holes = [
        (max(first, segment.first), min(end, segment.end))
        for first, end in chain.record.holes
        if first < segment.end and end > segment.first
    ]
    if segment.end < limit:
        segment.skip(limit, segment.size)
    return segment


def _unknown(holes: Sequence[Hole], known: Sequence[Hole]) -> Iterator[Hole]:
    return (hole for hole in holes if not any(first <= hole[0] and hole[1] <= end for first, end in known))


def _read_from(chain: Chain, oldest: int) -> int:
    """The number of the first segment to read: earlier ones have older rows only, and the state beside it includes them.

    The state of a former generation is not needed. If all its rows are older, none is read, and damage is found by readers.
    """
    paths, shard = chain.paths, chain.shard
    indexed = [load_index(path, shard, int(path.stem)) for path in paths]
    number = max(0, len(paths) - (ALWAYS_READ if chain.in_use else 0))
    while number > 0:
        old = all(segment is not None and segment.newest < oldest for segment in indexed[:number])
        if old and (not chain.in_use or load_state(paths[number], shard, int(paths[number].stem)) is not None):
            break
        number -= 1
    return number


def named_by_its_opening(paths: Sequence[Path]) -> str:
    """The epoch stored in the segments; "" if none can be read."""
    for path in paths:
        with mapped(path) as data:
            opening = frame_at(data, 0)
            if opening is not None and opening.magic == OPENING:
                schema = pa.ipc.read_schema(pa.py_buffer(bytes(data[: opening.length])))
                return str(schema.metadata[b"ropewalk.epoch"], "utf-8")
    return ""


# --- files matched with the manifest and the commit log --------------------------------------------------------------


def require_manifest(directory: Path) -> Manifest | None:
    """The manifest; None for a new journal. Raises UserMistake if it exists and cannot be read."""
    manifest = load(directory)
    if manifest is None and begun(directory):
        raise UserMistake(
            f"the record of the journal in {directory} cannot be read: journal.json and journal.copy.json are missing or "
            "damaged. Put one of the two files back, or rebuild the record from the rows with "
            f"`ropewalk journal repair {directory.parent}`: then every stream begins a new epoch"
        )
    return manifest


def still_recorded(directory: Path, manifest: Manifest) -> bool:
    """Whether the manifest is unchanged since the files were listed. The server writes it before it removes files."""
    now = load(directory)
    return now is not None and now.revision == manifest.revision


def begun(directory: Path) -> bool:
    """Whether the journal has rows. An interrupted first start leaves only segment headers."""
    segments = [path for shard in directory.glob("shard=*") for path in shard.glob("*.arrow")]
    return any(directory.glob("commits-*.log")) or any(map(_more_than_an_opening, segments))


def _more_than_an_opening(path: Path) -> bool:
    with mapped(path) as data:
        opening = frame_at(data, 0)
        return len(data) > (opening.length if opening else len(frame_opening(0, "", 0)))


def read_committed_ends(directory: Path, manifest: Manifest | None) -> CommittedEnds:
    if manifest is None:
        return CommittedEnds({}, 0, True)
    recorded = {shard: generations[-1].end for shard, generations in enumerate(manifest.generations)}
    if manifest.clean:
        return CommittedEnds(recorded, manifest.group, True)
    seen = read_commits(directory, manifest.shards)
    ends = {shard: max(end, seen.ends.get(shard, 0)) for shard, end in recorded.items()}
    return CommittedEnds(ends, max(seen.group, manifest.group), seen.whole)


def list_chains(
    directory: Path, manifest: Manifest | None, committed: CommittedEnds, shard: int, epoch: str = ""
) -> list[Chain]:
    """The generations of a shard, from the manifest and begun since. The last one is current. A new shard begins with
    `epoch`."""
    records = list(manifest.generations[shard]) if manifest else []
    ended = {record.number for record in records[:-1]}
    ends = {record.number: _promised(shard, record, committed) for record in records}
    files = listing(directory, shard, Promised(ends, frozenset(ends if committed.whole else ended)))
    paths = files.segments
    for number in sorted(set(paths) - {record.number for record in records}):
        first = int(paths[number][0].stem)
        records.append(GenerationRecord(named_by_its_opening(paths[number]) or epoch, number, first, first))
    records = sorted(records, key=lambda record: record.number) or [GenerationRecord(epoch, 0, 0, 0)]
    return [_chain(shard, record, files, committed, record.number in ended, record is records[-1]) for record in records]


def _chain(shard: int, record: GenerationRecord, files: Listing, committed: CommittedEnds, ended: bool, in_use: bool) -> Chain:
    paths = files.segments.get(record.number, [])
    left_over = [path for path in paths if int(path.stem) < record.first]
    kept = paths[len(left_over) :]
    # A segment is begun only after everything before it was written.
    begun = max((int(path.stem) for path in kept), default=0)
    promised = max(_promised(shard, record, committed), begun)
    return Chain(shard, record, kept, left_over, promised, ended, in_use, files.strays if in_use else ())


def _promised(shard: int, record: GenerationRecord, committed: CommittedEnds) -> int:
    seen = committed.ends.get(shard, 0)
    return max(record.end, seen) if seen >> GENERATION_BITS == record.number else record.end


# --- a manifest from the files, when neither of its copies can be read -----------------------------------------------


def rebuilt(directory: Path) -> Manifest:
    """Claims no more than the files show, and is marked as incomplete: every stream begins a new epoch. A shard whose directory
    is gone is still listed in the commit log."""
    directories = [path.name.removeprefix("shard=") for path in directory.glob("shard=*")]
    seen = read_commits(directory, 0)
    shards = 1 + max([*(int(name) for name in directories if name.isdecimal()), *seen.ends], default=0)
    generations = [_generations(directory, shard, seen) for shard in range(shards)]
    return Manifest(1, shards, "journal", "", clean=False, group=seen.group, generations=generations, incomplete=True)


def _generations(directory: Path, shard: int, seen: CommittedEnds) -> list[GenerationRecord]:
    committed_end = seen.ends.get(shard, 0)
    ends = {committed_end >> GENERATION_BITS: committed_end}
    exact = frozenset(ends if seen.whole and shard in seen.ends else ())
    found = listing(directory, shard, Promised(ends, exact)).segments
    number = max([*found, committed_end >> GENERATION_BITS])
    found.setdefault(number, [])
    generations = []
    for generation, paths in sorted(found.items()):
        beginning = generation << GENERATION_BITS
        first = int(paths[0].stem) if paths else max(beginning, committed_end)
        end = max(first, _end(shard, paths[-1]) if paths else first, committed_end if generation == number else 0)
        generations.append(GenerationRecord(named_by_its_opening(paths) or secrets.token_urlsafe(6), generation, first, end))
    return generations


def _end(shard: int, path: Path) -> int:
    """Where the last good batch of a generation's last segment ends."""
    first = int(path.stem)
    segment, _ = scan(path, shard, first, (first >> GENERATION_BITS) + 1 << GENERATION_BITS, ended=False)
    trailing = segment.holes and segment.holes[-1][1] == segment.end
    return segment.holes[-1][0] if trailing else segment.end


# --- the whole journal -----------------------------------------------------------------------------------------------

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the total."""

ATTEMPTS = 10
"""Retries when retention removes files during a survey."""


class Survey(Struct, frozen=True):
    """`recorded`: the manifest was read; otherwise it was rebuilt from the files. `generations` by shard, oldest first."""

    directory: Path
    manifest: Manifest
    recorded: bool
    committed: CommittedEnds
    generations: list[list[InspectedGeneration]]


def survey(data_dir: Path, progress: Progress) -> Survey:
    """Raises UserMistake without a journal, or for a newer format."""
    directory = data_dir / "journal"
    if not directory.is_dir() or (load(directory) is None and not begun(directory)):
        raise UserMistake(f"no journal in {data_dir}")
    for _ in range(ATTEMPTS):
        try:
            return _survey(directory, progress)
        except FileNotFoundError:
            continue
    raise Unavailable(f"the files of the journal in {data_dir} change faster than they can be read")


def _survey(directory: Path, progress: Progress) -> Survey:
    recorded = load(directory)
    manifest = recorded or rebuilt(directory)
    committed = read_committed_ends(directory, manifest)
    chains = [list_chains(directory, manifest, committed, shard) for shard in range(manifest.shards)]
    if recorded is not None and not still_recorded(directory, recorded):
        raise FileNotFoundError  # otherwise segments just removed by retention would look like a hole
    scans = ReportingScans(chains, progress)
    generations = [[inspect(chain, 0, scans) for chain in of_shard] for of_shard in chains]
    return Survey(directory, manifest, recorded is not None, committed, generations)


def stateless(generation: InspectedGeneration) -> bool:
    """Whether the state of producers and idle streams of the current generation is lost: older rows were removed, and no
    readable state includes them."""
    segments = generation.segments
    if not segments or segments[0].first == generation.chain.record.number << GENERATION_BITS:
        return False
    return all(load_state(segment.path, segment.shard, segment.first) is None for segment in segments)


class ReportingScans(Scans):
    def __init__(self, chains: list[list[Chain]], progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._total = sum(path.stat().st_size for of_shard in chains for chain in of_shard for path in chain.paths)
        self._read = 0

    def scan(self, chain: Chain, number: int) -> tuple[Segment, list[Frame]]:
        found = super().scan(chain, number)
        self._read += found[0].size
        self._progress(self._read, max(self._total, self._read))
        return found
