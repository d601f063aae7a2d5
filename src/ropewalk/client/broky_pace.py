"""When a socket is read: while there is room for what comes, and while somebody waits for an answer, which may be behind what
fills an inbox."""

from ropewalk.client.broky_link import BrokyLink


class ReadingPace:
    """`link` is the present connection, None while there is none. `full`: the streams whose inboxes are."""

    def __init__(self) -> None:
        self.link: BrokyLink | None = None
        self.full: set[str] = set()
        self._waiting = 0

    def relieved(self, identifier: str) -> None:
        """There is room for this stream."""
        self.full.discard(identifier)
        self.keep()

    def wait_begins(self) -> None:
        self._waiting += 1
        self.keep()

    def wait_ends(self) -> None:
        self._waiting -= 1
        self.keep()

    def keep(self) -> None:
        if self.link is not None:
            self.link.pace(reads=not self.full or self._waiting > 0)
