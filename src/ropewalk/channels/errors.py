"""How a handler says no, with or without a word to the client, and what is raised for a call of what is not there."""

from ropewalk.model.errors import ApplicationError


class Reject(Exception):
    """Says no to a client: raised by `Connection.reject()` and `Channel.reject()`, or by yourself.

    In `on_connect` the client is turned away, in `subscribed` its subscription is rejected, in an action the call is refused.
    The reason is for the log; a client does not see it. `ActionError` is for what it may see.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ActionError(Reject):
    """Says no to an action, and tells the client why: `raise ActionError("that is too long", code="too_long")`.

    The caller gets `{"error": {"code": code, "message": message}}`. Elsewhere than in an action it is a `Reject`.
    """

    def __init__(self, message: str, code: str = "error") -> None:
        if not code:
            raise ValueError("an error needs a code")
        super().__init__(message)
        self.code = code


class BadCall(ApplicationError):
    """A client called a channel or an action that is not there, or with data that cannot be read. `code` is what it hears."""

    def __init__(self, reason: str, code: str = "bad_data") -> None:
        super().__init__(reason)
        self.code = code
