"""The records in which sessions are kept, and what is said of them to their nodes."""

from msgspec import Struct

from ropewalk.adapters.backends.nats.names import token
from ropewalk.model.sessions import SessionTaken


class SessionRecord(Struct, frozen=True):
    """`deadline` is None while the session lives on `node`. `formers`: earlier sids that are still valid for it, because no
    client may have heard of this one. `origin`: the sequence of the first record that it comes from, 0 for this one itself."""

    sid: str
    node: str
    ids: str
    snapshot: bytes
    version: int
    ttl: float
    deadline: float | None = None
    formers: tuple[str, ...] = ()
    origin: int = 0


class Gone(Struct, frozen=True, tag=True):
    """`ended_by`: the node that removed it; "" where it was taken by somebody. `order`: what its node is told."""

    order: SessionTaken
    until: float
    ended_by: str = ""


class Kept(Struct, frozen=True, tag=True):
    record: SessionRecord


class Revoked(Struct, frozen=True):
    ids: str
    when: float
    reconnect: bool


class TakenOrder(Struct, frozen=True):
    node: str
    order: SessionTaken


def session_key(sid: str) -> str:
    return f"s.{token(sid)}"


def order_key(node: str, sid: str) -> str:
    return f"o.{token(node)}.{token(sid)}"
