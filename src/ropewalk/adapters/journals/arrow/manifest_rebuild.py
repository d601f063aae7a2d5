"""Rebuilds the manifest from the journal's files when neither of its two copies can be read.

Invariant: it claims no more than the files show, and marks the journal as incomplete: every stream begins a new epoch.
"""

import secrets
from pathlib import Path

from ropewalk.adapters.journals.arrow.commit_log import CommittedEnds, read_commits
from ropewalk.adapters.journals.arrow.inspection import named_by_its_opening
from ropewalk.adapters.journals.arrow.manifest import GenerationRecord, Manifest
from ropewalk.adapters.journals.arrow.segment import scan
from ropewalk.adapters.journals.arrow.segment_files import Promised, listing
from ropewalk.model.journal import GENERATION_BITS


def rebuilt(directory: Path) -> Manifest:
    """A shard whose directory is gone is still listed in the commit log."""
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
