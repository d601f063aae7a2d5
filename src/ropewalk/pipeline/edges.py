"""Where a query begins and where a batch ends: words, JSON and times become marks.

A time becomes the first position registered at or after it, found by halving: timestamps of a shard do not go back.
"""

import json
from collections.abc import Sequence

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import Marks, ShardMark, ShardSpan, oldest_kept
from ropewalk.pipeline.offsets import Spans, begin_of, earliest, latest
from ropewalk.pipeline.options import EARLIEST, LATEST, Edge, SourceOptions
from ropewalk.pipeline.tiered import ArchiveTable
from ropewalk.pipeline.wire import Wire

# Kafka's numbers for the two words, inside JSON.
_LATEST_NUMBER = -1
_EARLIEST_NUMBER = -2


class Edges:
    """Resolves edges against one server, and the archive where there is one."""

    def __init__(self, options: SourceOptions, wire: Wire) -> None:
        self._options = options
        self._wire = wire

    def spans(self) -> Spans:
        """The shards that this query reads."""
        spans = self._wire.spans()
        assign = self._options.selection.assign
        if absent := sorted(set(assign) - set(spans)):
            raise UserMistake(f"the journal has the shards 0 to {len(spans) - 1}; the option assign names {absent}")
        return {shard: own for shard, own in spans.items() if not assign or shard in assign}

    def resolve(self, edge: Edge, spans: Spans) -> Marks:
        if edge.timestamp is not None:
            return {shard: self._since(shard, own, edge.timestamp) for shard, own in spans.items()}
        if edge.offsets == LATEST:
            return latest(spans)
        oldest = self._oldest(spans)
        if edge.offsets == EARLIEST:
            return oldest
        # What is left out of a start begins with everything there is, and what is left out of an end ends with it.
        return _from_json(edge.offsets, spans, oldest, _LATEST_NUMBER if edge is self._options.end else _EARLIEST_NUMBER)

    def _oldest(self, spans: Spans) -> Marks:
        if not self._options.archive:
            return earliest(spans)
        archive = ArchiveTable(self._options.archive)
        return {shard: _reaching(own, archive.first(shard)) for shard, own in spans.items()}

    def _since(self, shard: int, own: Sequence[ShardSpan], timestamp: int) -> ShardMark:
        oldest = oldest_kept(own)
        if self._options.archive and oldest:
            archived = ArchiveTable(self._options.archive).first_since(shard, timestamp)
            if archived is not None and archived < oldest.first:
                return _at(own, archived)
        for span in own:
            if (position := self._halve(span, timestamp)) < span.end:
                return ShardMark(span.epoch, position)
        return latest({shard: own})[shard]

    def _halve(self, span: ShardSpan, timestamp: int) -> int:
        low, high = span.first, span.end
        while low < high:
            middle = (low + high) // 2
            if self._time(span.shard, middle) < timestamp:
                low = middle + 1
            else:
                high = middle
        return low

    def _time(self, shard: int, position: int) -> float:
        registered = self._wire.read(shard, position, position + 1, max_bytes=1).column("timestamp")[0].as_py()
        return float(registered.timestamp() * 1000)


def _reaching(own: Sequence[ShardSpan], archived: int | None) -> ShardMark:
    oldest = earliest({0: own})[0]
    return oldest if archived is None or archived >= oldest.position else _at(own, archived)


def _at(own: Sequence[ShardSpan], position: int) -> ShardMark:
    """A later generation of a shard begins above all positions of the one before, so a position tells its epoch."""
    if not own:
        return ShardMark("", position)
    span = next((span for span in own if position < span.end), own[-1])
    # Between the end of a generation and the next one's beginning there is nothing; below all that is known there may be.
    return ShardMark(span.epoch, max(position, begin_of(span)) if position >= begin_of(own[0]) else position)


def _from_json(text: str, spans: Spans, oldest: Marks, left_out: int) -> Marks:
    """`{"0": {"e": "…", "p": 12}}` as a query's progress shows it, or `{"0": 12}` with -2 and -1 for the two words."""
    try:
        given = {int(shard): mark for shard, mark in json.loads(text).items()}
        return {shard: _mark(given.get(shard, left_out), oldest[shard], own) for shard, own in spans.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(
            f'offsets are written like {{"0": 12, "1": -2}} or as a query\'s progress shows them, not {text!r}'
        ) from error


def _mark(given: object, oldest: ShardMark, own: Sequence[ShardSpan]) -> ShardMark:
    match given:
        case int() if given == _LATEST_NUMBER:
            return ShardMark(own[-1].epoch, own[-1].end) if own else oldest
        case int() if given == _EARLIEST_NUMBER:
            return oldest
        case int() if given >= 0:
            return _at(own, given)
        case {"e": str(epoch), "p": int(position)}:
            return ShardMark(epoch, position)
        case _:
            raise ValueError(given)
