"""How connections are closed: one table of disconnect reasons that clients see, and the close codes that go with them.

Code 1006 is reserved for closes without a frame and is never sent.
"""

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.sessions import SessionTaken


class Closing(Struct, frozen=True):
    """How a connection is closed.

    Args:
        reason: sent in a `disconnect` message; "" sends none.
        reconnect: whether the client should reconnect.
        reconnect_in: milliseconds until then, for clients that requested it.
    """

    reason: str
    reconnect: bool
    code: int
    text: str
    reconnect_in: int | None = None


UNAUTHORIZED = Closing("unauthorized", False, 1000, "Auth Failed")
TOKEN_EXPIRED = Closing("token_expired", False, 1000, "Auth Failed")
AUTH_ERROR = Closing("", False, 1011, "Auth Error")
REMOTE = Closing("remote", True, 1000, "Closed remotely")
SERVER_RESTART = Closing("server_restart", True, 1001, "Server restart")
NO_PONG = Closing("no_pong", True, 1000, "No Pong")
TOO_SLOW = Closing("too_slow", True, 1000, "Too slow")
TOO_MANY_COMMANDS = Closing("", True, 1008, "Too many commands")
TOO_MANY_CONNECTIONS = Closing("too_many_connections", True, 1013, "Too many connections")
UNFINISHED_MESSAGE = Closing("", True, 1008, "Message not finished in time")
TAKEN_OVER = Closing("", True, 1000, "Session resumed elsewhere")
BY_APPLICATION = Closing("", True, 1000, "Closed by the application")
INTERNAL_ERROR = Closing("", True, 1011, "Internal error")

REFUSALS = {closing.reason: closing for closing in (UNAUTHORIZED, TOKEN_EXPIRED)}


def remote_closing(request: RemoteDisconnect | SessionTaken) -> Closing:
    return replace(REMOTE, reconnect=request.reconnect)
