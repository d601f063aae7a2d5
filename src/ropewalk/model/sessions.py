"""Session records: the connect request, what a channel granted, the snapshot that is kept for a resume, and what a node tells a
store that other nodes share."""

from typing import Literal

from msgspec import Struct

from ropewalk.model.application import State
from ropewalk.model.presence import Member


class ClientOptions(Struct, frozen=True):
    """What a client asked for when it connected. None leaves the choice to the server.

    `former_sid` is the session to restore. `ping_units` is the unit of the timestamp in a ping, as units per second.
    `reconnect_in`: tell the client when to come back.
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
    """The connection may stay, as `ids`; `expires_at` (UNIX seconds) ends it even while it is live.

    `anonymous`: everybody is let in, and nobody has looked at a token.
    """

    ids: str
    expires_at: float | None = None
    anonymous: bool = False


class Refused(Struct, frozen=True):
    """The connection may not stay; the reason is one of the disconnect table in `closing`."""

    reason: str


class Subscribed(Struct, frozen=True):
    """A channel said yes: the streams to deliver, and where its whispers and presence go ("" = not allowed).

    `state` is what the application keeps here if it was the one who answered, and None if the server answered by itself.
    """

    streams: tuple[str, ...]
    whisper: str = ""
    presence: str = ""
    state: State | None = None


NotGrantedReason = Literal["forbidden", "malformed", "overflow", "unavailable"]


class Rejected(Struct, frozen=True):
    """A channel said no. `reason` is for the log, and for the client only where it is not `forbidden` to it: whoever may not
    have something is told no more than that."""

    reason: str
    kind: NotGrantedReason = "forbidden"

    def told(self) -> "NotGranted | None":
        """What its client may hear of it."""
        return None if self.kind == "forbidden" else NotGranted(self.kind, self.reason)


class AppSide(Struct, frozen=True):
    """What a session keeps for the application: its URL and headers, the connection's state, and whether the application knows
    it.

    `credentials` is a keyed hash of what the client showed when the application admitted it, "" when it showed nothing; None
    if somebody else admitted it.
    """

    url: str = ""
    headers: dict[str, str] = {}
    state: State = {}
    known: bool = False
    credentials: str | None = None


class SessionSnapshot(Struct, frozen=True):
    """What survives a lost connection. Positions are the client's own to remember.

    `members`: who it was in which presence set; `names`: its sids so far, so that what excluded one of them stays excluded;
    `app`: None where no application is behind the server.
    """

    ids: str
    subscriptions: dict[str, Subscribed]
    expires_at: float | None = None
    members: dict[str, Member] = {}
    names: tuple[str, ...] = ()
    app: AppSide | None = None


class SessionWrite(Struct, frozen=True):
    """What a node tells a shared store about one of its sessions.

    `version` grows with each write of a node, so that an older one that comes late changes nothing. `ttl`: for how many seconds
    it can be resumed once its connection or its node is gone; 0: not at all. `live`: it is connected; otherwise its time begins
    now. `began`: when the session began, if the store has never heard of it as far as the node knows, and None otherwise.
    """

    sid: str
    snapshot: SessionSnapshot
    version: int
    ttl: float
    live: bool = True
    began: float | None = None


class SessionTaken(Struct, frozen=True):
    """An order to the node of a session, which is no longer that node's: it goes on elsewhere, is over, or was `revoked` by a
    remote disconnect, whose `reconnect` tells the client whether to come back. `stored`: the store had it. Otherwise the store
    does not know the session, or had not heard of it when its identity was revoked."""

    sid: str
    revoked: bool = False
    reconnect: bool = True
    stored: bool = True


class SessionWanted(Struct, frozen=True):
    """Its client came back to another node. What is under way for it may come to its end first, and belongs to what is kept."""

    sid: str


class Renewal(Struct, frozen=True):
    """`lease`: its number, another one whenever it begins anew. `taken`: sessions of the node that were taken from it."""

    lease: int
    taken: tuple[SessionTaken, ...] = ()


class NotGranted(Struct, frozen=True):
    """Why a client does not get what it asked for, and what it can do."""

    reason: NotGrantedReason
    text: str
