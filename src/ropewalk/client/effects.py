"""What the client's state asks of the shell around it. Each is carried out in the order given."""

from msgspec import Struct

from ropewalk.client.errors import CableError
from ropewalk.client.events import Event, PresenceState
from ropewalk.protocol.client_commands import ClientCommand


class Send(Struct, frozen=True):
    """Put a command on the wire."""

    command: ClientCommand


class Yield(Struct, frozen=True):
    """Hand an event to the stream of this identifier."""

    identifier: str
    event: Event


class Confirmed(Struct, frozen=True):
    """The subscription holds on this connection."""

    identifier: str


class SubscriptionDenied(Struct, frozen=True):
    """The subscription is over: the server refused it, for this reason if it gave one."""

    identifier: str
    reason: str = ""


class PresenceResult(Struct, frozen=True):
    """The oldest presence query of this identifier is answered; None: the server cannot."""

    identifier: str
    presence: PresenceState | None


class Redial(Struct, frozen=True):
    """Drop this connection and come back with a new one, with a new token first if that is what is missing.

    `after`: the seconds that the server asks us to wait, None where it does not say.
    """

    new_token: bool = False
    after: float | None = None


class End(Struct, frozen=True):
    """The session is over for good."""

    error: CableError


Effect = Send | Yield | Confirmed | SubscriptionDenied | PresenceResult | Redial | End
