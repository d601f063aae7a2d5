"""A sorted set of names, for listings with pages.

Invariant: adding, removing and finding a page each access two short lists, regardless of the number of names.
"""

from bisect import bisect_left, bisect_right, insort

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
