"""Recovers a journal from its files: distinguishes lost rows from rows that were never acknowledged, and truncates the latter.

Invariant: a shard that lost acknowledged rows, or may have, begins a new generation at unused positions, and its streams begin
new epochs. The rest of the old generation stays readable: a file that has or had acknowledged rows is neither changed nor
renamed, even if it is damaged. A shard without losses keeps its epochs.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import MICROSECONDS, decode
from ropewalk.adapters.journals.arrow.inspection import (
    InspectedGeneration,
    Scans,
    inspect,
    list_chains,
    read_committed_ends,
    require_manifest,
)
from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog, remembered
from ropewalk.adapters.journals.arrow.records import CommittedEnds, Disk, Manifest
from ropewalk.adapters.journals.arrow.segment import Hole, Segment, index_path, load_index, read_table, remove, segment_path
from ropewalk.adapters.journals.arrow.state import (
    EMPTY,
    load_state,
    merge,
    producer_sequences,
    save_state,
    session_rows,
    stream_tips,
    without_tips,
)
from ropewalk.model.journal import GENERATION_BITS, Recovered, Row, RowKind

MAX_LOGGED_HOLES = 8
"""Holes that one log line lists."""


class Site(Struct, frozen=True):
    """The directory of a journal, and what recovery needs to know."""

    directory: Path
    shards: int
    boot_id: str
    new_epoch: Callable[[], str]
    disk: Disk


class RecoveredShard(Struct, frozen=True):
    """`state`: at the end of the log; `whole`: the state is complete; `reset`: the shard's streams begin new epochs."""

    log: ShardLog
    state: Any
    whole: bool
    reset: bool
    cut_bytes: int


class JournalRecovery(Struct, frozen=True):
    """The recovered journal. `group` is the last committed group, `damaged` the number of shards that lost something."""

    logs: list[ShardLog]
    group: int
    revision: int
    archived: dict[int, int]
    damaged: int
    answer: Recovered


def recover(site: Site, horizon: float) -> JournalRecovery:
    manifest = require_manifest(site.directory)
    site = msgspec.structs.replace(site, shards=_shards(site, manifest))
    committed = read_committed_ends(site.directory, manifest)
    chains = [list_chains(site.directory, manifest, committed, shard, site.new_epoch()) for shard in range(site.shards)]
    scans = Scans()
    newest = scans.newest(chains)
    oldest = newest - round(min(horizon * MICROSECONDS, newest))
    generations = [[inspect(chain, oldest, scans) for chain in of_shard] for of_shard in chains]
    current = [found[-1] for found in generations]
    group = max((found.tail[0].group for found in current if found.tail), default=0)
    flaws = _flaws(site, manifest, current, committed, group)
    reset_reason = _reset_reason(site, manifest)
    recovered = [
        recover_shard(site, shard, generations[shard], flaw or reset_reason, bool(flaw)) for shard, flaw in enumerate(flaws)
    ]
    return JournalRecovery(
        [each.log for each in recovered],
        max(group, committed.group),
        manifest.revision if manifest else 0,
        dict(manifest.archived) if manifest else {},
        sum(1 for flaw in flaws if flaw),
        _answer(recovered, _notes(generations, flaws, reset_reason, recovered), oldest),
    )


def _shards(site: Site, manifest: Manifest | None) -> int:
    """The number of shards never changes: positions and readers depend on it."""
    shards = manifest.shards if manifest else site.shards
    for shard in range(shards):
        (site.directory / f"shard={shard:02}").mkdir(0o700, exist_ok=True)
    return shards


def _reset_reason(site: Site, manifest: Manifest | None) -> str:
    """Why all streams begin new epochs: acknowledged positions may be missing. "" if they need not."""
    if manifest is None:
        return ""
    if manifest.incomplete:
        return "the journal is a backup, or its manifest was rebuilt from the rows"
    if manifest.clean or manifest.durability == "fsync":
        return ""
    if manifest.durability == "memory":
        return "the server was not shut down cleanly, and its durability was memory"
    if manifest.boot_id != site.boot_id or not site.boot_id:
        return "the machine crashed, and the durability was journal"
    return ""


