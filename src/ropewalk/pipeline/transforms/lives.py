"""What the rows of one sid add up to: a connection with a beginning and an end. Plain Python, row by row.

A restored session has a new sid and names its former ones; the oldest of them names the session through all its connections.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

BEGINS = ("connected", "restored", "alive")


class Life(Struct, frozen=True):
    """A connection that has not ended yet. Times are microseconds: in Spark's state and rows datetimes differ in their zone."""

    session: str
    how: str
    began: int
    seen: int
    subscriptions: int = 0


class Connection(Struct, frozen=True):
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


def lived(life: Life | None, sid: str, row: Mapping[str, Any]) -> tuple[Life | None, Connection | None]:
    """What becomes of a life with its next row: it goes on, or it has ended. Other rows of an unknown one are let be."""
    event, at = row["event"], row["at"]
    detail = msgspec.json.decode(row["detail"] or b"{}", type=_Detail)
    if life is None:
        return (_begun(sid, event, at, detail) if event in BEGINS else None), None
    now = msgspec.structs.replace(life, seen=at, subscriptions=life.subscriptions + (event == "subscribed"))
    if event == "disconnected":
        return None, ended(now, detail.kept, detail.reason)
    return now, None


def ended(life: Life, kept: bool, reason: str) -> Connection:
    lasted = (life.seen - life.began) / 1_000_000
    return Connection(life.session, life.how, life.began, life.seen, lasted, life.subscriptions, kept, reason)


def _begun(sid: str, event: str, at: int, detail: _Detail) -> Life:
    names = detail.snapshot.names
    return Life(names[-1] if names else sid, event, at, at, len(detail.snapshot.subscriptions))
