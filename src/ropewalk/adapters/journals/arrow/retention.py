"""Decides which segments are removed: those that the archive and the consumers have, and the oldest ones above the hard limit.

Invariant: a segment is removed only when the state of the next one includes it, so that no stream is forgotten.
"""

from msgspec import Struct

from ropewalk.adapters.journals.arrow.logs import Generation, ShardLog
from ropewalk.adapters.journals.arrow.schema import MICROSECONDS
from ropewalk.adapters.journals.arrow.segment import Segment


class Retention(Struct, frozen=True):
    """How long and how many rows stay; 0 is without limit.

    `for_archive`: nothing goes that the archive does not have, but for the hard limit. The same holds for what consumers need.
    """

    seconds: float
    bytes: int
    hard_limit_bytes: int
    for_archive: bool


class Going(Struct, frozen=True):
    """A segment that goes; `lost` if the archive or a consumer was to have it and has not."""

    log: ShardLog
    generation: Generation
    segment: Segment
    lost: bool


def going(
    logs: list[ShardLog], archived: dict[int, int], needed: dict[int, int], retention: Retention, now: float
) -> list[Going]:
    """The oldest first. What grows never goes. `needed`: from which position on a consumer has yet to read, by shard."""
    total = sum(segment.size for log in logs for generation in log.generations for segment in generation.segments)
    answer: list[Going] = []
    for log, generation, segment in _removable(logs):
        archiving = retention.for_archive and segment.end > archived.get(log.shard, 0)
        wanted = archiving or segment.end > needed.get(log.shard, segment.end)
        old = 0 < retention.seconds <= now - segment.newest / MICROSECONDS
        large = 0 < retention.bytes < total
        beyond = 0 < retention.hard_limit_bytes < total
        if beyond or (not wanted and (old or large)):
            answer.append(Going(log, generation, segment, lost=wanted))
            total -= segment.size
    return _from_the_beginning(answer)


def _removable(logs: list[ShardLog]) -> list[tuple[ShardLog, Generation, Segment]]:
    found = []
    for log in logs:
        for generation in log.generations:
            inner = generation.segments[:-1] if generation is log.current else generation.segments
            for segment in inner:
                if not segment.sealed:
                    break
                found.append((log, generation, segment))
    return sorted(found, key=lambda each: (each[2].newest, each[2].first))


def _from_the_beginning(wanted: list[Going]) -> list[Going]:
    """A generation loses segments from its beginning only: what would leave a hole stays."""
    chosen = {id(each.segment) for each in wanted}
    return [each for each in wanted if _all_before(each, chosen)]


def _all_before(going: Going, chosen: set[int]) -> bool:
    before = [segment for segment in going.generation.segments if segment.first < going.segment.first]
    return all(id(segment) in chosen for segment in before)
