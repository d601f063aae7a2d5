"""What the `detail` of a session's rows in the journal says, kind by kind, as JSON text.

The rule it keeps: a session's rows, read in order from any `connected`, `restored` or `alive` on, tell all that is needed to
resume it, or to tell the application that it is gone, until an `ended` row says that neither is left to do. They share one
shard, for their key is the sid.
"""

from msgspec import Raw, Struct

from ropewalk.model.application import State
from ropewalk.model.presence import Member
from ropewalk.model.sessions import AppSide, SessionSnapshot


class Arrived(Struct, frozen=True):
    """`connected`: a new session. `resumable`: its client knows how to come back with its sid."""

    ids: str
    resumable: bool
    expires_at: float | None = None
    app: AppSide | None = None


class Whole(Struct, frozen=True):
    """`restored` and `alive`: everything about the session now. `former` is the sid it was restored from."""

    resumable: bool
    snapshot: SessionSnapshot
    former: str = ""


class Departed(Struct, frozen=True):
    """`disconnected`. `kept`: it can be resumed for a while; `reason` is the one of its closing, "" when the link was lost.

    A second one with `kept` false follows when a session that is away is ended by a remote disconnect. `followed`: an `ended`
    row follows once the session is over; older versions wrote none.
    """

    kept: bool
    reason: str = ""
    followed: bool = False


class Granted(Struct, frozen=True):
    """`subscribed`, and with the identifier alone `unsubscribed`. `state`: what the application keeps, if it granted it."""

    identifier: str
    streams: tuple[str, ...] = ()
    whisper: str = ""
    presence: str = ""
    state: State | None = None


class Changed(Struct, frozen=True):
    """`changed`: the connection's side of the application, or one subscription, replaces what was said of it before."""

    app: AppSide | None = None
    subscription: Granted | None = None


class Ordered(Struct, frozen=True):
    """`revoked`: the remote disconnect. Its sessions have rows of their own."""

    ids: str
    reconnect: bool


class Seated(Struct, frozen=True):
    """`joined` and `left`: who, in the row's stream. `told`: others heard of it, as of a member's first join and last leave.

    A `left` without a sid is the end of a grace: its sessions are gone already.
    """

    id: str
    told: bool
    info: Raw = Raw(b"null")

    @classmethod
    def of(cls, member: Member, told: bool) -> "Seated":
        return cls(member.id, told, Raw(member.info or b"null"))

    @property
    def member(self) -> Member:
        info = bytes(self.info)
        return Member(self.id, b"" if info == b"null" else info)
