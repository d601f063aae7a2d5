"""What a codec is: the one shape in which the hub and the sessions turn records into bytes for one kind of link.

A codec is stateless and shared by every connection of its kind, so that a message is encoded once for all of them.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.history import Gap
from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import PresencePage

Tip = tuple[str, Position]
"""A stream and how far it had come."""

IdentifierReply = Literal["confirm_subscription", "reject_subscription", "confirm_history"]


class Codec(Protocol):
    """Every method returns the bytes as they go on the wire, framing included; b"" when this link does not carry it."""

    @property
    def one_way(self) -> bool:
        """The client cannot send commands: it cannot ask for the rest of a history that is longer than one answer."""

    @property
    def native_pings(self) -> bool:
        """A ping is answered by the client's library, whatever protocol the client speaks."""

    @property
    def tells_positions(self) -> bool:
        """Whether the client asked to be told where its streams stand. Others get the confirmations of the reference."""

    def decode(self, frame: bytes) -> Command:
        """Raises MalformedFrame."""

    def head(self, identifier: str) -> bytes:
        """The part of a message frame that depends on the identifier alone; kept by the hub, given back to `message`."""

    def message(self, head: bytes, message: Registered) -> bytes: ...

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        """None: a new session. A sequence, also an empty one: a restored session."""

    def about(self, kind: IdentifierReply, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        """`tips`: where live delivery goes on, for clients that resume a stream of which they never saw a message."""

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        """`confirm_history` for a request by time that reaches further back than these streams' history."""

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes: ...

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        """The answer to a presence query; None is the error answer."""

    def transmission(self, text: str) -> bytes:
        """JSON text that the application wrote for this client."""

    def ping(self, timestamp: int) -> bytes: ...

    def pong(self) -> bytes: ...

    def disconnect(self, closing: Closing) -> bytes: ...