def _flaws(
    site: Site, manifest: Manifest | None, current: list[InspectedGeneration], committed: CommittedEnds, group: int
) -> list[str]:
    """The damage of each shard; "" for none."""
    # More than one group without an entry in the commit log is impossible: the commit log itself is damaged.
    believable = committed.whole and group <= committed.group + 1
    # After a crash of the machine the commit log may be torn: it is never synced.
    crashed = manifest is not None and manifest.boot_id != site.boot_id
    doubtful = not believable and not crashed
    if group > committed.group:
        drop_group([found for found in current if found.tail and found.tail[0].group == group])
    return [_flaw(found, doubtful) for found in current]


def _flaw(found: InspectedGeneration, doubtful: bool) -> str:
    if found.lost:
        return f"{_positions(found.lost)} are missing or damaged"
    if found.spare and doubtful:
        return f"its last {found.spare} bytes may have been acknowledged or not"
    return ""


def _notes(
    generations: list[list[InspectedGeneration]], flaws: list[str], reset_reason: str, recovered: list[RecoveredShard]
) -> list[str]:
    notes = [f"every stream begins a new epoch: {reset_reason}"] if reset_reason else []
    for shard, flaw in enumerate(flaws):
        strays = generations[shard][-1].chain.strays
        notes += [f"{path} is a stray file: not a segment of this journal, ignored" for path in strays]
        if flaw:
            notes.append(f"shard {shard} is damaged and its streams begin new epochs: {flaw}. {_REMEDY}")
        for former in generations[shard][:-1]:
            if former.lost:
                notes.append(f"shard {shard} lost {_positions(former.lost)} of a former generation. {_REMEDY}")
        if not recovered[shard].whole:
            notes.append(f"shard {shard} lost the record of its producers' sequences and its idle streams' offsets")
    return notes


_REMEDY = "All other rows can be read; `ropewalk journal repair` restores archived rows"


def _positions(holes: list[Hole]) -> str:
    listed = ", ".join(f"{first} to {end - 1}" for first, end in holes[:MAX_LOGGED_HOLES])
    more = f" and {len(holes) - MAX_LOGGED_HOLES} more ranges" if len(holes) > MAX_LOGGED_HOLES else ""
    return f"positions {listed}{more}"


def _answer(recovered: list[RecoveredShard], notes: list[str], oldest: int) -> Recovered:
    kept = [each for each in recovered if not each.reset]
    segments = [segment for each in recovered for segment in _segments(each.log)]
    return Recovered(
        shards=len(recovered),
        tips=[tip for each in kept for tip in stream_tips(each.state)],
        rows=chain(_session_rows(recovered), _publications([each.log for each in kept], oldest)),
        producers={
            (producer, each.log.shard): sequence
            for each in recovered
            for producer, sequence in producer_sequences(each.state).items()
        },
        newest=max((segment.newest for segment in segments), default=0) / MICROSECONDS,
        cut_bytes=sum(each.cut_bytes for each in recovered),
        reset_shards=tuple(each.log.shard for each in recovered if each.reset),
        notes=tuple(notes),
    )


def _segments(log: ShardLog) -> list[Segment]:
    return [segment for generation in log.generations for segment in generation.segments]


def _session_rows(recovered: list[RecoveredShard]) -> Iterator[Row]:
    """Of any age."""
    for each in recovered:
        yield from session_rows(each.state)


def _publications(logs: list[ShardLog], oldest: int) -> Iterator[Row]:
    """Publications of the current generations: epochs of former ones have ended."""
    for log in logs:
        for segment in log.current.segments:
            if segment.rows and segment.newest >= oldest:
                yield from (row for row in _decoded(segment, oldest) if row.kind is RowKind.PUBLISH)


def _decoded(segment: Segment, oldest: int) -> Iterator[Row]:
    for batch in read_table(segment).to_batches():
        yield from decode(batch, oldest)


# --- one shard: truncate, and continue in the same generation or in a new one ----------------------------------------


