"""Publish requests over HTTP: publications to a body, the answer to receipts or a typed error, and when to retry. No I/O."""

import math
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ropewalk.client.errors import KeyRefused, PublicationRefused, PublishError, PublishUnanswered, PublishUnavailable
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.messages import Receipt

PATH = "/api/publish"
RETRY_STATUSES = frozenset({429, 500, 502, 503, 504})

ATTEMPTS = 10
"""Attempts for a publication or a push. With the default backoff they take 21 to 43 seconds: a restart takes less."""

_MIN_TIMEOUT = 0.001  # seconds: 0 means "no limit" to some libraries

_HINTS = {404: ": is it a Ropewalk server, and was it started with a --secret or a key for publishing?"}


class Draft(Struct, frozen=True):
    """A publication to be sent. `data` is any JSON value; `msgspec.Raw` is sent as the JSON text that it is.

    The first publication of a stream sets its `partition_key` permanently; streams with the same one share a shard. A draft
    without a uid gets one when it is sent. A transient one has no position, and its uid is ignored.
    """

    stream: str
    data: Any
    uid: str = ""
    transient: bool = False
    exclude_socket: str = ""
    broadcast_type: str = ""
    partition_key: str = ""


class DirectOptions(TypedDict, total=False):
    """Optional arguments of `ropewalk.publish`: fields of a Draft."""

    uid: str
    transient: bool
    exclude_socket: str
    partition_key: str


class DraftOptions(DirectOptions, total=False):
    """Optional arguments of `publish` of a client: fields of a Draft."""

    broadcast_type: str


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
    """Public servers need no key: None or an empty one."""
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def encode_batch(drafts: Sequence[Draft]) -> bytes:
    return msgspec.json.encode([_entry(draft) for draft in drafts])


def decode_receipts(status: int, answer: bytes) -> list[Receipt]:
    """Raises the PublishError for the server's answer."""
    if status != 201:
        raise _error(status, answer)
    try:
        publications = _answer.decode(answer).publications
    except (msgspec.DecodeError, RecursionError) as error:
        raise PublishError(f"the server accepted, but its answer cannot be read: {error}") from error
    return [Receipt(item.stream, item.epoch, item.offset, item.duplicate) for item in publications]


def _entry(draft: Draft) -> dict[str, Any]:
    options = {"exclude_socket": draft.exclude_socket, "broadcast_type": draft.broadcast_type, "transient": draft.transient}
    entry: dict[str, Any] = {"stream": draft.stream, "data": msgspec.json.encode(draft.data).decode()}
    if draft.uid:
        entry["uid"] = draft.uid
    if draft.partition_key:
        entry["partition_key"] = draft.partition_key
    if meta := {name: value for name, value in options.items() if value}:
        entry["meta"] = meta
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


class NotSent(PublishUnanswered):
    """No connection was made, so nothing was registered."""


class RetryOptions(TypedDict, total=False):
    """Optional arguments of Publisher and Pusher.

    Args:
        attempts: Attempts for each publication or push.
        backoff: The pauses between them.
        chance: Spreads these pauses.
    """

    attempts: int
    backoff: Backoff
    chance: Chance


class RetryLimits(Struct, frozen=True):
    """Limits for a batch. `timeout`: seconds of one attempt. `total`: seconds of all attempts and pauses."""

    attempts: int = ATTEMPTS
    backoff: Backoff = Backoff()
    timeout: float = 10.0
    total: float = math.inf
    chance: Chance = random.random


class Attempts:
    """The attempts to send one batch. Send `body` within `timeout()`; after a failure wait for `pause()` and send it again.

    A publication without an answer may be registered, so it is sent again under the same uid. A transient one has no uid,
    and is sent again only if it was not sent.
    """

    def __init__(self, drafts: Sequence[Draft], limits: RetryLimits, clock: Callable[[], float] = time.monotonic) -> None:
        named = [draft if draft.uid or draft.transient else replace(draft, uid=uuid.uuid4().hex) for draft in drafts]
        self.body = encode_batch(named)
        self._repeatable = not any(draft.transient for draft in named)
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.total
        self._failed = 0

    def timeout(self) -> float:
        """Seconds for the next attempt."""
        return max(min(self._limits.timeout, self._left()), _MIN_TIMEOUT)

    def pause(self, failure: PublishUnavailable) -> float:
        """Seconds until the next attempt. Raises the failure if there must not be one."""
        pause = self._limits.backoff.delay(self._failed, self._limits.chance)
        self._failed += 1
        safe = self._repeatable or isinstance(failure, NotSent)
        if not safe or self._failed >= self._limits.attempts or pause >= self._left():
            raise failure
        return pause

    def _left(self) -> float:
        return self._deadline - self._clock()
