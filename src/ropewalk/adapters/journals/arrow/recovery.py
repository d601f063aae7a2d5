"""From files to a journal that goes on: what is missing is told from what was never promised, and cut accordingly.

The rule it keeps: a shard that lost something that was promised, or may have, goes on under a new name of its own, at positions that
were never given, and its streams begin anew. A shard that lost nothing keeps everything.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct

from ropewalk.adapters.journals.arrow.commits import Witness, testimony
from ropewalk.adapters.journals.arrow.cutting import drop_group, set_aside
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.inspection import Found, inspect, named_by_its_opening, segments_of
from ropewalk.adapters.journals.arrow.logs import Life, ShardLog
from ropewalk.adapters.journals.arrow.manifest import LIFE_BITS, LifeRecord, Manifest, load
from ropewalk.adapters.journals.arrow.schema import MICROSECONDS, decode
from ropewalk.adapters.journals.arrow.segment import Segment, table_of
from ropewalk.adapters.journals.arrow.state import (
    EMPTY,
    load_state,
    merge,
    producers_of,
    save_state,
    tips_of,
    without_tips,
)
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import Recovered, Row, RowKind, StreamTip


class Site(Struct, frozen=True):
    """Where a journal is, and what recovery has to go by."""

    directory: Path
    shards: int
    boot_id: str
    new_epoch: Callable[[], str]
    disk: Disk


class Recovery(Struct, frozen=True):
    """What a journal goes on with. `group` is the last one that counts, `damaged` the shards that lost something."""

    logs: list[ShardLog]
    group: int
    generation: int
    archived: dict[int, int]
    damaged: int
    answer: Recovered


def recover(site: Site, horizon: float) -> Recovery:
    for shard in range(site.shards):
        (site.directory / f"shard={shard:02}").mkdir(parents=True, exist_ok=True)
    manifest = load(site.directory)
    _check_shards(site, manifest)
    oldest = round(horizon * MICROSECONDS)
    lives = [_lives(site, manifest, shard, oldest) for shard in range(site.shards)]
    current = [found[-1] for found in lives]
    witness = _witness(site, manifest)
    flaws = _flaws(site, manifest, current, witness)
    return _Settlement(site, manifest, witness, lives, flaws, oldest).settle()


def _check_shards(site: Site, manifest: Manifest | None) -> None:
    there = manifest.shards if manifest else sum(1 for _ in site.directory.glob("shard=*"))
    if there != site.shards:
        raise UserMistake(f"the journal in {site.directory} has {there} shards and cannot be opened with {site.shards}")


def _lives(site: Site, manifest: Manifest | None, shard: int, oldest: int) -> list[Found]:
    """The lives of a shard, as recorded or, without a record, as the files tell. The last one is in use."""
    paths = segments_of(site.directory, shard)
    records = list(manifest.lives[shard]) if manifest else []
    known = {record.number for record in records}
    for number in sorted(set(paths) - known):
        first = int(paths[number][0].stem)
        records.append(LifeRecord(named_by_its_opening(paths[number]) or site.new_epoch(), number, first, first))
    records = sorted(records, key=lambda record: record.number) or [LifeRecord(site.new_epoch(), 0, 0, 0)]
    return [inspect(shard, record, paths.get(record.number, []), oldest) for record in records]


def _witness(site: Site, manifest: Manifest | None) -> Witness:
    if manifest is None:
        return Witness({}, 0, False)
    recorded = {shard: lives[-1].end for shard, lives in enumerate(manifest.lives)}
    if manifest.clean:
        return Witness(recorded, manifest.group, True)
    seen = testimony(site.directory, site.shards)
    ends = {shard: max(end, seen.ends.get(shard, 0)) for shard, end in recorded.items()}
    return Witness(ends, max(seen.group, manifest.group), seen.whole)


def _flaws(site: Site, manifest: Manifest | None, current: list[Found], witness: Witness) -> list[str]:
    """Why each shard counts as damaged; "" where it does not."""
    group = max((found.tail[0].group for found in current if found.tail), default=0)
    # More than one group without a witness cannot be: it is the witness that lost something.
    believable = witness.whole and group <= witness.group + 1
    # After the machine itself went down the witness may be torn as well: it was never asked to be on disk.
    crashed = manifest is not None and manifest.boot_id != site.boot_id
    doubtful = not believable and not crashed
    if group > witness.group:
        drop_group([found for found in current if found.tail and found.tail[0].group == group])
    return [_flaw(shard, found, witness, doubtful) for shard, found in enumerate(current)]


def _flaw(shard: int, found: Found, witness: Witness, doubtful: bool) -> str:
    if found.flaw:
        return found.flaw
    if found.end < (promised := witness.ends.get(shard, 0)):
        return f"positions from {found.end} to {promised} are missing or not as they were written"
    if found.spare and doubtful:
        return f"it ends in {found.spare} bytes of which nobody knows whether they were promised"
    return ""
