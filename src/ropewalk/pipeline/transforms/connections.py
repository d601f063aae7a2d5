"""The connections of a session, computed from its journal rows: each has a beginning and an end. Plain Python, row by row.

A restored session has a new sid and names its former ones; the oldest of them names the session through all its connections.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

BEGINS = ("connected", "restored", "alive")


class OpenConnection(Struct, frozen=True):
    """A connection that has not ended yet. Times are microseconds: in Spark's state and rows datetimes differ in their zone."""

    session: str
    how: str
    began: int
    seen: int
    subscriptions: int = 0


class ClosedConnection(Struct, frozen=True):
    """One that has. `reason` is that of its closing, "" when the link was lost, "vanished" when nothing was heard any more."""

    session: str
    how: str
    began: int
    ended: int
    seconds: float
    subscriptions: int
    kept: bool
    reason: str


class _Snapshot(Struct):
    subscriptions: dict[str, msgspec.Raw] = {}
    names: tuple[str, ...] = ()


class _Detail(Struct):
    """What is needed of the details of all kinds."""

    snapshot: _Snapshot = msgspec.field(default_factory=_Snapshot)
    kept: bool = False
    reason: str = ""


def advance(
    open_connection: OpenConnection | None, sid: str, row: Mapping[str, Any]
) -> tuple[OpenConnection | None, ClosedConnection | None]:
    """The connection after its next row: still open, or closed. Rows of an unknown connection are ignored."""
    event, at = row["event"], row["at"]
    detail = msgspec.json.decode(row["detail"] or b"{}", type=_Detail)
    if open_connection is None:
        return (_begun(sid, event, at, detail) if event in BEGINS else None), None
    now = msgspec.structs.replace(
        open_connection, seen=at, subscriptions=open_connection.subscriptions + (event == "subscribed")
    )
    if event == "disconnected":
        return None, ended(now, detail.kept, detail.reason)
    return now, None


def ended(open_connection: OpenConnection, kept: bool, reason: str) -> ClosedConnection:
    lasted = (open_connection.seen - open_connection.began) / 1_000_000
    return ClosedConnection(
        open_connection.session,
        open_connection.how,
        open_connection.began,
        open_connection.seen,
        lasted,
        open_connection.subscriptions,
        kept,
        reason,
    )


def _begun(sid: str, event: str, at: int, detail: _Detail) -> OpenConnection:
    names = detail.snapshot.names
    return OpenConnection(names[-1] if names else sid, event, at, at, len(detail.snapshot.subscriptions))
