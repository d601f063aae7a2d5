"""Lookups by name: values by key prefix, and a sorted set of names for listings with pages.

Invariant: a prefix lookup costs one dict access for each different length of prefixes. Adding, removing and finding a page of
names each access two short lists, regardless of the number of names.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefixTable(Generic[T]):
    """Values by key prefix. `by_length` is empty while the table is."""

    def __init__(self) -> None:
        self.by_length: dict[int, dict[bytes, T]] = {}

    def __contains__(self, prefix: bytes) -> bool:
        return prefix in self.by_length.get(len(prefix), ())

    def __len__(self) -> int:
        return sum(map(len, self.by_length.values()))

    def get(self, prefix: bytes) -> T | None:
        return self.by_length.get(len(prefix), {}).get(prefix)

    def put(self, prefix: bytes, value: T) -> None:
        self.by_length.setdefault(len(prefix), {})[prefix] = value

    def remove(self, prefix: bytes) -> None:
        """Remove the prefix, if it is there."""
        same = self.by_length.get(len(prefix), {})
        same.pop(prefix, None)
        if not same:
            self.by_length.pop(len(prefix), None)

    def matching(self, key: bytes) -> list[T]:
        """The values of all prefixes that the key begins with."""
        return [same[key[:length]] for length, same in self.by_length.items() if key[:length] in same]

    def values(self) -> Iterator[T]:
        for same in self.by_length.values():
            yield from same.values()


CHUNK = 1024
"""Names in one list before it is split: small enough to shift quickly, large enough for few lists."""


class OrderedNames:
    """Sorted names in sorted chunks; `_last` holds the last name of each chunk, and no chunk is empty."""

    __slots__ = ("_chunk", "_chunks", "_last")

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk
        self._chunks: list[list[str]] = []
        self._last: list[str] = []

    def add(self, name: str) -> None:
        """The name must not be in the set."""
        if not self._chunks:
            self._chunks.append([name])
            self._last.append(name)
            return
        index = min(bisect_left(self._last, name), len(self._last) - 1)
        chunk = self._chunks[index]
        insort(chunk, name)
        self._last[index] = chunk[-1]
        if len(chunk) > self._chunk:
            self._split(index)

    def remove(self, name: str) -> None:
        """The name must be in the set."""
        index = bisect_left(self._last, name)
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, name)]
        if chunk:
            self._last[index] = chunk[-1]
        else:
            del self._chunks[index], self._last[index]

    def after(self, name: str, limit: int) -> list[str]:
        """Returns at most `limit` names strictly after `name`."""
        index = bisect_right(self._last, name)
        if index == len(self._chunks):
            return []
        start = bisect_right(self._chunks[index], name)
        answer = self._chunks[index][start : start + limit]
        while len(answer) < limit and (index := index + 1) < len(self._chunks):
            answer += self._chunks[index][: limit - len(answer)]
        return answer

    def _split(self, index: int) -> None:
        chunk = self._chunks[index]
        half = len(chunk) // 2
        self._chunks[index : index + 1] = [chunk[:half], chunk[half:]]
        self._last.insert(index, chunk[half - 1])
