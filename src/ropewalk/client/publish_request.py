"""The publish request as text: publications to a body, the server's answer to receipts or a typed error. No I/O."""

from typing import Any

import msgspec
from msgspec import Struct

from ropewalk.client.errors import KeyRefused, PublicationRefused, PublishError, PublishUnavailable
from ropewalk.model.messages import Receipt

PATH = "/api/publish"
RETRY_STATUSES = frozenset({429, 500, 502, 503, 504})

_HINTS = {404: ": is it a Ropewalk server, and was it started with a --secret or a key for publishing?"}


class Draft(Struct, frozen=True):
    """A publication to be sent. `data` is anything that JSON can say; `msgspec.Raw` passes JSON text on as it is.

    `partition_key` is set by the first publication of a stream, for good; streams that share one share a shard of the server.
    A draft without a uid gets one when it is sent. A transient one keeps no place in its stream, and its uid does not count.
    """

    stream: str
    data: Any
    uid: str = ""
    transient: bool = False
    exclude_socket: str = ""
    broadcast_type: str = ""
    partition_key: str = ""


class _Registered(Struct):
    stream: str
    epoch: str = ""
    offset: int = 0
    duplicate: bool = False


class _Answer(Struct):
    publications: list[_Registered]


class _Refusal(Struct):
    error: str = ""
    index: int = 0


_answer = msgspec.json.Decoder(_Answer)
_refusal = msgspec.json.Decoder(_Refusal)


def headers(key: str | None) -> dict[str, str]:
    """An empty key is none, as None is: the server may be a public one."""
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def body(drafts: list[Draft]) -> bytes:
    return msgspec.json.encode([_entry(draft) for draft in drafts])


def receipts(status: int, answer: bytes) -> list[Receipt]:
    """What was registered. Raises the PublishError that fits what the server answered."""
    if status != 201:
        raise _error(status, answer)
    try:
        publications = _answer.decode(answer).publications
    except (msgspec.DecodeError, RecursionError) as error:
        raise PublishError(f"the server accepted, but its answer cannot be read: {error}") from error
    return [Receipt(item.stream, item.epoch, item.offset, item.duplicate) for item in publications]


def _entry(draft: Draft) -> dict[str, Any]:
    meta = {"exclude_socket": draft.exclude_socket, "broadcast_type": draft.broadcast_type, "transient": draft.transient}
    entry: dict[str, Any] = {"stream": draft.stream, "data": msgspec.json.encode(draft.data).decode()}
    if draft.uid:
        entry["uid"] = draft.uid
    if draft.partition_key:
        entry["partition_key"] = draft.partition_key
    if said := {name: value for name, value in meta.items() if value}:
        entry["meta"] = said
    return entry


def _error(status: int, answer: bytes) -> PublishError:
    try:
        refusal = _refusal.decode(answer)
    except (msgspec.DecodeError, RecursionError):
        refusal = _Refusal()
    reason = f"{refusal.error or f'the server answered {status}'}{_HINTS.get(status, '')}"
    match status:
        case 401:
            return KeyRefused(reason)
        case 400 | 409 | 413 | 422:
            return PublicationRefused(reason, refusal.index)
        case _ if status in RETRY_STATUSES:
            return PublishUnavailable(reason)
        case _:
            return PublishError(reason)
