"""The journal's record of itself, made anew from its files, for when neither of its two copies can be read.

The rule it keeps: it says no more than the files say, and that it may not be all: every stream begins a new epoch after it.
"""

import secrets
from pathlib import Path

from ropewalk.adapters.journals.arrow.commits import Witness, testimony
from ropewalk.adapters.journals.arrow.inspection import named_by_its_opening
from ropewalk.adapters.journals.arrow.listing import Promised, listing
from ropewalk.adapters.journals.arrow.manifest import LIFE_BITS, LifeRecord, Manifest
from ropewalk.adapters.journals.arrow.segment import scan


def rebuilt(directory: Path) -> Manifest:
    """A shard that is gone together with its directory is still known by the witness."""
    directories = [path.name.removeprefix("shard=") for path in directory.glob("shard=*")]
    seen = testimony(directory, 0)
    shards = 1 + max([*(int(name) for name in directories if name.isdecimal()), *seen.ends], default=0)
    lives = [_lives(directory, shard, seen) for shard in range(shards)]
    return Manifest(1, shards, "journal", "", clean=False, group=seen.group, lives=lives, incomplete=True)


def _lives(directory: Path, shard: int, seen: Witness) -> list[LifeRecord]:
    witnessed = seen.ends.get(shard, 0)
    ends = {witnessed >> LIFE_BITS: witnessed}
    exact = frozenset(ends if seen.whole and shard in seen.ends else ())
    found = listing(directory, shard, Promised(ends, exact)).segments
    number = max([*found, witnessed >> LIFE_BITS])
    found.setdefault(number, [])
    lives = []
    for life, paths in sorted(found.items()):
        beginning = life << LIFE_BITS
        first = int(paths[0].stem) if paths else max(beginning, witnessed)
        end = max(first, _end(shard, paths[-1]) if paths else first, witnessed if life == number else 0)
        lives.append(LifeRecord(named_by_its_opening(paths) or secrets.token_urlsafe(6), life, first, end))
    return lives


def _end(shard: int, path: Path) -> int:
    """Where the last good batch of a life's last segment ends."""
    first = int(path.stem)
    segment, _ = scan(path, shard, first, (first >> LIFE_BITS) + 1 << LIFE_BITS, ended=False)
    trailing = segment.holes and segment.holes[-1][1] == segment.end
    return segment.holes[-1][0] if trailing else segment.end
