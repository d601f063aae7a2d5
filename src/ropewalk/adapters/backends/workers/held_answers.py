"""Answers to publishers, held while a worker is behind with reading what was registered.

Invariant: a publisher that waits for its answers does not run ahead of those who deliver. Whoever is behind for too long stands
still: nobody waits for it again until it has caught up.
"""

import asyncio
from collections.abc import Callable, Iterable

from ropewalk.adapters.backends.workers.wire import BusConnection

HOLD_SECONDS = 1.0
"""For how long answers wait at the most."""


class HeldAnswers:
    """`connections`: those of all workers."""

    def __init__(self, connections: Callable[[], Iterable[BusConnection]]) -> None:
        self._connections = connections
        self._standing: set[BusConnection] = set()
        self._held: list[tuple[BusConnection, bytes]] = []

    def send(self, connection: BusConnection, answer: bytes) -> None:
        """Now, or once everybody has caught up."""
        if self._held or self._is_anyone_behind():
            self._hold(connection, answer)
        else:
            connection.send(answer)

    def caught_up(self) -> None:
        """One of them has, or is gone."""
        self._standing = {each for each in self._standing if each.behind}
        if self._held and not self._is_anyone_behind():
            self._answer()

    def _is_anyone_behind(self) -> bool:
        return any(each.behind and each not in self._standing for each in self._connections())

    def _hold(self, connection: BusConnection, answer: bytes) -> None:
        if not self._held:
            self._hold_ends = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._wait_no_longer)
        self._held.append((connection, answer))

    def _wait_no_longer(self) -> None:
        self._standing = {each for each in self._connections() if each.behind}
        self._answer()

    def _answer(self) -> None:
        self._hold_ends.cancel()
        held, self._held = self._held, []
        for connection, answer in held:
            connection.send(answer)
