"""What the client's state wants the session to do. Effects are executed in order."""

from msgspec import Struct

from ropewalk.client.errors import CableError, PublishError
from ropewalk.client.events import Event, KeptMessages, PresenceState
from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Body
from ropewalk.protocol.client_commands import ClientCommand


class Send(Struct, frozen=True):
    """Encode a command and write it."""

    command: ClientCommand | Body


class WritePushes(Struct, frozen=True):
    """Write pushes, which are encoded already."""

    frames: list[bytes]


class Yield(Struct, frozen=True, gc=False):
    """Pass events to the stream of this identifier. A presence change is always alone."""

    identifier: str
    events: list[Event]


class Confirmed(Struct, frozen=True):
    """The subscription is live on this connection."""

    identifier: str


class SubscriptionDenied(Struct, frozen=True):
    """The server rejected the subscription, with a reason if it gave one."""

    identifier: str
    reason: str = ""


class PresenceResult(Struct, frozen=True):
    """Answer to the oldest presence query of this identifier. None: the server has no presence."""

    identifier: str
    presence: PresenceState | None


class CallAnswered(Struct, frozen=True):
    """Answer to a push (the position of its first message), a history read or a ping."""

    ref: int
    answer: Position | KeptMessages | CableError | None


class Retry(Struct, frozen=True):
    """A push cannot be registered now, for the `failures`th time. After a pause call `retry`, or give up."""

    ref: int
    failures: int
    error: PublishError


class Redial(Struct, frozen=True):
    """Close this connection and open another.

    Args:
        new_token: Get a new token first.
        after: The server's reconnect delay in seconds, None if it gave none.
        reason: Why the server ends the connection.
    """

    new_token: bool = False
    after: float | None = None
    reason: str = ""


class End(Struct, frozen=True):
    """End the session permanently."""

    error: CableError


Effect = Send | WritePushes | Yield | Confirmed | SubscriptionDenied | PresenceResult | CallAnswered | Retry | Redial | End
