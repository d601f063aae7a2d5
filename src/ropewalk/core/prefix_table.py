"""Values by key prefix. A lookup costs one dict access for each different length of prefixes."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefixTable(Generic[T]):
    """`by_length` is empty while the table is."""

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
