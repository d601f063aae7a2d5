"""Carries out what recovery decided of a shard: unpromised bytes are cut off, and the log goes on in its life or in a new one.

The rule it keeps: a file that holds or held something promised is neither changed nor renamed, however bad it is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ropewalk.adapters.journals.arrow.cutting import cut, remove
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.inspection import Found
from ropewalk.adapters.journals.arrow.logs import Life, ShardLog, remembered
from ropewalk.adapters.journals.arrow.manifest import LIFE_BITS
from ropewalk.adapters.journals.arrow.segment import load_index, segment_path, table_of
from ropewalk.adapters.journals.arrow.state import EMPTY, load_state, merge, save_state, without_tips


class Site(Struct, frozen=True):
    """Where a journal is, and what recovery has to go by."""

    directory: Path
    shards: int
    boot_id: str
    new_epoch: Callable[[], str]
    disk: Disk


class Settled(Struct, frozen=True):
    """`state` is that at the log's end, and `whole` if none of it was lost; `anew`: the shard's streams begin new epochs."""

    log: ShardLog
    state: Any
    whole: bool
    anew: bool
    cut_bytes: int


def settle(site: Site, shard: int, lives: Sequence[Found], why: str, damaged: bool) -> Settled:
    """`why` the shard goes on in a new life, "" if it does not; `damaged`: because its last one is."""
    used = lives[-1]
    gone = sum(cut(found, found is used and not damaged, site.disk) for found in lives)
    log = ShardLog(shard, [_life(found) for found in lives])
    state, whole = _state(used, site.disk)
    if why:
        state = without_tips(state)
        log.lives = [*log.lives, Life(site.new_epoch(), log.current.number + 1, [])]
    former = [life for found, life in zip(lives, log.lives[:-1], strict=False) if _told(life, damaged and found is used, found)]
    log.lives = remembered([*former, log.current])
    _go_on(log, state, site)
    return Settled(log, state, whole, bool(why), gone)


def _life(found: Found) -> Life:
    shard, segments = found.chain.shard, found.segments
    for number, segment in enumerate(segments):
        follower = segments[number + 1] if found.chain.in_use and number + 1 < len(segments) else None
        indexed = load_index(segment.path, shard, segment.first) is not None
        segment.sealed = indexed and (follower is None or load_state(follower.path, shard, follower.first) is not None)
    return Life(found.chain.record.epoch, found.chain.record.number, segments, found.end, found.missing_head)


def _state(found: Found, disk: Disk) -> tuple[Any, bool]:
    """The state at the end of a life, and whether all of it is known. Saves that at the beginning of the last segment."""
    segments, shard = found.segments, found.chain.shard
    if not segments:
        return EMPTY, True
    begin, last = min(found.read_from, len(segments) - 1), segments[-1]
    state = load_state(segments[begin].path, shard, segments[begin].first)
    at_its_beginning = segments[begin].first == found.chain.record.number << LIFE_BITS
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


def _told(former: Life, damaged: bool, found: Found) -> bool:
    """Files in which nothing is go, but where a life ended is still told; unless nobody can say it."""
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
