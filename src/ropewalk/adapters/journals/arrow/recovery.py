"""From files to a journal that goes on: what is missing is told from what was never promised, and cut accordingly.

The rule it keeps: a shard that lost something that was promised, or may have, goes on under a new name of its own, at positions
that were never given, and its streams begin anew. A shard that lost nothing keeps everything.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import Struct

from ropewalk.adapters.journals.arrow.commits import Witness, testimony
from ropewalk.adapters.journals.arrow.cutting import drop_group
from ropewalk.adapters.journals.arrow.inspection import Found, Scans, inspect, named_by_its_opening, segments_of
from ropewalk.adapters.journals.arrow.logs import ShardLog
from ropewalk.adapters.journals.arrow.manifest import LifeRecord, Manifest, load
from ropewalk.adapters.journals.arrow.schema import MICROSECONDS, decode
from ropewalk.adapters.journals.arrow.segment import Segment, table_of
from ropewalk.adapters.journals.arrow.settling import Settled, Site, settle
from ropewalk.adapters.journals.arrow.state import producers_of, session_rows, tips_of
from ropewalk.model.journal import Recovered, Row, RowKind


class Recovery(Struct, frozen=True):
    """What a journal goes on with. `group` is the last one that counts, `damaged` the shards that lost something."""

    logs: list[ShardLog]
    group: int
    generation: int
    archived: dict[int, int]
    damaged: int
    answer: Recovered


def recover(site: Site, horizon: float) -> Recovery:
    manifest = load(site.directory)
    site = msgspec.structs.replace(site, shards=_shards(site, manifest))
    paths = [segments_of(site.directory, shard) for shard in range(site.shards)]
    scans = Scans()
    newest = scans.newest(paths)
    oldest = newest - round(min(horizon * MICROSECONDS, newest))
    lives = [_lives(site, manifest, shard, paths[shard], oldest, scans) for shard in range(site.shards)]
    current = [found[-1] for found in lives]
    witness = _witness(site, manifest)
    group = max((found.tail[0].group for found in current if found.tail), default=0)
    flaws = _flaws(site, manifest, current, witness, group)
    doubt = _doubt(site, manifest, current)
    settled = [
        settle(
            site, shard, lives[shard], flaws[shard] or doubt, bool(flaws[shard]), _promised(lives[shard][-1], shard, witness)
        )
        for shard in range(site.shards)
    ]
    return Recovery(
        [each.log for each in settled],
        max(group, witness.group),
        manifest.generation if manifest else 0,
        dict(manifest.archived) if manifest else {},
        sum(1 for flaw in flaws if flaw),
        _answer(settled, _notes(lives, flaws, doubt), oldest),
    )


def _shards(site: Site, manifest: Manifest | None) -> int:
    """A journal keeps its number of shards for ever: positions and readers go by it."""
    shards = manifest.shards if manifest else sum(1 for _ in site.directory.glob("shard=*")) or site.shards
    for shard in range(shards):
        (site.directory / f"shard={shard:02}").mkdir(exist_ok=True)
    return shards


def _lives(
    site: Site, manifest: Manifest | None, shard: int, paths: dict[int, list[Path]], oldest: int, scans: Scans
) -> list[Found]:
    """The lives of a shard, as recorded or, without a record, as the files tell. The last one is in use."""
    records = list(manifest.lives[shard]) if manifest else []
    known = {record.number for record in records}
    for number in sorted(set(paths) - known):
        first = int(paths[number][0].stem)
        records.append(LifeRecord(named_by_its_opening(paths[number]) or site.new_epoch(), number, first, first))
    records = sorted(records, key=lambda record: record.number) or [LifeRecord(site.new_epoch(), 0, 0, 0)]
    return [
        inspect(shard, record, paths.get(record.number, []), oldest, scans, in_use=record is records[-1]) for record in records
    ]


def _witness(site: Site, manifest: Manifest | None) -> Witness:
    if manifest is None:
        return Witness({}, 0, False)
    recorded = {shard: lives[-1].end for shard, lives in enumerate(manifest.lives)}
    if manifest.clean:
        return Witness(recorded, manifest.group, True)
    seen = testimony(site.directory, site.shards)
    ends = {shard: max(end, seen.ends.get(shard, 0)) for shard, end in recorded.items()}
    return Witness(ends, max(seen.group, manifest.group), seen.whole)


def _doubt(site: Site, manifest: Manifest | None, current: list[Found]) -> str:
    """Why every stream begins anew, "" when none has to: positions may have been given of which nothing is here."""
    if manifest is None:
        return "the record of the journal itself is lost" if any(found.segments for found in current) else ""
    if manifest.clean or manifest.durability == "fsync":
        return ""
    if manifest.durability == "memory":
        return "the server did not stop in order, and its durability was memory"
    if manifest.boot_id != site.boot_id or not site.boot_id:
        return "the machine went down, and the durability was journal"
    return ""


def _flaws(site: Site, manifest: Manifest | None, current: list[Found], witness: Witness, group: int) -> list[str]:
    """Why each shard counts as damaged; "" where it does not."""
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


def _promised(found: Found, shard: int, witness: Witness) -> int:
    """A segment that is there was begun when everything before it was written, whatever the witness says."""
    return max(witness.ends.get(shard, 0), *(int(path.stem) for path in found.rest), found.end)


def _notes(lives: list[list[Found]], flaws: list[str], doubt: str) -> list[str]:
    notes = [f"every stream begins a new epoch: {doubt}"] if doubt else []
    for shard, flaw in enumerate(flaws):
        if flaw:
            notes.append(f"shard {shard} is damaged and its streams begin new epochs: {flaw}")
        for former in lives[shard][:-1]:
            if former.end < former.record.end:
                notes.append(f"shard {shard} lost positions from {former.end} to {former.record.end} of a former life")
    return notes


def _answer(settled: list[Settled], notes: list[str], oldest: int) -> Recovered:
    kept = [each for each in settled if not each.anew]
    segments = [segment for each in settled for segment in _segments(each.log)]
    return Recovered(
        shards=len(settled),
        tips=[tip for each in kept for tip in tips_of(each.state)],
        rows=chain(_session_rows(settled), _publications([each.log for each in kept], oldest)),
        producers={
            (producer, each.log.shard): sequence for each in settled for producer, sequence in producers_of(each.state).items()
        },
        newest=max((segment.newest for segment in segments), default=0) / MICROSECONDS,
        cut_bytes=sum(each.cut_bytes for each in settled),
        reset_shards=tuple(each.log.shard for each in settled if each.anew),
        notes=tuple(notes),
    )


def _segments(log: ShardLog) -> list[Segment]:
    return [segment for life in log.lives for segment in life.segments]


def _session_rows(settled: list[Settled]) -> Iterator[Row]:
    """However old they are."""
    for each in settled:
        yield from session_rows(each.state)


def _publications(logs: list[ShardLog], oldest: int) -> Iterator[Row]:
    """Those of the present life: the others have no epoch any more."""
    for log in logs:
        for segment in log.current.segments:
            if segment.rows and segment.newest >= oldest:
                yield from (row for row in _decoded(segment, oldest) if row.kind is RowKind.PUBLISH)


def _decoded(segment: Segment, oldest: int) -> Iterator[Row]:
    for batch in table_of(segment).to_batches():
        yield from decode(batch, oldest)
