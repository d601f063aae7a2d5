"""JSON records for the `detail` column of session and presence rows in the journal, one record type per kind of row.

Invariant: a session's rows, read in order from any `connected`, `restored` or `alive` row, are enough to resume it, or to
report its end to the application. After an `ended` row nothing is left to do. All rows of a session are in one shard, because
their key is the sid.
"""

from msgspec import Raw, Struct, field

from ropewalk.model.application import State
from ropewalk.model.presence import Member
from ropewalk.model.sessions import AppSide, SessionSnapshot


class SessionOpened(Struct, frozen=True):
    """`connected`: a new session. `resumable`: its client supports resuming by sid."""

    ids: str
    resumable: bool
    expires_at: float | None = None
    app: AppSide | None = None


class SessionCheckpoint(Struct, frozen=True):
    """`restored` and `alive`: the full record of the session. `former` is the sid it was restored from."""

    resumable: bool
    snapshot: SessionSnapshot
    former: str = ""


class SessionClosed(Struct, frozen=True):
    """`disconnected`. `kept`: it can be resumed for a while. `reason` is the close reason, "" when the connection was lost.

    A second row with `kept` false follows when a disconnected session is ended by a remote disconnect. `followed`: an `ended`
    row follows once the session is over; older versions wrote none.
    """

    kept: bool
    reason: str = ""
    followed: bool = False


class SubscriptionGranted(Struct, frozen=True):
    """`subscribed`, and with the identifier only `unsubscribed`. `state`: the application's, if it granted the subscription."""

    identifier: str
    streams: tuple[str, ...] = ()
    whisper: str = ""
    presence: str = ""
    state: State | None = None


class SessionChanged(Struct, frozen=True):
    """`changed`: replaces the application's connection state, or one subscription."""

    app: AppSide | None = None
    subscription: SubscriptionGranted | None = None


class DisconnectRequested(Struct, frozen=True):
    """`revoked`: a remote disconnect. The sessions that it ends have their own rows."""

    ids: str
    reconnect: bool


class MembershipChanged(Struct, frozen=True):
    """`joined` and `left`: the member, in the row's stream. `announced`: an event was published (a member's first join or last
    leave).

    A `left` row without a sid: the presence TTL ended after its sessions were gone.
    """

    id: str
    announced: bool = field(name="told")
    info: Raw = Raw(b"null")

    @classmethod
    def of(cls, member: Member, announced: bool) -> "MembershipChanged":
        return cls(member.id, announced, Raw(member.info or b"null"))

    @property
    def member(self) -> Member:
        info = bytes(self.info)
        return Member(self.id, b"" if info == b"null" else info)
