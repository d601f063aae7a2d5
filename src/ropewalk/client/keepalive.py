"""How long a silent link is trusted: twice the time between two pings of the server, whatever else it sends."""

from ropewalk.protocol.server_messages import ServerMessage, ServerPing


class Keepalive:
    """`asked` is the interval the server was asked for, None if it was not; then it is learned from the pings.

    The server's timestamps count, not the time of arrival: a program that reads slowly must not grow the interval.
    """

    def __init__(self, asked: float | None) -> None:
        self._interval = asked or 0.0
        self._newest = 0.0

    def heard(self, message: ServerMessage) -> None:
        if isinstance(message, ServerPing):
            if self._newest:
                self._interval = max(self._interval, message.timestamp - self._newest)
            self._newest = message.timestamp

    @property
    def timeout(self) -> float | None:
        """Seconds of silence after which the link counts as dead; None while nothing is known of the server's pings."""
        return 2 * self._interval or None
