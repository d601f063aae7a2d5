"""Which processes listen to which streams, by name and by key prefix."""

from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

from ropewalk.core.names import PrefixTable
from ropewalk.protocol.stream_keys import shown_key

W = TypeVar("W")


class Listeners(Generic[W]):
    """All methods may be repeated. Removing an unknown entry has no effect."""

    def __init__(self) -> None:
        self._by_stream: dict[str, set[W]] = {}
        self._by_prefix: PrefixTable[set[W]] = PrefixTable()
        self._streams: dict[W, set[str]] = {}
        self._prefixes: dict[W, set[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_stream or self._by_prefix.by_length)

    def of(self, stream: str) -> Collection[W]:
        found = self._by_stream.get(stream, ())
        if not self._by_prefix.by_length:
            return found
        return {*found, *(worker for some in self._by_prefix.matching(shown_key(stream)) for worker in some)}

    def add(self, worker: W, streams: Iterable[str]) -> None:
        wanted = self._streams.setdefault(worker, set())
        for stream in streams:
            wanted.add(stream)
            self._by_stream.setdefault(stream, set()).add(worker)

    def remove(self, worker: W, stream: str) -> None:
        self._streams.get(worker, set()).discard(stream)
        if (found := self._by_stream.get(stream)) is not None:
            found.discard(worker)
            if not found:
                del self._by_stream[stream]

    def add_prefixes(self, worker: W, prefixes: Iterable[bytes]) -> None:
        wanted = self._prefixes.setdefault(worker, set())
        for prefix in prefixes:
            wanted.add(prefix)
            if (found := self._by_prefix.get(prefix)) is None:
                self._by_prefix.put(prefix, {worker})
            else:
                found.add(worker)

    def remove_prefix(self, worker: W, prefix: bytes) -> None:
        self._prefixes.get(worker, set()).discard(prefix)
        if (found := self._by_prefix.get(prefix)) is not None:
            found.discard(worker)
            if not found:
                self._by_prefix.remove(prefix)

    def forget(self, worker: W) -> None:
        for stream in self._streams.pop(worker, set()):
            self.remove(worker, stream)
        for prefix in self._prefixes.pop(worker, set()):
            self.remove_prefix(worker, prefix)
