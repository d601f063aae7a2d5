"""Channels that decide by the identifier alone: the name of a public stream, or a name that the application signed.

Signed names need a secret. A channel's decision is final; None means that the identifier names another channel.
"""

from abc import ABC, abstractmethod
from functools import lru_cache

import msgspec

from ropewalk.core.signatures import verify_stream
from ropewalk.model.nesting import is_too_deep
from ropewalk.model.sessions import Rejected, Subscribed

MAX_STREAM_NAME_BYTES = 512

CACHED_IDENTIFIERS, MAX_CACHED_IDENTIFIER_LENGTH = 1024, 1024
"""The cache also saves memory: subscriptions to the same stream share one record."""

_decode_fields = msgspec.json.Decoder(dict[str, object]).decode


class _NamedStreams(ABC):
    """A channel that decides by the identifier alone."""

    def __init__(self) -> None:
        self._cached_decision = lru_cache(maxsize=CACHED_IDENTIFIERS)(self._decide)

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None:
        cached = len(identifier) <= MAX_CACHED_IDENTIFIER_LENGTH
        return self._cached_decision(identifier) if cached else self._decide(identifier)

    @abstractmethod
    def _decide(self, identifier: str) -> Subscribed | Rejected | None: ...


class PubSubChannel(_NamedStreams):
    """`$pubsub`: with `stream_name` for public streams, or `signed_stream_name`. If both are given, the signed one is used.

    Whispers and presence apply to the stream itself: always on a public one, by `whisper` and `presence` on a signed one.
    """

    channel = "$pubsub"

    def __init__(
        self,
        public: bool = False,
        secret: str = "",
        whisper: bool = False,
        presence: bool = False,
        max_stream_name: int = MAX_STREAM_NAME_BYTES,
    ) -> None:
        super().__init__()
        self._public = public
        self._secret = secret
        self._whisper = whisper
        self._presence = presence
        self._max_stream_name = max_stream_name

    def _decide(self, identifier: str) -> Subscribed | Rejected | None:
        fields = _decode_identifier(identifier, self.channel)
        if fields is None:
            return None
        if fields.get("signed_stream_name") is not None:
            return self._subscribe_signed(fields["signed_stream_name"])
        if fields.get("stream_name") is not None:
            return self._subscribe_public(fields["stream_name"])
        return Rejected("neither stream_name nor signed_stream_name is given")

    def _subscribe_signed(self, given: object) -> Subscribed | Rejected:
        name = _verify_name(given, self._secret, self._max_stream_name, "--streams_secret")
        if isinstance(name, Rejected):
            return name
        return Subscribed((name,), name if self._whisper else "", name if self._presence else "")

    def _subscribe_public(self, given: object) -> Subscribed | Rejected:
        if not self._public:
            return Rejected("streams are not public: sign the name, or set --public_streams")
        name = _check_name(given, self._max_stream_name)
        return name if isinstance(name, Rejected) else Subscribed((name,), name, name)


class SignedNameChannel(_NamedStreams):
    """A channel of another library that carries a signed stream name in one of its fields. No whispers, no presence."""

    def __init__(self, channel: str, key: str, secret: str, setting: str, max_stream_name: int = MAX_STREAM_NAME_BYTES) -> None:
        """`key` is the field with the signed name; `setting` is the secret's flag, for the error if it is not set."""
        super().__init__()
        self._channel = channel
        self._key = key
        self._secret = secret
        self._setting = setting
        self._max_stream_name = max_stream_name

    def _decide(self, identifier: str) -> Subscribed | Rejected | None:
        fields = _decode_identifier(identifier, self._channel)
        if fields is None:
            return None
        name = _verify_name(fields.get(self._key), self._secret, self._max_stream_name, self._setting)
        return name if isinstance(name, Rejected) else Subscribed((name,))


def turbo_streams(secret: str, max_stream_name: int = MAX_STREAM_NAME_BYTES) -> SignedNameChannel:
    """The channel of Hotwire's `turbo_stream_from`."""
    return SignedNameChannel("Turbo::StreamsChannel", "signed_stream_name", secret, "--turbo_streams_secret", max_stream_name)


def cable_ready(secret: str, max_stream_name: int = MAX_STREAM_NAME_BYTES) -> SignedNameChannel:
    """The channel of `cable_ready_stream_from`."""
    return SignedNameChannel("CableReady::Stream", "identifier", secret, "--cable_ready_secret", max_stream_name)


def _decode_identifier(identifier: str, channel: str) -> dict[str, object] | None:
    """Returns the fields if the identifier is JSON and names this channel."""
    try:
        fields = {} if is_too_deep(identifier) else _decode_fields(identifier)
    except ValueError:
        return None
    return fields if fields.get("channel") == channel else None


def _verify_name(given: object, secret: str, max_bytes: int, setting: str) -> str | Rejected:
    if not secret:
        return Rejected(f"signed stream names need a secret: set --secret or {setting}")
    name = verify_stream(given, secret) if isinstance(given, str) else None
    if name is None:
        return Rejected("the stream name is not signed with the server's secret")
    return _check_name(name, max_bytes)


def _check_name(name: object, max_bytes: int) -> str | Rejected:
    if not isinstance(name, str) or not name:
        return Rejected("the stream name must be a string that is not empty", "malformed")
    if len(name.encode()) > max_bytes:
        return Rejected(f"the stream name is longer than {max_bytes} bytes", "malformed")
    return name
