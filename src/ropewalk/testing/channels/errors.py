"""What a test of channels is told by an exception, beside those that the channels themselves raise."""

from typing import Any


class Rejected(Exception):
    """The app, or the server, said no: to a connection, a subscription, an action, a whisper.

    `reason` is what `reject(reason)` was given, which clients do not see; `messages` is what the channel transmitted before.
    """

    def __init__(self, reason: str, messages: list[Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.messages = messages or []


class NothingReceived(AssertionError):
    """A message was expected, and everything is done without one."""
