"""All errors of the client. The type determines how to react.

CableError
├── Unreachable              the server cannot be reached, or speaks another protocol
│   ├── CertificateUntrusted the server's certificate is not trusted; also a PublishError, as nothing was sent
│   └── TlsFailed            the server does not use TLS, or no version of the client's; also a PublishError
├── NoAnswer                 the server did not answer in time
├── Ended                    the program closed this client or this stream
├── Disconnected             the server ended the session permanently, with a `reason`
│   ├── Unauthorized         the token is missing or wrong
│   └── TokenExpired         the token has expired, and so had the refreshed one if there was one
├── SubscriptionRejected     the server rejects this identifier
├── AlreadySubscribed        this client is already subscribed to this identifier
├── HistoryRefused           the server does not let this client read this stream, for a `reason`
├── HistoryUnavailable       the history of a stream cannot be read now
├── NotSupported             this kind of connection does not have the method: see `connect`
├── PresenceUnavailable      the server has no presence for this stream
└── PublishError             the publication was not registered, or this is not known
    ├── KeyRefused           the bearer key is missing or wrong
    ├── PublicationRefused   the publication at `index` of the batch is invalid, for a `reason`
    └── PublishUnavailable   not now, after all retries; sending again with the same uids is safe
        └── PublishUnanswered  no answer: the server may be down
"""

from ropewalk.model.errors import RopewalkError


class CableError(RopewalkError):
    """Base of all errors that the client raises."""


class Unreachable(CableError):
    """No connection could be made, or it was lost."""


STREAM_MAY_BE_AWAY = "it may be waiting for the store or the node that holds the stream, which its /health names"


class NoAnswer(CableError):
    """Answer timeout. `hint`: a possible cause."""

    def __init__(self, seconds: float, hint: str = "") -> None:
        super().__init__(f"the server did not answer within {seconds:g} seconds{f': {hint}' if hint else ''}")


class Ended(CableError):
    """The client or the stream is closed."""


class Disconnected(CableError):
    """The server ended the session permanently."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the server ended the session: {reason or 'no reason given'}")
        self.reason = reason


class Unauthorized(Disconnected):
    """The token is missing or wrong."""


class TokenExpired(Disconnected):
    """The token has expired."""


class SubscriptionRejected(CableError):
    """The server rejected a subscription. `reason` is known over TCP only."""

    def __init__(self, identifier: str, reason: str = "") -> None:
        super().__init__(f"the server rejected the subscription {identifier}{f' ({reason})' if reason else ''}")
        self.identifier = identifier
        self.reason = reason


class AlreadySubscribed(CableError):
    """This client is already subscribed to this identifier. Over TCP also: a message could belong to two subscriptions."""


class HistoryRefused(CableError):
    """The server rejected the read of a stream."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"the server does not allow reading {stream}: {reason or 'no reason given'}")
        self.stream = stream
        self.reason = reason


class HistoryUnavailable(CableError):
    """The server cannot read the history now, because a service it depends on is down."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(f"the history of {stream} cannot be read now: {reason or 'no reason given'}")
        self.stream = stream
        self.reason = reason


OVER_TCP, OVER_HTTP = ("tcp", "tls"), ("http", "https")
"""URL schemes without and with TLS."""


class NotSupported(CableError):
    """This kind of connection does not have the method. Connections with one of `schemes` do."""

    def __init__(self, what: str, schemes: tuple[str, str] = ("ws", "wss")) -> None:
        plain, secure = schemes
        super().__init__(f"{what} is not for this kind of connection: connect to a {plain}:// or {secure}:// address for it")


class PresenceUnavailable(CableError):
    """The server has no presence for this stream."""


class PublishError(CableError):
    """A publication got no position."""


class KeyRefused(PublishError):
    """The key is not accepted for publishing."""


class PublicationRefused(PublishError):
    """A publication is invalid; nothing of its batch was registered."""

    def __init__(self, reason: str, index: int = 0) -> None:
        super().__init__(f"publication {index} was refused: {reason}")
        self.reason = reason
        self.index = index


class PublishUnavailable(PublishError):
    """The server cannot register publications now."""


class PublishUnanswered(PublishUnavailable):
    """No answer: the server may be down."""


class CertificateUntrusted(Unreachable, PublishError):
    """Not retried for publications: another attempt would see the same certificate."""

    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"{url} shows a certificate that is not trusted here: {error}")


class TlsFailed(Unreachable, PublishError):
    """Not retried for publications: another attempt would fail in the same way."""


def disconnected(reason: str) -> Disconnected:
    """The error for the reason of a `disconnect` message."""
    kinds: dict[str, type[Disconnected]] = {"unauthorized": Unauthorized, "token_expired": TokenExpired}
    return kinds.get(reason, Disconnected)(reason)
