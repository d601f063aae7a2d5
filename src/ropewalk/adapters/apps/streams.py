"""Channels whose answer is in the identifier itself: a public stream's name, or a name that the application signed.

A signed name is believed only with a secret, and the channel's own answer is final: None is for other channels.
"""

from abc import ABC, abstractmethod
from functools import lru_cache

import msgspec

from ropewalk.core.signatures import verify_stream
from ropewalk.model.nesting import too_deep
from ropewalk.model.sessions import Rejected, Subscribed

MAX_STREAM_NAME = 512  # bytes

REMEMBERED, REMEMBERED_LENGTH = 1024, 1024
"""Identifiers whose answer a channel remembers, and how long they may be. One answer for all who subscribe to the same also
takes less memory than one for each."""

_decode_fields = msgspec.json.Decoder(dict[str, object]).decode


class _NamedStreams(ABC):
    """A channel that answers by the identifier alone."""

    def __init__(self) -> None:
        self._remembered = lru_cache(maxsize=REMEMBERED)(self._answer)

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None:
        return self._remembered(identifier) if len(identifier) <= REMEMBERED_LENGTH else self._answer(identifier)

    @abstractmethod
    def _answer(self, identifier: str) -> Subscribed | Rejected | None: ...


class PubSubChannel(_NamedStreams):
    """`$pubsub`: `stream_name` where streams are public, `signed_stream_name` everywhere; with both, the signed one decides.

    Whispers and presence go to the stream itself: always on a public one, by `whisper` and `presence` on a signed one.
    """

    channel = "$pubsub"

    def __init__(
        self,
        public: bool = False,
        secret: str = "",
        whisper: bool = False,
        presence: bool = False,
        max_stream_name: int = MAX_STREAM_NAME,
    ) -> None:
        super().__init__()
        self._public = public
        self._secret = secret
        self._whisper = whisper
        self._presence = presence
        self._max_stream_name = max_stream_name

    def _answer(self, identifier: str) -> Subscribed | Rejected | None:
        fields = _fields_of(identifier, self.channel)
        if fields is None:
            return None
        if fields.get("signed_stream_name") is not None:
            return self._signed(fields["signed_stream_name"])
        if fields.get("stream_name") is not None:
            return self._open(fields["stream_name"])
        return Rejected("neither stream_name nor signed_stream_name is given")

    def _signed(self, given: object) -> Subscribed | Rejected:
        name = _verified(given, self._secret, self._max_stream_name, "--streams_secret")
        if isinstance(name, Rejected):
            return name
        return Subscribed((name,), name if self._whisper else "", name if self._presence else "")

    def _open(self, given: object) -> Subscribed | Rejected:
        if not self._public:
            return Rejected("streams are not public here: sign the name, or set --public_streams")
        name = _bounded(given, self._max_stream_name)
        return name if isinstance(name, Rejected) else Subscribed((name,), name, name)


class SignedNameChannel(_NamedStreams):
    """A channel of another library that carries a signed stream name in one of its fields. No whispers, no presence."""

    def __init__(self, channel: str, key: str, secret: str, setting: str, max_stream_name: int = MAX_STREAM_NAME) -> None:
        """`setting` is the flag that gives the secret, for the operator who forgot it."""
        super().__init__()
        self._channel = channel
        self._key = key
        self._secret = secret
        self._setting = setting
        self._max_stream_name = max_stream_name

    def _answer(self, identifier: str) -> Subscribed | Rejected | None:
        fields = _fields_of(identifier, self._channel)
        if fields is None:
            return None
        name = _verified(fields.get(self._key), self._secret, self._max_stream_name, self._setting)
        return name if isinstance(name, Rejected) else Subscribed((name,))


def turbo_streams(secret: str, max_stream_name: int = MAX_STREAM_NAME) -> SignedNameChannel:
    """What `turbo_stream_from` of Hotwire subscribes to."""
    return SignedNameChannel("Turbo::StreamsChannel", "signed_stream_name", secret, "--turbo_streams_secret", max_stream_name)


def cable_ready(secret: str, max_stream_name: int = MAX_STREAM_NAME) -> SignedNameChannel:
    """What `cable_ready_stream_from` subscribes to."""
    return SignedNameChannel("CableReady::Stream", "identifier", secret, "--cable_ready_secret", max_stream_name)


def _fields_of(identifier: str, channel: str) -> dict[str, object] | None:
    """The identifier's fields if it is JSON and names this channel."""
    try:
        fields = {} if too_deep(identifier) else _decode_fields(identifier)
    except ValueError:
        return None
    return fields if fields.get("channel") == channel else None


def _verified(given: object, secret: str, max_bytes: int, setting: str) -> str | Rejected:
    if not secret:
        return Rejected(f"a signed stream name cannot be checked without a secret: set --secret or {setting}")
    name = verify_stream(given, secret) if isinstance(given, str) else None
    return Rejected("the stream name is not signed with our secret") if name is None else _bounded(name, max_bytes)


def _bounded(name: object, max_bytes: int) -> str | Rejected:
    if not isinstance(name, str) or not name:
        return Rejected("the stream name must be a string that is not empty", "malformed")
    if len(name.encode()) > max_bytes:
        return Rejected(f"the stream name is longer than {max_bytes} bytes", "malformed")
    return name
