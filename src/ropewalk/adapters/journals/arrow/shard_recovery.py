"""Carries out a recovery's decision for one shard: truncates, and continues in the same generation or begins a new one.

Invariant: a file that holds or held acknowledged rows is neither changed nor renamed, however damaged it is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.inspection import InspectedGeneration
from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog, remembered
from ropewalk.adapters.journals.arrow.segment import load_index, segment_path, table_of
from ropewalk.adapters.journals.arrow.state import EMPTY, load_state, merge, save_state, without_tips
from ropewalk.adapters.journals.arrow.truncation import cut, remove
from ropewalk.model.journal import GENERATION_BITS


class Site(Struct, frozen=True):
    """Where a journal is, and what recovery has to go by."""

    directory: Path
    shards: int
    boot_id: str
    new_epoch: Callable[[], str]
    disk: Disk


class RecoveredShard(Struct, frozen=True):
    """`state` is that at the log's end, and `whole` if none of it was lost; `anew`: the shard's streams begin new epochs."""

    log: ShardLog
    state: Any
    whole: bool
    anew: bool
    cut_bytes: int


def recover_shard(
    site: Site, shard: int, generations: Sequence[InspectedGeneration], why: str, damaged: bool
) -> RecoveredShard:
    """`why` the shard goes on in a new generation, "" if it does not; `damaged`: because its last one is."""
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
        if _told(generation, damaged and found is used, found)
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
    """The state at the end of a generation, and whether all of it is known. Saves that at the beginning of the last segment."""
    segments, shard = found.segments, found.chain.shard
    if not segments:
        return EMPTY, True
    begin, last = min(found.read_from, len(segments) - 1), segments[-1]
    state = load_state(segments[begin].path, shard, segments[begin].first)
    at_its_beginning = segments[begin].first == found.chain.record.number << GENERATION_BITS
    while state is None and not at_its_beginning and begin + 1 < len(segments):
        # Retention took what was before: only states tell of it, and a later one tells of what lies between as well.
        begin += 1
        state = load_state(segments[begin].path, shard, segments[begin].first)
    whole = state is not None or at_its_beginning
    state = EMPTY if state is None else state
    between = [segment for segment in segments[begin if whole else 0 : -1] if segment.rows]
    if between:
        state = merge(state, map(table_of, between))
        save_state(last.path, shard, last.first, state, disk)
    return merge(state, [table_of(last)]) if last.rows else state, whole


def _told(former: Generation, damaged: bool, found: InspectedGeneration) -> bool:
    """Empty files are removed, but the end of the generation is still recorded if it is known."""
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
