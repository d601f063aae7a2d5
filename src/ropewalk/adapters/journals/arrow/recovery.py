"""Recovers a journal from its files: tells lost rows from rows that were never acknowledged, and truncates accordingly.

Invariant: a shard that lost acknowledged rows, or may have, begins a new generation at positions that were never given, and
its streams begin new epochs. What is left of the old generation can still be read. A shard that lost nothing keeps
everything.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import Struct

from ropewalk.adapters.journals.arrow.commit_log import CommittedEnds, read_commits
from ropewalk.adapters.journals.arrow.frames import frame_at, frame_opening
from ropewalk.adapters.journals.arrow.inspection import Chain, InspectedGeneration, Scans, inspect, named_by_its_opening
from ropewalk.adapters.journals.arrow.logs import ShardLog
from ropewalk.adapters.journals.arrow.manifest import GenerationRecord, Manifest, load
from ropewalk.adapters.journals.arrow.schema import MICROSECONDS, decode
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, mapped, table_of
from ropewalk.adapters.journals.arrow.segment_files import Listing, Promised, listing
from ropewalk.adapters.journals.arrow.shard_recovery import RecoveredShard, Site, recover_shard
from ropewalk.adapters.journals.arrow.state import producers_of, session_rows, tips_of
from ropewalk.adapters.journals.arrow.truncation import drop_group
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_BITS, Recovered, Row, RowKind

NAMED_HOLES = 8
"""Of how many holes a line of the log tells the positions."""


class JournalRecovery(Struct, frozen=True):
    """The recovered journal. `group` is the last committed group, `damaged` the number of shards that lost something."""

    logs: list[ShardLog]
    group: int
    revision: int
    archived: dict[int, int]
    damaged: int
    answer: Recovered


def recover(site: Site, horizon: float) -> JournalRecovery:
    manifest = record_of(site.directory)
    site = msgspec.structs.replace(site, shards=_shards(site, manifest))
    committed = committed_ends_of(site.directory, manifest)
    chains = [chains_of(site.directory, manifest, committed, shard, site.new_epoch()) for shard in range(site.shards)]
    scans = Scans()
    newest = scans.newest(chains)
    oldest = newest - round(min(horizon * MICROSECONDS, newest))
    generations = [[inspect(chain, oldest, scans) for chain in of_shard] for of_shard in chains]
    current = [found[-1] for found in generations]
    group = max((found.tail[0].group for found in current if found.tail), default=0)
    flaws = _flaws(site, manifest, current, committed, group)
    doubt = _doubt(site, manifest)
    recovered = [recover_shard(site, shard, generations[shard], flaw or doubt, bool(flaw)) for shard, flaw in enumerate(flaws)]
    return JournalRecovery(
        [each.log for each in recovered],
        max(group, committed.group),
        manifest.revision if manifest else 0,
        dict(manifest.archived) if manifest else {},
        sum(1 for flaw in flaws if flaw),
        _answer(recovered, _notes(generations, flaws, doubt, recovered), oldest),
    )


def record_of(directory: Path) -> Manifest | None:
    """The journal's record of itself; None for a new journal. Raises UserMistake where it exists and cannot be read."""
    manifest = load(directory)
    if manifest is None and begun(directory):
        raise UserMistake(
            f"the record of the journal in {directory} cannot be read: journal.json and journal.copy.json are missing or "
            "damaged. Put one of the two files back, or rebuild the record from the rows with "
            f"`ropewalk journal repair {directory.parent}`: then every stream begins a new epoch"
        )
    return manifest


def still_recorded(directory: Path, manifest: Manifest) -> bool:
    """Whether the record is the same as before the files were listed. The server writes it before it removes files."""
    now = load(directory)
    return now is not None and now.revision == manifest.revision


def begun(directory: Path) -> bool:
    """A first start that was cut off leaves openings at the most."""
    segments = [path for shard in directory.glob("shard=*") for path in shard.glob("*.arrow")]
    return any(directory.glob("commits-*.log")) or any(map(_more_than_an_opening, segments))


def _more_than_an_opening(path: Path) -> bool:
    with mapped(path) as data:
        opening = frame_at(data, 0)
        return len(data) > (opening.length if opening else len(frame_opening(0, "", 0)))


def _shards(site: Site, manifest: Manifest | None) -> int:
    """A journal keeps its number of shards for ever: positions and readers go by it."""
    shards = manifest.shards if manifest else site.shards
    for shard in range(shards):
        (site.directory / f"shard={shard:02}").mkdir(exist_ok=True)
    return shards


def committed_ends_of(directory: Path, manifest: Manifest | None) -> CommittedEnds:
    if manifest is None:
        return CommittedEnds({}, 0, True)
    recorded = {shard: generations[-1].end for shard, generations in enumerate(manifest.generations)}
    if manifest.clean:
        return CommittedEnds(recorded, manifest.group, True)
    seen = read_commits(directory, manifest.shards)
    ends = {shard: max(end, seen.ends.get(shard, 0)) for shard, end in recorded.items()}
    return CommittedEnds(ends, max(seen.group, manifest.group), seen.whole)


