"""Session records: the connect request, granted subscriptions, the snapshot that is kept for a resume, and the messages between
a node and a shared store."""

from typing import Literal

from msgspec import Struct

from ropewalk.model.application import State
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.presence import Member


class ClientOptions(Struct, frozen=True):
    """A client's options in its connect request. None leaves the choice to the server.

    Args:
        former_sid: the session to restore.
        ping_units: the unit of the timestamp in a ping, as units per second.
        reconnect_in: send the client a reconnect delay when the server closes the connection.
    """

    former_sid: str = ""
    ping_interval: float | None = None
    ping_units: int | None = None
    reconnect_in: bool = False


class ConnectRequest(Struct, frozen=True):
    """A connect request as the transport sees it. Header names are lower case; of repeated parameters the last wins. `tcp`: the
    client has the limits of clients over TCP."""

    url: str
    path: str
    headers: dict[str, str]
    params: dict[str, str]
    remote: str = ""
    token: str = ""
    extended: bool = False
    options: ClientOptions = ClientOptions()
    tcp: bool = False


class Accepted(Struct, frozen=True):
    """The connection is accepted, as `ids`. At `expires_at` (UNIX seconds) the server closes it.

    `anonymous`: accepted without authentication.
    """

    ids: str
    expires_at: float | None = None
    anonymous: bool = False


class Refused(Struct, frozen=True):
    """The connection is refused. The reason is one of the disconnect table in `closing`."""

    reason: str


class Subscribed(Struct, frozen=True):
    """A channel accepted the subscription: its streams, and those of whispers and presence ("" = not allowed).

    `state`: the application's state if the application decided, None if the server did.
    """

    streams: tuple[str, ...]
    whisper: str = ""
    presence: str = ""
    state: State | None = None


NotGrantedReason = Literal["forbidden", "malformed", "overflow", "unavailable"]


class Rejected(Struct, frozen=True):
    """A channel rejected the subscription. `reason` is logged, and sent to the client unless the kind is `forbidden`."""

    reason: str
    kind: NotGrantedReason = "forbidden"

    def client_error(self) -> "NotGranted | None":
        """The part that is sent to the client."""
        return None if self.kind == "forbidden" else NotGranted(self.kind, self.reason)


class AppSide(Struct, frozen=True):
    """What a session keeps for the application.

    Args:
        state: of the connection.
        known: whether the application knows the session.
        credentials: a keyed hash of the client's credentials when the application accepted it, "" without credentials; None if
            another authenticator accepted it.
    """

    url: str = ""
    headers: dict[str, str] = {}
    state: State = {}
    known: bool = False
    credentials: str | None = None


class SessionSnapshot(Struct, frozen=True):
    """The part of a session that survives a lost connection. The client keeps its positions itself.

    Args:
        members: its presence member by stream.
        names: its sids so far: publications that exclude one of them stay excluded.
        app: None without an application.
    """

    ids: str
    subscriptions: dict[str, Subscribed]
    expires_at: float | None = None
    members: dict[str, Member] = {}
    names: tuple[str, ...] = ()
    app: AppSide | None = None


class SessionWrite(Struct, frozen=True):
    """A node's write of one of its sessions to a shared store.

    Args:
        version: grows with each write of a node, so that the store ignores older writes that arrive late.
        ttl: seconds that the session can be resumed after its connection or its node is lost; 0 if it cannot.
        live: whether it is connected; if not, `ttl` begins now.
        began: when the session began if this is the first write of it, else None.
    """

    sid: str
    snapshot: SessionSnapshot
    version: int
    ttl: float
    live: bool = True
    began: float | None = None


class SessionTaken(Struct, frozen=True):
    """Sent to the node of a session that it no longer has: the session was resumed elsewhere, has ended, or was `revoked`.

    Args:
        revoked: by a remote disconnect, whose `reconnect` is sent to the client.
        stored: whether the store had the session. If not, the store does not know it, or had no record of it when its identity
            was revoked.
    """

    sid: str
    revoked: bool = False
    reconnect: bool = True
    stored: bool = True


class SessionWanted(Struct, frozen=True):
    """The client has reconnected to another node. Commands in progress finish first, and their effects are kept."""

    sid: str


EndRequest = RemoteDisconnect | SessionTaken | SessionWanted
"""A feed brings these to the nodes whose sessions they end."""


class Renewal(Struct, frozen=True):
    """`lease`: its number, which changes when the lease is new. `taken`: sessions that were taken from the node."""

    lease: int
    taken: tuple[SessionTaken, ...] = ()


class NotGranted(Struct, frozen=True):
    """Why a request of a client is refused, and what the client can do."""

    reason: NotGrantedReason
    text: str