def recover_shard(
    site: Site, shard: int, generations: Sequence[InspectedGeneration], why: str, damaged: bool
) -> RecoveredShard:
    """`why`: the reason to begin a new generation, "" for none. `damaged`: the last generation is."""
    used = generations[-1]
    gone = sum(cut(found, found is used and not damaged, site.disk) for found in generations)
    log = ShardLog(shard, [_generation(found) for found in generations])
    state, whole = _state(used, site.disk)
    if why:
        state = without_tips(state)
        log.generations = [*log.generations, Generation(site.new_epoch(), log.current.number + 1, [])]
    former = [
        generation
        for found, generation in zip(generations, log.generations[:-1], strict=False)
        if _keep_generation(generation, damaged and found is used, found)
    ]
    log.generations = remembered([*former, log.current])
    _go_on(log, state, site)
    return RecoveredShard(log, state, whole, bool(why), gone)


def _generation(found: InspectedGeneration) -> Generation:
    shard, segments = found.chain.shard, found.segments
    for number, segment in enumerate(segments):
        follower = segments[number + 1] if found.chain.in_use and number + 1 < len(segments) else None
        indexed = load_index(segment.path, shard, segment.first) is not None
        segment.sealed = indexed and (follower is None or load_state(follower.path, shard, follower.first) is not None)
    return Generation(found.chain.record.epoch, found.chain.record.number, segments, found.end, found.missing_head)


def _state(found: InspectedGeneration, disk: Disk) -> tuple[Any, bool]:
    """The state at the end of a generation, and whether it is complete. Saves the state at the last segment's beginning."""
    segments, shard = found.segments, found.chain.shard
    if not segments:
        return EMPTY, True
    begin, last = min(found.read_from, len(segments) - 1), segments[-1]
    state = load_state(segments[begin].path, shard, segments[begin].first)
    at_its_beginning = segments[begin].first == found.chain.record.number << GENERATION_BITS
    while state is None and not at_its_beginning and begin + 1 < len(segments):
        # Retention removed the older rows. Only states include them, and a later state includes the rows in between.
        begin += 1
        state = load_state(segments[begin].path, shard, segments[begin].first)
    whole = state is not None or at_its_beginning
    state = EMPTY if state is None else state
    between = [segment for segment in segments[begin if whole else 0 : -1] if segment.rows]
    if between:
        state = merge(state, map(read_table, between))
        save_state(last.path, shard, last.first, state, disk)
    return merge(state, [read_table(last)]) if last.rows else state, whole


def _keep_generation(former: Generation, damaged: bool, found: InspectedGeneration) -> bool:
    """Whether the manifest keeps a former generation. Removes empty files; a known end is kept even without rows."""
    if any(segment.firsts for segment in former.segments):
        return True
    for segment in former.segments:
        remove(segment.path)
    former.change(lambda _: [])
    return not damaged or bool(found.lost)


def _go_on(log: ShardLog, state: Any, site: Site) -> None:
    if log.current.segments:
        log.reopen(site.disk)
        return
    if state.num_rows:
        first = log.current.end
        save_state(segment_path(site.directory, log.shard, first), log.shard, first, state, site.disk)
    log.grow(site.directory, site.disk, sync=True)


# --- rows that were never acknowledged -------------------------------------------------------------------------------


def drop_group(holders: list[InspectedGeneration]) -> None:
    """Drop the last group if some of its batches are missing: a group counts as a whole."""
    members = holders[0].tail[0].members
    if sum(len(found.tail) for found in holders) >= members:
        return
    for found in holders:
        while not found.segments[-1].rows:  # it began where the group ended
            found.unborn = [*found.unborn, found.segments.pop().path]
        segment = found.segments[-1]
        size = segment.size
        for _ in found.tail:
            segment.drop_last()
        found.spare += size - segment.size


def cut(found: InspectedGeneration, to_its_end: bool, disk: Disk) -> int:
    """Remove left-over files and, if the generation continues, the bytes after its end. Returns the number of removed bytes."""
    for path in found.chain.left_over:
        remove(path)
    if not to_its_end:
        return 0
    gone = 0
    for path in found.unborn:
        gone += path.stat().st_size
        remove(path)
    if found.segments:
        gone += _shorten(found.segments[-1].path, found.segments[-1].size, disk)
    return gone


def _shorten(path: Path, size: int, disk: Disk) -> int:
    length = path.stat().st_size
    if length == size:
        return 0
    index_path(path).unlink(missing_ok=True)
    fd = disk.open(path)
    try:
        disk.truncate(fd, size)
    finally:
        os.close(fd)
    return length - size
