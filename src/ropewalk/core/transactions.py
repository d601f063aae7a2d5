"""Transactions: the ledger of the staged, decided and finished batches of each application, and the stored form of their rows.

Invariant: a batch is decided once, only above the last finished one, and only when all pieces of its winners are staged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ropewalk.model.errors import BadRequest, Conflict, LimitReached
from ropewalk.model.messages import Publication
from ropewalk.model.transactions import AppRecord, Decision, StagedPiece, StagingLimits

MAX_BATCH = 2**31 - 1
"""Above it a row's sequence, batch << 32 | index, would not fit into 63 bits."""

MIN_COST_BYTES = 4096
"""A tiny piece still takes a disk block, and counts as one."""

MAX_GROUP_ROWS = 200
MAX_GROUP_BYTES = 256 * 1024
"""A group is registered and fanned out in one step. Bounds the delay of live traffic."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")

StagedAttempts = dict[tuple[int, int], list[StagedPiece]]
"""(part, attempt) → its pieces 0, 1, 2 … without holes."""


def check_name(name: str, what: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadRequest(f"{what} must be 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return name


def encode_sequence(batch: int, index: int) -> int:
    """The sequence of a batch's row, the same for every attempt to publish the batch."""
    return batch << 32 | index


def cost(piece: StagedPiece) -> int:
    return max(piece.size, MIN_COST_BYTES)


class _Batch:
    __slots__ = ("attempts", "cost", "touched")

    def __init__(self, touched: float) -> None:
        self.attempts: StagedAttempts = {}
        self.cost = 0
        self.touched = touched


class _App:
    __slots__ = ("decided", "last", "open")

    def __init__(self, last: int | None = None, decided: Decision | None = None) -> None:
        self.last = last
        self.decided = decided
        self.open: dict[int, _Batch] = {}

    def cost(self) -> int:
        return sum(batch.cost for batch in self.open.values())

    def is_finished(self, batch: int) -> bool:
        return (self.last is not None and batch <= self.last) or (self.decided is not None and batch <= self.decided.batch)


