"""What was decided of a shard is done: its files are cut, and its log goes on in the life it had or in a new one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ropewalk.adapters.journals.arrow.cutting import cut, remove
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.inspection import Found
from ropewalk.adapters.journals.arrow.logs import Life, ShardLog, remembered
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
    """`state` is that of the log's end; `anew`: the shard's streams begin new epochs."""

    log: ShardLog
    state: Any
    anew: bool
    cut_bytes: int


def settle(site: Site, shard: int, lives: Sequence[Found], why: str, damaged: bool, promised: int) -> Settled:
    """`promised`: how far the last life had come, as far as anybody can say."""
    gone = sum(cut(found, bool(found.flaw) or (damaged and found is lives[-1]), site.disk) for found in lives)
    log = ShardLog(shard, [_life(shard, found, promised if found is lives[-1] else found.record.end) for found in lives])
    state = _state(shard, lives[-1], site.disk)
    if why:
        state = without_tips(state)
        log.lives = [*log.lives, Life(site.new_epoch(), log.current.number + 1, [])]
    former = [
        life for found, life in zip(lives, log.lives[:-1], strict=False) if _told(found, life, damaged and found is lives[-1])
    ]
    log.lives = remembered([*former, log.current])
    _go_on(log, state, site)
    return Settled(log, state, bool(why), gone)


def _life(shard: int, found: Found, promised: int) -> Life:
    for number, segment in enumerate(found.segments):
        follower = found.segments[number + 1] if number + 1 < len(found.segments) else None
        indexed = load_index(segment.path, shard, segment.first) is not None
        segment.sealed = indexed and (follower is None or load_state(follower.path, shard, follower.first) is not None)
    lost = max(promised, found.record.promised)
    return Life(found.record.epoch, found.record.number, found.segments, found.end, lost if lost > found.end else 0)


def _state(shard: int, found: Found, disk: Disk) -> Any:
    """The state at the end of a life. That at the beginning of its last segment is saved if it is not there yet."""
    if not found.segments:
        return EMPTY
    begin, last = found.segments[min(found.read_from, len(found.segments) - 1)], found.segments[-1]
    state = load_state(begin.path, shard, begin.first)
    state = EMPTY if state is None else state
    between = [segment for segment in found.segments[found.read_from : -1] if segment.rows]
    if between:
        state = merge(state, map(table_of, between))
        save_state(last.path, shard, last.first, state, disk)
    return merge(state, [table_of(last)]) if last.rows else state


def _told(found: Found, former: Life, damaged: bool) -> bool:
    """Files without rows go, but where a life ended is still told; unless nobody can say it."""
    if former.end > former.first:
        return True
    for segment in former.segments:
        remove(segment.path, False)
    former.change(lambda _: [])
    return former.promised > 0 or (not damaged and former.end >= found.record.end)


def _go_on(log: ShardLog, state: Any, site: Site) -> None:
    if log.current.segments:
        log.reopen(site.disk)
        return
    if state.num_rows:
        first = log.current.end
        save_state(segment_path(site.directory, log.shard, first), log.shard, first, state, site.disk)
    log.grow(site.directory, site.disk, sync=True)
