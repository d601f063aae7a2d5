"""The other end: a client for Python programs over asyncio.

    async with connect("http://127.0.0.1:8080") as client:
        async for message in await client.subscribe("chat/1"):
            ...

It reconnects and resumes by itself, yields each position once and in order, and says what could not be delivered.
"""

from ropewalk.client.client import Client, connect
from ropewalk.client.errors import (
    AlreadySubscribed,
    CableError,
    CertificateUntrusted,
    Disconnected,
    Ended,
    KeyRefused,
    NoAnswer,
    PresenceUnavailable,
    PublicationRefused,
    PublishError,
    PublishUnavailable,
    SubscriptionRejected,
    TokenExpired,
    Unauthorized,
    Unreachable,
)
from ropewalk.client.events import Event, Gap, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.publish_request import Draft
from ropewalk.client.publisher import Publisher
from ropewalk.client.pusher import Pusher
from ropewalk.client.stream import Stream
from ropewalk.core.backoff import Backoff
from ropewalk.model.messages import Position, Receipt

__all__ = [
    "AlreadySubscribed",
    "Backoff",
    "CableError",
    "CertificateUntrusted",
    "Client",
    "Disconnected",
    "Draft",
    "Ended",
    "Event",
    "Gap",
    "KeyRefused",
    "Message",
    "NoAnswer",
    "Position",
    "PresenceChange",
    "PresenceState",
    "PresenceUnavailable",
    "PresentMember",
    "PublicationRefused",
    "PublishError",
    "PublishUnavailable",
    "Publisher",
    "Pusher",
    "Receipt",
    "Stream",
    "SubscriptionRejected",
    "TokenExpired",
    "Unauthorized",
    "Unreachable",
    "connect",
]
