"""What travels: a publication as it was sent, and the same once it has its position.

The payload is the raw JSON text that receivers see as `message`; it is never parsed and printed again, so numbers stay exact.
"""

from msgspec import Struct


class Position(Struct, frozen=True, gc=False):
    """A place in a stream: the name of one life of its offsets, and the offset in it. Always together."""

    epoch: str
    offset: int


class Publication(Struct, frozen=True, gc=False):
    """A message as a publisher sent it, checked at the door.

    A `uid` makes it known within its stream for a time; `producer` and `sequence` make it known for good: of one producer,
    what is not above the last sequence registered is a repetition.
    """

    stream: str
    payload: bytes
    exclude_socket: str = ""
    broadcast_type: str = ""
    transient: bool = False
    uid: str = ""
    producer: str = ""
    sequence: int = 0


class Registered(Struct, frozen=True, gc=False):
    """A publication with its position and the broker's time. A transient one has no position: offset 0, epoch empty."""

    stream: str
    payload: bytes
    timestamp: float
    epoch: str = ""
    offset: int = 0
    exclude_socket: str = ""
    broadcast_type: str = ""


class Receipt(Struct, frozen=True, gc=False):
    """What a publisher learns of one publication. `duplicate`: its uid was known, and this is the first one's position."""

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
