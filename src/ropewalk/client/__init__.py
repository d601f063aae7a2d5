"""The client for asyncio programs.

    async with connect("http://127.0.0.1:8080") as client:
        async for message in await client.subscribe("chat/1"):
            ...

It reconnects and resumes, yields each position once and in order, and reports what could not be delivered.
"""

from ropewalk.client.client import Client, connect
from ropewalk.client.errors import (
    AlreadySubscribed,
    CableError,
    CertificateUntrusted,
    Disconnected,
    Ended,
    HistoryRefused,
    HistoryUnavailable,
    KeyRefused,
    NoAnswer,
    NotSupported,
    PresenceUnavailable,
    PublicationRefused,
    PublishError,
    PublishUnavailable,
    SubscriptionRejected,
    TlsFailed,
    TokenExpired,
    Unauthorized,
    Unreachable,
)
from ropewalk.client.events import BrokyMessage, Event, Gap, KeptMessages, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.publish_request import Draft
from ropewalk.client.publisher import Publisher
from ropewalk.client.pusher import Pusher, new_uid
from ropewalk.client.stream import Stream
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Position, Receipt
from ropewalk.protocol.broky.frames import Format

__all__ = [
    "AlreadySubscribed",
    "Backoff",
    "BrokyMessage",
    "CableError",
    "CertificateUntrusted",
    "Client",
    "Disconnected",
    "Draft",
    "Ended",
    "Event",
    "Format",
    "Gap",
    "HistoryRefused",
    "HistoryUnavailable",
    "KeptMessages",
    "KeyRefused",
    "Message",
    "NoAnswer",
    "NotSupported",
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
    "TlsFailed",
    "TokenExpired",
    "Unauthorized",
    "Unreachable",
    "UserMistake",
    "connect",
    "new_uid",
]
