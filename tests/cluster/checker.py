"""The record of a cluster run, with publications, deliveries and answers, and the checker that finds anomalies in it.

The checker knows nothing of servers and engines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import inf
from typing import NamedTuple

END = "the end"  # the last publication in every stream


class Kind(Enum):
    LOST = "lost"  # acknowledged, and not in the history or not delivered
    DUPLICATE = "duplicate"  # registered at two positions, or delivered twice
    REORDERED = "reordered"  # delivered after a later one, or registered before one that was acknowledged earlier
    SILENT_GAP = "silent gap"  # messages are missing between two that were delivered, without a gap notice
    NEEDLESS_GAP = "needless gap"  # a gap notice although everything is kept
    POSITION_REUSED = "position reused"  # two messages at one position
    EPOCH_CHANGED = "epoch changed"  # although the engine lost nothing
    UNKNOWN = "unknown message"  # never published, or to another stream
    PRESENCE_GHOST = "presence ghost"  # a member whose session is gone
    PRESENCE_MISSING = "presence missing"  # a member whose session lives, and not in the answer
    KICKED_BACK = "kicked session back"  # one that was disconnected remotely was resumed or lives on
    TWO_LIVES = "session lives twice"  # its former connection was not ended
    NODES_DIFFER = "nodes differ"  # two nodes answer differently about the same


class Anomaly(NamedTuple):
    kind: Kind
    text: str


class Position(NamedTuple):
    epoch: str
    offset: int


class Message(NamedTuple):
    """`name`: which publication it is."""

    position: Position
    name: str


class ReportedGap(NamedTuple):
    """The stream goes on at `oldest`."""

    reason: str
    epoch: str
    oldest: int


@dataclass
class Publication:
    """`acked`: when its receipt came; `position`: the one in the receipt, None for endpoints without positions."""

    name: str
    stream: str
    sent: float
    acked: float | None = None
    position: Position | None = None


class StreamHistory(NamedTuple):
    epoch: str
    messages: tuple[Message, ...]


class Kick(NamedTuple):
    """A remote disconnect: when it was first sent and when it was acknowledged."""

    ids: str
    sent: float
    acked: float


class Life(NamedTuple):
    """One connection that was welcomed. `started`: when the client came; `of_sid_since`: when the session that it asked to
    resume was welcomed, None where it asked for none; `ended`: infinite while it lives."""

    ids: str
    started: float
    welcomed: float
    of_sid_since: float | None
    restored: bool
    ended: float = inf


@dataclass
class Record:
    """`seen`: by client and stream, in the order in which it came. `here`: clients that are there at the end, so that they must
    have everything. `presence`: by node and stream. `members`: who must be there, by stream. `other_receipts`: with the
    stream, for publications whose first receipt has another position."""

    publications: dict[str, Publication] = field(default_factory=dict)
    seen: dict[tuple[str, str], list[Message | ReportedGap]] = field(default_factory=dict)
    here: set[str] = field(default_factory=set)
    histories: dict[str, dict[str, StreamHistory]] = field(default_factory=dict)
    presence: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    kicks: list[Kick] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    left_open: list[str] = field(default_factory=list)
    other_receipts: list[tuple[str, Message]] = field(default_factory=list)


def anomalies(record: Record, lossy: bool = False) -> list[Anomaly]:
    """`lossy`: the engine may have lost acknowledged data. Then epochs may change and gaps be reported."""
    return [
        *_positions(record, lossy),
        *_epochs(record, lossy),
        *_registered_order(record),
        *_kept(record, lossy),
        *_delivered(record, lossy),
        *_same_answers(record),
        *_presence(record),
        *([] if lossy else _kicked(record)),  # a disconnect may be lost like other data
        *(Anomaly(Kind.TWO_LIVES, what) for what in record.left_open),
    ]


# --- positions -------------------------------------------------------------------------------------------------------------


def _evidence(record: Record) -> Iterator[tuple[str, Message]]:
    """All positions of messages: in receipts, deliveries and histories."""
    for publication in record.publications.values():
        if publication.position is not None:
            yield publication.stream, Message(publication.position, publication.name)
    yield from record.other_receipts
    for (_, stream), entries in record.seen.items():
        yield from ((stream, entry) for entry in entries if isinstance(entry, Message))
    for histories in record.histories.values():
        for stream, history in histories.items():
            yield from ((stream, message) for message in history.messages)


def _positions(record: Record, lossy: bool) -> Iterator[Anomaly]:
    """An engine that has lost a publication knows nothing of its uid: in another epoch it may be registered again."""
    at: dict[tuple[str, Position], str] = {}
    where: dict[tuple[str, str, str], Position] = {}
    for stream, (position, name) in _evidence(record):
        known = record.publications.get(name)
        if known is None or known.stream != stream:
            yield Anomaly(Kind.UNKNOWN, f"{name} in {stream} at {position}")
            continue
        if (other := at.setdefault((stream, position), name)) != name:
            yield Anomaly(Kind.POSITION_REUSED, f"{stream} {position}: {other} and {name}")
        scope = (stream, position.epoch if lossy else "", name)
        if (first := where.setdefault(scope, position)) != position:
            yield Anomaly(Kind.DUPLICATE, f"{name} is registered in {stream} at {first} and {position}")
            where[scope] = position


def _epochs(record: Record, lossy: bool) -> Iterator[Anomaly]:
    epochs: dict[str, set[str]] = {}
    for stream, (position, _) in _evidence(record):
        epochs.setdefault(stream, set()).add(position.epoch)
    for stream, found in epochs.items():
        if len(found) > 1 and not lossy:
            yield Anomaly(Kind.EPOCH_CHANGED, f"{stream}: {sorted(found)}")


def _registered_order(record: Record) -> Iterator[Anomaly]:
    """What was acknowledged before another was first sent is registered before it."""
    runs: dict[tuple[str, str], list[Publication]] = {}
    for publication in record.publications.values():
        if publication.position is not None and publication.acked is not None:
            runs.setdefault((publication.stream, publication.position.epoch), []).append(publication)
    for (stream, _), run in runs.items():
        run.sort(key=lambda each: each.position or Position("", 0), reverse=True)
        acked, earliest = inf, ""
        for publication in run:
            if acked < publication.sent:
                yield Anomaly(
                    Kind.REORDERED, f"{stream}: {publication.name} was sent after {earliest} was acknowledged, and is before it"
                )
            if publication.acked is not None and publication.acked < acked:
                acked, earliest = publication.acked, publication.name


def _kept(record: Record, lossy: bool) -> Iterator[Anomaly]:
    """What was acknowledged is in the history of every node, unless its epoch was lost."""
    for node, histories in record.histories.items():
        kept = {stream: {message.name for message in history.messages} for stream, history in histories.items()}
        for publication in record.publications.values():
            if publication.acked is None or publication.name in kept.get(publication.stream, ()):
                continue
            history = histories.get(publication.stream)
            other_epoch = history is None or publication.position is None or publication.position.epoch != history.epoch
            if not (lossy and other_epoch):
                yield Anomaly(Kind.LOST, f"{publication.name} is not in the history of {publication.stream} at {node}")


# --- deliveries -----------------------------------------------------------------------------------------------------------


def _delivered(record: Record, lossy: bool) -> Iterator[Anomaly]:
    for (client, stream), entries in record.seen.items():
        who = f"{client}, {stream}"
        yield from _in_order(who, entries, lossy)
        if client in record.here and not has_end(entries):
            last = entries[-1] if entries else "nothing"
            yield Anomaly(Kind.LOST, f"{who}: the end did not come, the last is {last}")


def has_end(entries: Sequence[Message | ReportedGap]) -> bool:
    """What a publisher gave up may still be registered after the end."""
    return any(isinstance(entry, Message) and entry.name.startswith(END) for entry in entries)


def _in_order(who: str, entries: Iterable[Message | ReportedGap], lossy: bool) -> Iterator[Anomaly]:
    """A client begins before the first message: everything up to the end must come, or a gap notice."""
    got: set[Position] = set()
    at = Position("", 0)
    for entry in entries:
        if isinstance(entry, ReportedGap):
            if not lossy:
                yield Anomaly(Kind.NEEDLESS_GAP, f"{who}: after {at} {entry}")
            at = Position(entry.epoch, entry.oldest - 1)
            continue
        position = entry.position
        first = not at.epoch and position.offset == 1
        if position in got:
            yield Anomaly(Kind.DUPLICATE, f"{who}: {entry} was delivered twice")
        elif position.epoch == at.epoch and position.offset <= at.offset:
            yield Anomaly(Kind.REORDERED, f"{who}: {entry} after {at}")
        elif not first and position != at._replace(offset=at.offset + 1):
            yield Anomaly(Kind.SILENT_GAP, f"{who}: {entry} after {at}")
        got.add(position)
        at = max(at, position) if position.epoch == at.epoch else position


# --- answers of nodes ------------------------------------------------------------------------------------------------------


def _same_answers(record: Record) -> Iterator[Anomaly]:
    yield from (Anomaly(Kind.NODES_DIFFER, f"history of {what}") for what in _differences(record.histories))
    yield from (Anomaly(Kind.NODES_DIFFER, f"presence of {what}") for what in _differences(record.presence))


def _differences(answers: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    for (one, expected), (other, answer) in pairwise(answers.items()):
        for stream in sorted(expected.keys() | answer.keys()):
            if expected.get(stream) != answer.get(stream):
                yield f"{stream} at {one} and {other}"


def _presence(record: Record) -> Iterator[Anomaly]:
    for node, answer in record.presence.items():
        for stream, found in answer.items():
            members = record.members.get(stream, set())
            yield from (Anomaly(Kind.PRESENCE_GHOST, f"{who} in {stream} at {node}") for who in sorted(found - members))
            yield from (Anomaly(Kind.PRESENCE_MISSING, f"{who} in {stream} at {node}") for who in sorted(members - found))


def _kicked(record: Record) -> Iterator[Anomaly]:
    """A session that began before the disconnect was sent cannot be resumed after it was acknowledged."""
    for kick in record.kicks:
        for life in record.lives:
            if life.ids != kick.ids:
                continue
            if life.restored and life.of_sid_since is not None and life.of_sid_since < kick.sent and life.started > kick.acked:
                yield Anomaly(Kind.KICKED_BACK, f"{life.ids} was resumed {life.started - kick.acked:.1f} s after its kick")
            if life.welcomed < kick.sent and life.ended == inf:
                yield Anomaly(Kind.KICKED_BACK, f"{life.ids} lives on after its kick")
