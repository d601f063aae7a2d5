"""A publication as it was sent, and the same message once it is registered at a position.

The payload is the raw JSON text that receivers see as `message`. It is never parsed and printed again, so numbers stay
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
"""KSUIDs as text: characters of each, which are letters and digits of ASCII, and the one that comes last."""


SERVER_TYPES = frozenset(
    {
        *("welcome", "ping", "pong", "disconnect", "presence"),
        *("confirm_subscription", "reject_subscription", "confirm_history", "reject_history"),
    }
)
"""Types of what the server says itself. Clients would take a publication of such a type for that, and not for a message."""


PRESENCE_TYPE = "presence"
"""`broadcast_type` of a join or a leave."""


class Publication(Struct, frozen=True, gc=False, omit_defaults=True):
    """A message as a publisher sent it, validated by its endpoint.

    A `uid` deduplicates within its stream for a limited time. `producer` and `sequence` deduplicate without limit: a sequence
    that is not above the producer's last registered one is a repetition. `partition_key` decides the stream's shard: the first
    publication of a stream sets it, "" leaves it as it is, and without any it is the stream's name. `ts_producer` is a time of
    its producer's own, in microseconds since 1970; 0 is none.
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
    """What only clients of Broky are told of a message. `uid` is the text of a KSUID, `partition_key` that of the stream where
    it is another than its name, `ts_producer` as it was published. Each of them may be missing."""

    uid: str = ""
    ts_producer: int = 0
    partition_key: str = ""


def fields_of(uid: str, ts_producer: int, partition_key: str) -> MessageFields | None:
    """None where there is nothing to tell, as of most messages. A uid that is no KSUID is an idempotency key only."""
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
    """Transient messages of one stream that were published together, as they came: `count` of them in one frame, whose format
    only codecs know. Those that cannot send it as it is send the messages, which `take_apart` makes of it. `ordered`: it has a
    partition key, so that it keeps its place also among runs of other streams."""

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
"""What a feed brings, and listeners are given."""


def one_by_one(deliveries: Sequence[Deliverable]) -> Sequence[Registered]:
    """The messages, with runs taken apart."""
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
    """The application's order to end every session of one connection identifier."""

    identifier: str
    reconnect: bool = True


def transient(publication: Publication, now: float) -> Registered:
    """The registered form of a publication that keeps no place in its stream."""
    return Registered(
        publication.stream, publication.payload, now, "", 0, publication.exclude_socket, publication.broadcast_type
    )