class TransactionLedger:
    """All applications by name. It decides; the caller writes the files and publishes."""

    def __init__(self, limits: StagingLimits) -> None:
        self._limits = limits
        self._apps: dict[str, _App] = {}
        self.cost = 0

    # --- state --------------------------------------------------------------------------------------------------------

    def restore(self, record: AppRecord, now: float) -> list[tuple[int, list[StagedPiece]]]:
        """Restore an application's record. Returns unusable pieces by batch: those after a missing one."""
        app = self._apps[record.app] = _App(record.last, record.decided)
        unusable: list[tuple[int, list[StagedPiece]]] = []
        for number, pieces in record.staged.items():
            lost = [piece for piece in sorted(pieces) if not self._append(app, number, piece, now)]
            if lost:
                unusable.append((number, lost))
        return unusable

    def last(self, app: str) -> int | None:
        known = self._apps.get(app)
        return None if known is None else known.last

    def decided(self, app: str) -> Decision | None:
        known = self._apps.get(app)
        return None if known is None else known.decided

    def unfinished(self) -> list[str]:
        return [name for name, app in self._apps.items() if app.decided is not None]

    def is_finished(self, app: str, batch: int) -> bool:
        """True if it is too late to stage or to decide: the batch, or a later one, is decided or finished."""
        known = self._apps.get(app)
        return known is not None and known.is_finished(batch)

    def gauges(self) -> dict[str, float]:
        return {
            "transaction_apps": len(self._apps),
            "staged_batches": sum(len(app.open) for app in self._apps.values()),
            "staged_bytes": self.cost,
        }

    def _app(self, name: str) -> _App:
        app = self._apps.get(name)
        if app is None:
            if len(self._apps) >= self._limits.max_apps:
                raise LimitReached(f"the limit of {self._limits.max_apps} applications is reached")
            app = self._apps[name] = _App()
        return app

    # --- staging ------------------------------------------------------------------------------------------------------

    def make_room(self, name: str, batch: int, piece: StagedPiece, now: float) -> list[tuple[str, int]]:
        """Check that the piece may be staged. Returns batches that were discarded for it: remove their files."""
        app = self._app(name)
        self._check_order(app, batch, piece)
        discarded = [(name, number) for number in self._discard_surplus(app, batch)]
        self._check_size(app, piece)
        discarded += self._discard_idle(name, batch, cost(piece), now)
        if self.cost + cost(piece) > self._limits.max_bytes:
            raise LimitReached(f"the limit of {self._limits.max_bytes} staged bytes is reached; commit or retry later")
        return discarded

    def _check_order(self, app: _App, number: int, piece: StagedPiece) -> None:
        batch = app.open.get(number)
        next_seq = len(batch.attempts.get((piece.part, piece.attempt), ())) if batch else 0
        if piece.seq > next_seq:
            raise Conflict(f"pieces of an attempt must be staged in order: seq {next_seq} is next, not {piece.seq}")

    def _check_size(self, app: _App, piece: StagedPiece) -> None:
        if app.cost() + cost(piece) > self._limits.max_app_bytes:
            raise LimitReached(f"an application may have {self._limits.max_app_bytes} bytes staged at once")

    def _discard_surplus(self, app: _App, batch: int) -> list[int]:
        """Discard the application's oldest batches if this new one exceeds their limit."""
        if batch in app.open:
            return []
        surplus = len(app.open) + 1 - self._limits.max_open_batches
        oldest = sorted(number for number in app.open if not app.is_finished(number))[: max(0, surplus)]
        for number in oldest:
            self._remove(app, number)
        return oldest

    def _discard_idle(self, name: str, batch: int, needed: int, now: float) -> list[tuple[str, int]]:
        """Discard as many idle batches as make enough room, longest idle first."""
        if self.cost + needed <= self._limits.max_bytes:
            return []
        idle = sorted(
            (held.touched, owner, number)
            for owner, app in self._apps.items()
            for number, held in app.open.items()
            if not app.is_finished(number)
            and (owner, number) != (name, batch)
            and held.touched + self._limits.idle_timeout <= now
        )
        discarded: list[tuple[str, int]] = []
        for _, owner, number in idle:
            if self.cost + needed <= self._limits.max_bytes:
                break
            self._remove(self._apps[owner], number)
            discarded.append((owner, number))
        return discarded

    def place(self, name: str, number: int, piece: StagedPiece, now: float) -> tuple[bool, list[StagedPiece]]:
        """Record a written piece. Returns whether it is accepted, and obsolete pieces to remove.

        A piece replaces all later ones of its attempt: an attempt of the same number before a restart may have had more.
        """
        app = self._apps[name]
        if app.is_finished(number):
            chosen = app.decided.pieces if app.decided is not None and app.decided.batch == number else ()
            return False, [] if piece in chosen else [piece]
        replaced = self._cut(app, number, piece)
        counts = self._append(app, number, piece, now)
        return counts, [old for old in replaced if old != piece] + ([] if counts else [piece])

    def _cut(self, app: _App, number: int, piece: StagedPiece) -> list[StagedPiece]:
        batch = app.open.get(number)
        pieces = batch.attempts.get((piece.part, piece.attempt), []) if batch else []
        replaced = pieces[piece.seq :]
        del pieces[piece.seq :]
        self._charge(batch, -sum(cost(old) for old in replaced))
        return replaced

    def _append(self, app: _App, number: int, piece: StagedPiece, now: float) -> bool:
        batch = app.open.get(number) or _Batch(now)
        pieces = batch.attempts.setdefault((piece.part, piece.attempt), [])
        if piece.seq != len(pieces):
            return False
        app.open[number] = batch
        pieces.append(piece)
        batch.touched = now
        self._charge(batch, cost(piece))
        return True

    def _charge(self, batch: _Batch | None, amount: int) -> None:
        if batch is not None:
            batch.cost += amount
            self.cost += amount

    def _remove(self, app: _App, number: int) -> None:
        batch = app.open.pop(number, None)
        if batch is not None:
            self.cost -= batch.cost

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, name: str, number: int, winners: Mapping[int, int], counts: Mapping[int, int]) -> Decision:
        """Returns the winners' pieces, in order. `counts` has the number of pieces of some parts; others have at least one."""
        app = self._app(name)
        batch = app.open.get(number)
        attempts: StagedAttempts = batch.attempts if batch else {}
        missing = [
            {"part": part, "attempt": attempt}
            for part, attempt in sorted(winners.items())
            if not _complete(attempts.get((part, attempt), []), counts.get(part))
        ]
        if missing:
            raise Conflict("the commit names parts that are not staged", missing)
        chosen = sorted(piece for part, attempt in winners.items() for piece in attempts.get((part, attempt), ()))
        app.decided = Decision(number, tuple(chosen))
        return app.decided

    def undecide(self, name: str) -> None:
        """Revoke a decision that could not be made durable."""
        self._apps[name].decided = None

    def mark_broken(self, name: str, number: int, broken: list[StagedPiece]) -> None:
        """Remove the attempts of damaged pieces: they must be staged again."""
        batch = self._apps[name].open[number]
        for piece in broken:
            pieces = batch.attempts.pop((piece.part, piece.attempt), [])
            self._charge(batch, -sum(cost(old) for old in pieces))

    def finish(self, name: str) -> int:
        """Record that the decided batch is published. Removes staged batches up to it."""
        app = self._apps[name]
        assert app.decided is not None
        app.last = app.decided.batch
        app.decided = None
        for number in [number for number in app.open if number <= app.last]:
            self._remove(app, number)
        return app.last


def _complete(pieces: list[StagedPiece], expected: int | None) -> bool:
    return bool(pieces) if expected is None else len(pieces) == expected


# --- the stored form of staged rows -----------------------------------------------------------------------------------

# Validated rows, in groups that are small enough for one step of the broker. They have the publisher's fields only: the batch
# decides the producer and the sequence of a row.

_LENGTH_BYTES = 4

_Line = tuple[str, bytes, str, str, str]
_decoder = msgspec.msgpack.Decoder(list[_Line])
_encode = msgspec.msgpack.Encoder().encode


def split_into_groups(rows: Sequence[Publication]) -> Iterator[Sequence[Publication]]:
    start = size = 0
    for index, row in enumerate(rows):
        if index > start and (index - start >= MAX_GROUP_ROWS or size + len(row.payload) > MAX_GROUP_BYTES):
            yield rows[start:index]
            start, size = index, 0
        size += len(row.payload)
    if start < len(rows):
        yield rows[start:]


def encode_group(rows: Sequence[Publication]) -> bytes:
    lines = [(row.stream, row.payload, row.exclude_socket, row.broadcast_type, row.uid) for row in rows]
    body = _encode(lines)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def decode_groups(data: bytes, producer: str, first: int) -> Iterator[list[Publication]]:
    """The groups of a piece, in order. `first` is the sequence of its first row. The data must be undamaged."""
    view, at = memoryview(data), 0
    while at < len(data):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(view[at:start], "little")
        lines = _decoder.decode(view[start:at])
        yield [_publication(line, producer, first + index) for index, line in enumerate(lines)]
        first += len(lines)


def _publication(line: _Line, producer: str, sequence: int) -> Publication:
    stream, payload, exclude_socket, broadcast_type, uid = line
    return Publication(stream, payload, exclude_socket, broadcast_type, False, uid, producer, sequence)
