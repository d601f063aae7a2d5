"""The marks of consumers (named readers): one small file each, replaced atomically.

Invariant: memory and disk agree. Consumers are never changed in place, because retention reads them concurrently. A consumer
with an unreadable file is not treated as unknown: it keeps all rows and does not start over.
"""

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from threading import Lock

import msgspec

from ropewalk.adapters.journals.arrow.records import Disk, checked, unchecked
from ropewalk.core.consumers import count_lag, find_needed_positions, move_marks, pin_marks
from ropewalk.model.errors import Conflict, LimitReached, Unavailable
from ropewalk.model.journal import Consumer, Marks, ShardMark, ShardSpan
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.journal")

MAX_CONSUMERS = 1000


class Consumers:
    """Consumers that moved within `ttl` seconds keep their unread rows. Changes block and are thread-safe."""

    def __init__(self, directory: Path, ttl: float, disk: Disk, clock: Clock) -> None:
        self._directory = directory
        self._ttl = ttl
        self._disk = disk
        self._clock = clock
        self._changing = Lock()
        self._known: dict[str, Consumer] = {}
        self._unreadable: dict[Path, float] = {}  # when they were written

    def load(self) -> None:
        """Raises OSError."""
        self._directory.mkdir(0o700, exist_ok=True)
        self._disk.sync_file(self._directory.parent)
        paths = sorted(self._directory.glob("*.json"))
        found = {path: load_consumer(path) for path in paths}
        self._known = {consumer.name: consumer for consumer in found.values() if consumer is not None}
        self._unreadable = {path: path.stat().st_mtime for path, consumer in found.items() if consumer is None}
        for path in self._unreadable:
            logger.error(
                "the marks of a consumer cannot be read: %s. No row is removed by retention until it is moved or forgotten, or "
                "for as long as a consumer that does not move holds rows",
                path,
            )

    def all(self) -> list[Consumer]:
        known = self._known
        return [known[name] for name in sorted(known)]

    def pin(self, name: str, marks: Marks) -> Consumer:
        if self._path(name) in self._unreadable:
            raise Conflict(f"the marks of {name} cannot be read: move it to where it is (PUT), or forget it (DELETE)")
        return self._change(name, lambda own: pin_marks(own, marks))

    def move(self, name: str, marks: Marks) -> Consumer:
        return self._change(name, lambda own: move_marks(own, marks))

    def remove(self, name: str) -> bool:
        with self._changing:
            if name not in self._known and self._path(name) not in self._unreadable:
                return False
            self._remove(name)
            return True

    def find_needed_positions(self, shards: int) -> dict[int, int]:
        """By shard, the lowest position that is kept for consumers."""
        if any(self._held_until(written) > self._clock() for written in self._unreadable.values()):
            return dict.fromkeys(range(shards), 0)
        return find_needed_positions(consumer for consumer in self._known.values() if not self._idle(consumer))

    def gauges(self, spans: list[ShardSpan]) -> dict[str, float]:
        known = self._known
        lags = [sum(count_lag(consumer.marks, spans).values()) for consumer in known.values()]
        return {"journal_consumers": len(known), "journal_consumer_lag_rows": max(lags, default=0)}

    def _idle(self, consumer: Consumer) -> bool:
        return self._held_until(consumer.moved) <= self._clock()

    def _held_until(self, moved: float) -> float:
        return moved + self._ttl

    def _change(self, name: str, change: Callable[[Marks], dict[int, ShardMark]]) -> Consumer:
        with self._changing:
            own = self._known.get(name)
            marks = change(own.marks if own else {})
            if own is not None and marks == own.marks:
                return own
            if own is None:
                self._make_room()
            consumer = Consumer(name, marks, self._clock())
            self._save(consumer)
            self._known = {**self._known, name: consumer}
            self._readable_again(name)
            return consumer

    def _make_room(self) -> None:
        """Remove the consumer that has been idle longest, if its time to live is over."""
        if len(self._known) < MAX_CONSUMERS:
            return
        oldest = min(self._known.values(), key=lambda consumer: consumer.moved)
        if not self._idle(oldest):
            raise LimitReached(f"the limit of {MAX_CONSUMERS} consumers is reached: delete one")
        self._remove(oldest.name)

    def _save(self, consumer: Consumer) -> None:
        try:
            self._disk.replace(self._path(consumer.name), checked(msgspec.json.encode(consumer)))
        except OSError as error:
            raise Unavailable(f"the consumer cannot be written: {error.strerror or error}") from None

    def _remove(self, name: str) -> None:
        try:
            self._path(name).unlink(missing_ok=True)
            self._disk.sync_file(self._directory)
        except OSError as error:
            raise Unavailable(f"the consumer cannot be removed: {error.strerror or error}") from None
        self._known = {other: consumer for other, consumer in self._known.items() if other != name}
        self._readable_again(name)

    def _readable_again(self, name: str) -> None:
        own = self._path(name)
        self._unreadable = {path: written for path, written in self._unreadable.items() if path != own}

    def _path(self, name: str) -> Path:
        # Not the name itself: it may be `..`, and some file systems ignore case. The file contains the name.
        return self._directory / f"{sha256(name.encode()).hexdigest()[:32]}.json"


def load_consumer(path: Path) -> Consumer | None:
    """None if the file is damaged. Raises OSError."""
    try:
        return msgspec.json.decode(unchecked(path.read_bytes()), type=Consumer)
    except ValueError:  # msgspec's errors are ValueErrors
        return None
