"""A publication as its publisher sent it, and the same message once it is registered at a position.

The payload is the raw JSON text that receivers get as `message`. It is never decoded and encoded again, so numbers stay
exact.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

from msgspec import Struct


class Position(Struct, frozen=True, gc=False):
    """A position in a stream: the epoch, which names one unbroken run of offsets, and the offset in it. Always used
    together."""

    epoch: str
    offset: int


KSUID_LENGTH = 27
LAST_KSUID = "aWgEPTl1tmebfsQzFP4bxwgy80V"
"""KSUIDs as text: their number of characters, which are ASCII letters and digits, and the highest one."""


SERVER_TYPES = frozenset(
    {
        *("welcome", "ping", "pong", "disconnect", "presence"),
        *("confirm_subscription", "reject_subscription", "confirm_history", "reject_history"),
    }
)
"""Types of the server's own messages. Clients would mistake a publication of such a type for one of them."""


PRESENCE_TYPE = "presence"
"""`broadcast_type` of a join or a leave."""


class Publication(Struct, frozen=True, gc=False, omit_defaults=True):
    """A message as a publisher sent it, validated by its endpoint.

    Args:
        uid: an idempotency key, which deduplicates within its stream for a limited time.
        producer: with `sequence` it deduplicates without a time limit: a sequence that is not above the producer's last
            registered one is a duplicate.
        partition_key: decides the stream's shard. The first publication of a stream sets it, "" keeps it; the default is the
            stream's name.
        ts_producer: the producer's own timestamp in microseconds since 1970; 0 for none.
    """

    stream: str
    payload: bytes
    exclude_socket: str = ""
    broadcast_type: str = ""
    transient: bool = False
    uid: str = ""
    producer: str = ""
    sequence: int = 0
    partition_key: str = ""
    ts_producer: int = 0


class MessageFields(Struct, frozen=True, array_like=True, gc=False):
    """Fields that are sent to clients of Broky only. Each may be missing. `uid` is the text of a KSUID; `partition_key` is set
    if it is not the stream's name."""

    uid: str = ""
    ts_producer: int = 0
    partition_key: str = ""


def message_fields(uid: str, ts_producer: int, partition_key: str) -> MessageFields | None:
    """Returns None if all are missing, as for most messages. A uid that is not a KSUID is an idempotency key only."""
    shown = uid if len(uid) == KSUID_LENGTH and uid.isascii() and uid.isalnum() and uid <= LAST_KSUID else ""
    return MessageFields(shown, ts_producer, partition_key) if shown or ts_producer or partition_key else None


class Registered(Struct, frozen=True, gc=False, omit_defaults=True):
    """A publication with its position and the broker's time. A transient one has no position: offset 0, epoch empty."""

    stream: str
    payload: bytes
    timestamp: float
    epoch: str = ""
    offset: int = 0
    exclude_socket: str = ""
    broadcast_type: str = ""
    fields: MessageFields | None = None

    count: ClassVar[int] = 1
    ordered: ClassVar[bool] = False

    @property
    def size(self) -> int:
        return len(self.payload)

    @property
    def expendable(self) -> bool:
        """Whether it may be dropped for a slow connection: it has no position, and no presence depends on it."""
        return not self.offset and self.broadcast_type != PRESENCE_TYPE


class TransientRun(Struct, frozen=True, gc=False):
    """Transient messages of one stream that were published together, as one frame.

    Args:
        frame: in a format that only codecs know. A codec that cannot send it sends the messages of `take_apart`.
        count: the number of messages.
        ordered: whether it has a partition key, so that it keeps its order also among runs of other streams.
    """

    stream: str
    frame: bytes
    count: int
    timestamp: float
    take_apart: "Callable[[TransientRun], list[Registered]]"
    ordered: bool = False

    epoch: ClassVar[str] = ""
    offset: ClassVar[int] = 0
    exclude_socket: ClassVar[str] = ""
    expendable: ClassVar[bool] = True
    fields: ClassVar[None] = None

    @property
    def size(self) -> int:
        return len(self.frame)

    def messages(self) -> list[Registered]:
        return self.take_apart(self)


Deliverable = Registered | TransientRun
"""Delivered by a feed to its listeners."""


def expand_runs(deliveries: Sequence[Deliverable]) -> Sequence[Registered]:
    """Returns the single messages, with those of the runs."""
    for delivery in deliveries:
        if type(delivery) is TransientRun:
            break
    else:
        return cast(Sequence[Registered], deliveries)
    found: list[Registered] = []
    for delivery in deliveries:
        if isinstance(delivery, TransientRun):
            found += delivery.messages()
        else:
            found.append(delivery)
    return found


class Receipt(Struct, frozen=True, gc=False, omit_defaults=True):
    """The result of one publication. `duplicate`: its idempotency key was registered before, and this is the original
    position. Encoded as publishers see it."""

    stream: str
    epoch: str
    offset: int
    duplicate: bool = False


class RemoteDisconnect(Struct, frozen=True):
    """The application's request to end all sessions of a connection identifier."""

    identifier: str
    reconnect: bool = True


def build_transient(publication: Publication, now: float) -> Registered:
    """The registered form of a transient publication, which has no position."""
    return Registered(
        publication.stream, publication.payload, now, "", 0, publication.exclude_socket, publication.broadcast_type
    )
