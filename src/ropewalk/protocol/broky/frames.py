"""The frames as records: one class for each table of the schema, with its fields in the same order and with the same defaults.

The annotations define how a field is encoded; `tables` derives everything else from them. Times are microseconds since 1970.
"""

from enum import IntEnum
from typing import Annotated

from msgspec import Struct

U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Many32 = Annotated[tuple[int, ...], "I"]
Many64 = Annotated[tuple[int, ...], "Q"]

VERSION = 1
"""The version of the protocol."""

DEFAULT_PAGE, MAX_PAGE = 100, 1000
"""Messages in the answer to a `History`: without a limit in the request, and at most."""


class Reason(IntEnum):
    """Why a request was refused, a connection ended, or messages are missing."""

    NONE = 0
    MALFORMED = 1
    UNAUTHORIZED = 2
    FORBIDDEN = 3
    TOO_BIG = 4
    UNKNOWN_VERSION = 5
    NOT_READY = 6
    OVERFLOW = 7
    SLOW = 8
    DRAINING = 9
    PARTITION_CHANGED = 10
    DUPLICATE = 11
    UNAVAILABLE = 12
    MOVED = 13
    TRIMMED = 14
    EPOCH_CHANGED = 15
    AHEAD = 16


class Format(IntEnum):
    """The format of a payload, which is never guessed from its content."""

    BYTES = 0
    JSON = 1


class Match(IntEnum):
    EXACT = 0
    PREFIX = 1


class Hello(Struct, frozen=True):
    version: U16 = VERSION
    token: bytes = b""
    max_frame: U32 = 0
    credit: U32 = 0
    name: str = ""


class Welcome(Struct, frozen=True):
    version: U16 = VERSION
    node: str = ""
    max_frame: U32 = 0
    max_unacked: U32 = 0
    now: U64 = 0
    shards: U16 = 0


class Run(Struct, frozen=True):
    """Messages of one key: upstream a push, downstream a delivery. `payload` has all payloads one after another, `sizes` their
    lengths, and is empty for a single message. `uid`: 20 bytes for each message, or none."""

    ref: U32 = 0
    count: U32 = 1
    offset: U64 = 0
    ts_broker: U64 = 0
    key: bytes = b""
    key_partition: bytes = b""
    sizes: Many32 = ()
    ts_producer: Many64 = ()
    uid: bytes = b""
    epoch: bytes = b""
    payload: bytes = b""
    format: Format = Format.BYTES


class Pushed(Struct, frozen=True):
    """`epochs`: for each ref a length byte and the epoch."""

    refs: Many32 = ()
    offsets: Many64 = ()
    epochs: bytes = b""


class Refused(Struct, frozen=True):
    ref: U32 = 0
    index: U32 = 0
    reason: Reason = Reason.NONE
    text: str = ""


class Subscribe(Struct, frozen=True):
    ref: U32 = 0
    key: bytes = b""
    match: Match = Match.EXACT
    epoch: bytes = b""
    offset: U64 = 0
    history: bool = False


class Subscribed(Struct, frozen=True):
    ref: U32 = 0
    epoch: bytes = b""
    offset: U64 = 0


class Unsubscribe(Struct, frozen=True):
    ref: U32 = 0
    key: bytes = b""
    match: Match = Match.EXACT


class Gap(Struct, frozen=True):
    """Messages are missing, up to `last` of this epoch. `first` is 0 if the gap begins after the subscriber's last message."""

    key: bytes = b""
    reason: Reason = Reason.NONE
    epoch: bytes = b""
    first: U64 = 0
    last: U64 = 0


class Credit(Struct, frozen=True):
    bytes: U32 = 0


class Ping(Struct, frozen=True):
    ref: U32 = 0


class Pong(Struct, frozen=True):
    ref: U32 = 0
    now: U64 = 0


class Error(Struct, frozen=True):
    reason: Reason = Reason.NONE
    text: str = ""
    reconnect: bool = False
    retry_ms: U32 = 0


class History(Struct, frozen=True):
    """Requests the history after a position, without a subscription. The runs of the answer have its ref."""

    ref: U32 = 0
    key: bytes = b""
    epoch: bytes = b""
    offset: U64 = 0
    limit: U32 = 0


class HistoryPage(Struct, frozen=True):
    """Follows the runs of a `History`. The next page begins after `last`, unless that is the `tip`."""

    ref: U32 = 0
    reason: Reason = Reason.NONE
    epoch: bytes = b""
    oldest: U64 = 0
    last: U64 = 0
    tip: U64 = 0


Body = (
    Hello
    | Welcome
    | Run
    | Pushed
    | Refused
    | Subscribe
    | Subscribed
    | Unsubscribe
    | Gap
    | Credit
    | Ping
    | Pong
    | Error
    | History
    | HistoryPage
)
