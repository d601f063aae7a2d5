"""What can go wrong at the client's end, as one tree. The type says what to do about it.

CableError
├── Unreachable              the server cannot be reached, or does not speak the protocol
│   ├── CertificateUntrusted its certificate is not believed here; a PublishError too, for nothing was sent
│   └── TlsFailed            no TLS is spoken there, or none that both ends know; a PublishError too, as above
├── NoAnswer                 the server is there and said nothing in time
├── Ended                    this client or this stream was closed by its own program
├── Disconnected             the server ended the session and said not to come back; `reason` is its word
│   ├── Unauthorized         the token is missing or wrong
│   └── TokenExpired         a new token is needed, and there was no refresher, or its token had expired too
├── SubscriptionRejected     the server refuses this identifier
├── AlreadySubscribed        one client holds one stream object for each identifier
├── HistoryRefused           the server does not let this client read this stream; `reason` says why
├── HistoryUnavailable       what the stream keeps cannot be read now
├── NotSupported             a verb that this kind of connection does not have: see `connect`
├── PresenceUnavailable      the server does not answer presence queries for this stream
└── PublishError             nothing was registered, or it is not known whether it was
    ├── KeyRefused           the bearer key is missing or wrong
    ├── PublicationRefused   `index` of the batch cannot be registered; `reason` says why
    └── PublishUnavailable   not now, after all retries; sending again with the same uids is safe
        └── PublishUnanswered  nobody answered: the server may not be there
"""

from ropewalk.model.errors import RopewalkError


class CableError(RopewalkError):
    """Whatever the client raises on purpose."""


class Unreachable(CableError):
    """No connection could be made, or it broke while something was sent."""


STREAM_MAY_BE_AWAY = "it may be waiting for the store or the node that holds the stream, which its /health names"


class NoAnswer(CableError):
    """The time for an answer is over. `hint` is what may be the reason."""

    def __init__(self, seconds: float, hint: str = "") -> None:
        super().__init__(f"the server did not answer within {seconds:g} seconds{f': {hint}' if hint else ''}")


class Ended(CableError):
    """The client or the stream is closed already."""


class Disconnected(CableError):
    """The session is over for good."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server ended the session: {reason or 'no reason given'}")
        self.reason = reason


class Unauthorized(Disconnected):
    """The server does not know this client."""


class TokenExpired(Disconnected):
    """The client's token is no longer valid."""


class SubscriptionRejected(CableError):
    """The server said no to a subscription. `reason` is why, where it said that: over TCP it does."""

    def __init__(self, identifier: str, reason: str = "") -> None:
        super().__init__(f"the server rejected the subscription {identifier}{f' ({reason})' if reason else ''}")
        self.identifier = identifier
        self.reason = reason


class AlreadySubscribed(CableError):
    """This identifier has a stream object already; over TCP also: a message could be for either of two subscriptions."""


class HistoryRefused(CableError):
    """The server said no to reading a stream. `reason` is why."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"the server does not let {stream} be read: {reason or 'no reason given'}")
        self.stream = stream
        self.reason = reason


class HistoryUnavailable(CableError):
    """Something that the server depends on is down. `reason` is its word."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"what {stream} keeps cannot be read now: {reason or 'no reason given'}")
        self.stream = stream
        self.reason = reason


OVER_TCP, OVER_HTTP = ("tcp", "tls"), ("http", "https")
"""Schemes of addresses, without TLS and with it."""


class NotSupported(CableError):
    """What this kind of connection has no word for. Addresses with one of `schemes` have."""

    def __init__(self, what: str, schemes: tuple[str, str] = ("ws", "wss")) -> None:
        plain, secure = schemes
        super().__init__(f"{what} is not for this kind of connection: connect to a {plain}:// or {secure}:// address for it")


class PresenceUnavailable(CableError):
    """There is no presence for this stream."""


class PublishError(CableError):
    """A publication that did not get its position."""


class KeyRefused(PublishError):
    """The key is not accepted for publishing."""


class PublicationRefused(PublishError):
    """A publication the server cannot accept; nothing of its batch was registered."""

    def __init__(self, reason: str, index: int = 0) -> None:
        super().__init__(f"publication {index} was refused: {reason}")
        self.reason = reason
        self.index = index


class PublishUnavailable(PublishError):
    """The server cannot register publications now."""


class PublishUnanswered(PublishUnavailable):
    """Nobody answered: the server may not be there."""


class CertificateUntrusted(Unreachable, PublishError):
    """Another attempt would see the same certificate: publications are not sent again."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"{url} shows a certificate that is not trusted here: {error}")


class TlsFailed(Unreachable, PublishError):
    """Another attempt would fail as this one did: publications are not sent again."""


def disconnected(reason: str) -> Disconnected:
    """The error that fits the reason of a `disconnect` message."""
    kinds: dict[str, type[Disconnected]] = {"unauthorized": Unauthorized, "token_expired": TokenExpired}
    return kinds.get(reason, Disconnected)(reason)
