"""Reads a whole journal without changing anything, for verification, repair and backup.

Invariant: a server may write meanwhile. Everything committed before the survey began is covered; later rows are not.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from ropewalk.adapters.journals.arrow.commit_log import CommittedEnds
from ropewalk.adapters.journals.arrow.frames import Frame
from ropewalk.adapters.journals.arrow.inspection import Chain, InspectedGeneration, Scans, inspect
from ropewalk.adapters.journals.arrow.manifest import Manifest, load
from ropewalk.adapters.journals.arrow.manifest_rebuild import rebuilt
from ropewalk.adapters.journals.arrow.recovery import begun, chains_of, committed_ends_of, still_recorded
from ropewalk.adapters.journals.arrow.segment import Segment
from ropewalk.adapters.journals.arrow.state import load_state
from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.journal import GENERATION_BITS

Progress = Callable[[int, int], None]
"""Called with the bytes that were read so far and all that are to be read."""

ATTEMPTS = 10
"""Retention may take files away while they are looked at; then it is looked again."""


class Survey(Struct, frozen=True):
    """`recorded`: the record could be read; else `manifest` was made from the files. `generations` are by shard, the oldest
    first."""

    directory: Path
    manifest: Manifest
    recorded: bool
    committed: CommittedEnds
    generations: list[list[InspectedGeneration]]


def survey(data_dir: Path, progress: Progress) -> Survey:
    """Raises UserMistake where there is no journal, or one of a newer format."""
    directory = data_dir / "journal"
    if not directory.is_dir() or (load(directory) is None and not begun(directory)):
        raise UserMistake(f"there is no journal in {data_dir}")
    for _ in range(ATTEMPTS):
        try:
            return _survey(directory, progress)
        except FileNotFoundError:
            continue
    raise Unavailable(f"the files of the journal in {data_dir} change faster than they can be read")


def _survey(directory: Path, progress: Progress) -> Survey:
    recorded = load(directory)
    manifest = recorded or rebuilt(directory)
    committed = committed_ends_of(directory, manifest)
    chains = [chains_of(directory, manifest, committed, shard) for shard in range(manifest.shards)]
    if recorded is not None and not still_recorded(directory, recorded):
        raise FileNotFoundError  # else what retention removed just now would be taken for a hole
    scans = _ToldScans(chains, progress)
    generations = [[inspect(chain, 0, scans) for chain in of_shard] for of_shard in chains]
    return Survey(directory, manifest, recorded is not None, committed, generations)


def stateless(generation: InspectedGeneration) -> bool:
    """Whether the state of the producers and quiet streams of a generation in use is lost: older rows are gone, and no state
    that can be read tells of them."""
    segments = generation.segments
    if not segments or segments[0].first == generation.chain.record.number << GENERATION_BITS:
        return False
    return all(load_state(segment.path, segment.shard, segment.first) is None for segment in segments)


class _ToldScans(Scans):
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
