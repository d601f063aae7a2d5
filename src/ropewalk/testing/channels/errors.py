"""What a test of channels is told by an exception, beside those that the channels themselves raise."""

from typing import Any


class Rejected(Exception):
    """The app, or the server, said no: to a connection, a subscription, an action, a whisper.

    `reason` is what `reject(reason)` was given, which clients do not see, or the message of an `ActionError`, which they do;
    `messages` is what the channel transmitted before; `code` is what the caller of an action was told.
    """

    def __init__(self, reason: str, messages: list[Any] | None = None, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.messages = messages or []
        self.code = code


class NothingReceived(AssertionError):
    """A message was expected, and everything is done without one."""
