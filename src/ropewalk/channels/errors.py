"""How a handler says no, and what a client hears that called what is not there."""

from ropewalk.model.errors import ApplicationError


class Reject(Exception):
    """Says no to a client: raised by `Connection.reject()` and `Channel.reject()`, or by yourself.

    In `on_connect` the client is turned away, in `subscribed` its subscription is rejected, in an action the call is refused.
    The reason is for the log; a client does not see it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class BadCall(ApplicationError):
    """A client called a channel or an action that is not there, or with data that cannot be read."""
