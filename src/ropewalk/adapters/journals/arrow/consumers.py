"""How far readers with a name have come: a small file each, replaced whole.

The rule it keeps: what is in memory is on disk. Consumers are never changed in place, for retention looks at them meanwhile.
"""

import logging
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock

import msgspec

from ropewalk.adapters.journals.arrow.checked import checked, unchecked
from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.core.consumers import lag, moved, needed_from, pinned
from ropewalk.model.errors import LimitReached, Unavailable
from ropewalk.model.journal import Consumer, ShardMark, ShardSpan
from ropewalk.ports import Clock

log = logging.getLogger("ropewalk.journal")

MOST = 1000

Marks = Mapping[int, ShardMark]


class Consumers:
    """Those that moved within `ttl` seconds hold what they have not read. Changes block, and are safe from several threads."""

    def __init__(self, directory: Path, ttl: float, disk: Disk, clock: Clock) -> None:
        self._directory = directory
        self._ttl = ttl
        self._disk = disk
        self._clock = clock
        self._changing = Lock()
        self._known: dict[str, Consumer] = {}

    def load(self) -> None:
        """Raises OSError."""
        self._directory.mkdir(exist_ok=True)
        self._disk.sync_file(self._directory.parent)
        found = [consumer for path in sorted(self._directory.glob("*.json")) if (consumer := _load(path)) is not None]
        self._known = {consumer.name: consumer for consumer in found}

    def all(self) -> list[Consumer]:
        known = self._known
        return [known[name] for name in sorted(known)]

    def pin(self, name: str, marks: Marks) -> Consumer:
        return self._change(name, lambda own: pinned(own, marks))

    def move(self, name: str, marks: Marks) -> Consumer:
        return self._change(name, lambda own: moved(own, marks))

    def forget(self, name: str) -> bool:
        with self._changing:
            if name not in self._known:
                return False
            self._remove(name)
            return True

    def needed_from(self) -> dict[int, int]:
        """By shard the lowest position that is held."""
        return needed_from(consumer for consumer in self._known.values() if not self._idle(consumer))

    def gauges(self, spans: list[ShardSpan]) -> dict[str, float]:
        known = self._known
        lags = [sum(lag(consumer.marks, spans).values()) for consumer in known.values()]
        return {"journal_consumers": len(known), "journal_consumer_lag_rows": max(lags, default=0)}

    def _idle(self, consumer: Consumer) -> bool:
        return consumer.moved + self._ttl <= self._clock()

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
            return consumer

    def _make_room(self) -> None:
        """The one that has not moved for the longest time gives way, if it holds nothing any more."""
        if len(self._known) < MOST:
            return
        oldest = min(self._known.values(), key=lambda consumer: consumer.moved)
        if not self._idle(oldest):
            raise LimitReached(f"{MOST} consumers are known already; forget one")
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

    def _path(self, name: str) -> Path:
        # Not the name itself: it may be `..`, and some file systems take `A` for `a`. The file tells the name.
        return self._directory / f"{sha256(name.encode()).hexdigest()[:32]}.json"


def _load(path: Path) -> Consumer | None:
    try:
        return msgspec.json.decode(unchecked(path.read_bytes()), type=Consumer)
    except ValueError:  # msgspec's errors are ValueErrors
        path.rename(path.with_suffix(".damaged"))
        log.error("a consumer is forgotten because its file is not as it was written: %s", path)
        return None