def chains_of(directory: Path, manifest: Manifest | None, committed: CommittedEnds, shard: int, epoch: str = "") -> list[Chain]:
    """The generations of a shard: those recorded and those begun since. The last one is in use. A new shard begins with
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
    # A segment that is there was begun when everything before it was written, whatever else is known.
    begun = max((int(path.stem) for path in kept), default=0)
    promised = max(_promised(shard, record, committed), begun)
    return Chain(shard, record, kept, left_over, promised, ended, in_use, files.strays if in_use else ())


def _promised(shard: int, record: GenerationRecord, committed: CommittedEnds) -> int:
    seen = committed.ends.get(shard, 0)
    return max(record.end, seen) if seen >> GENERATION_BITS == record.number else record.end


def _doubt(site: Site, manifest: Manifest | None) -> str:
    """Why every stream begins anew, "" when none has to: positions may have been given of which nothing is here."""
    if manifest is None:
        return ""
    if manifest.incomplete:
        return "this is the backup of a journal that went on, or its record was made anew from its rows"
    if manifest.clean or manifest.durability == "fsync":
        return ""
    if manifest.durability == "memory":
        return "the server did not stop in order, and its durability was memory"
    if manifest.boot_id != site.boot_id or not site.boot_id:
        return "the machine went down, and the durability was journal"
    return ""


def _flaws(
    site: Site, manifest: Manifest | None, current: list[InspectedGeneration], committed: CommittedEnds, group: int
) -> list[str]:
    """Why each shard counts as damaged; "" where it does not."""
    # More than one group without an entry in the commit log is impossible: the commit log itself lost something.
    believable = committed.whole and group <= committed.group + 1
    # After a crash of the machine the commit log may be torn as well: it is never synced.
    crashed = manifest is not None and manifest.boot_id != site.boot_id
    doubtful = not believable and not crashed
    if group > committed.group:
        drop_group([found for found in current if found.tail and found.tail[0].group == group])
    return [_flaw(found, doubtful) for found in current]


def _flaw(found: InspectedGeneration, doubtful: bool) -> str:
    if found.lost:
        return f"{_positions(found.lost)} are missing or not as they were written"
    if found.spare and doubtful:
        return f"it ends in {found.spare} bytes of which nobody knows whether they were promised"
    return ""


def _notes(
    generations: list[list[InspectedGeneration]], flaws: list[str], doubt: str, recovered: list[RecoveredShard]
) -> list[str]:
    notes = [f"every stream begins a new epoch: {doubt}"] if doubt else []
    for shard, flaw in enumerate(flaws):
        notes += [f"{path} is no segment of this journal and is left alone" for path in generations[shard][-1].chain.strays]
        if flaw:
            notes.append(f"shard {shard} is damaged and its streams begin new epochs: {flaw}. {_WAY_ON}")
        for former in generations[shard][:-1]:
            if former.lost:
                notes.append(f"shard {shard} lost {_positions(former.lost)} of a former generation. {_WAY_ON}")
        if not recovered[shard].whole:
            notes.append(f"shard {shard} lost the record of how far its producers and its quiet streams had come")
    return notes


_WAY_ON = "All other rows can be read; `ropewalk journal repair` brings back those that the archive has"


def _positions(holes: list[Hole]) -> str:
    told = ", ".join(f"{first} to {end}" for first, end in holes[:NAMED_HOLES])
    more = f" and {len(holes) - NAMED_HOLES} more ranges" if len(holes) > NAMED_HOLES else ""
    return f"positions from {told}{more}"


def _answer(recovered: list[RecoveredShard], notes: list[str], oldest: int) -> Recovered:
    kept = [each for each in recovered if not each.anew]
    segments = [segment for each in recovered for segment in _segments(each.log)]
    return Recovered(
        shards=len(recovered),
        tips=[tip for each in kept for tip in tips_of(each.state)],
        rows=chain(_session_rows(recovered), _publications([each.log for each in kept], oldest)),
        producers={
            (producer, each.log.shard): sequence
            for each in recovered
            for producer, sequence in producers_of(each.state).items()
        },
        newest=max((segment.newest for segment in segments), default=0) / MICROSECONDS,
        cut_bytes=sum(each.cut_bytes for each in recovered),
        reset_shards=tuple(each.log.shard for each in recovered if each.anew),
        notes=tuple(notes),
    )


def _segments(log: ShardLog) -> list[Segment]:
    return [segment for generation in log.generations for segment in generation.segments]


def _session_rows(recovered: list[RecoveredShard]) -> Iterator[Row]:
    """However old they are."""
    for each in recovered:
        yield from session_rows(each.state)


def _publications(logs: list[ShardLog], oldest: int) -> Iterator[Row]:
    """Those of the present generation: the others have no epoch any more."""
    for log in logs:
        for segment in log.current.segments:
            if segment.rows and segment.newest >= oldest:
                yield from (row for row in _decoded(segment, oldest) if row.kind is RowKind.PUBLISH)


def _decoded(segment: Segment, oldest: int) -> Iterator[Row]:
    for batch in table_of(segment).to_batches():
        yield from decode(batch, oldest)
