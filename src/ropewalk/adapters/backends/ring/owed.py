"""What nodes that are not reached have to be told once they are.

Invariant: of what is about one session the latest counts. It is bounded: the oldest goes first, and is then seen to by the end
of this node's lease there.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from ropewalk.model.errors import Moved

MOST_OWED = 100_000

Tell = Callable[..., Awaitable[object]]


class OwedCall(Struct, frozen=True):
    """`name`: that of the session which it is about."""

    name: str
    method: str
    arguments: tuple[object, ...]


class Owed:
    def __init__(self) -> None:
        self._calls: dict[str, dict[tuple[object, ...], tuple[str, tuple[object, ...]]]] = {}  # by node, in order

    def add(self, node: str, key: tuple[object, ...], method: str, *arguments: object) -> None:
        """Instead of what was to be said under this key before."""
        calls = self._calls.setdefault(node, {})
        calls.pop(key, None)
        calls[key] = method, arguments
        if len(calls) > MOST_OWED:
            del calls[next(iter(calls))]

    def settle(self, node: str, key: tuple[object, ...]) -> None:
        """It was said."""
        self._calls.get(node, {}).pop(key, None)

    async def pay(self, node: str, tell: Tell) -> list[OwedCall]:
        """Returns what is no more for the node to hear: another one holds what it is about. Raises `Unavailable`, and then the
        rest is still owed."""
        moved: list[OwedCall] = []
        while calls := self._calls.get(node):
            key = next(iter(calls))
            method, arguments = calls[key]
            try:
                await tell(method, *arguments)
            except Moved:
                moved.append(OwedCall(str(key[-1]), method, arguments))
            if calls.get(key) == (method, arguments):
                del calls[key]
        self._calls.pop(node, None)
        return moved

    def forget(self, node: str) -> None:
        """It is gone for good."""
        self._calls.pop(node, None)
