"""The codec protocols: how records become bytes for one kind of connection. The engine knows nothing else of a wire format.

`MessageCodec` is for the hub, which encodes a message once for many connections. `SessionCodec` is for one session: its
commands and all other answers. Codecs are stateless and shared by all connections of their kind. Methods return bytes as they
are sent, with framing; b"" if this kind of connection does not support the message.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ropewalk.model.application import Reply
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.history import Gap, HistoryPart, Tip
from ropewalk.model.messages import Deliverable, Position
from ropewalk.model.presence import PresencePage
from ropewalk.model.sessions import NotGranted


class MessageCodec(Protocol):
    """Listeners of one stream and identifier whose codec is the same object get the same bytes, encoded once."""

    def head(self, identifier: str) -> bytes:
        """The part of a message that depends only on the identifier. The caller caches it and passes it to `batch`."""

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        """These messages of one stream, in order."""

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        """Messages are missing here."""


class MeteredPart(NamedTuple):
    """One of several encoded frames. A delivery has its stream, and the position of its last message, if any."""

    frame: bytes
    stream: str = ""
    position: Position | None = None


class Meter(Protocol):
    """Counts deliveries against the credit of a client. `left`: remaining bytes; negative if the last delivery exceeded it."""

    left: int

    def counted(self, data: bytes) -> int:
        """How many bytes of these frames are deliveries."""

    def parts(self, data: bytes) -> Iterator[MeteredPart]: ...


class SessionCodec(Protocol):
    @property
    def messages(self) -> MessageCodec: ...

    @property
    def meter(self) -> Meter | None:
        """None: the client is limited by its transport only."""

    @property
    def one_way(self) -> bool:
        """The client cannot request the rest of a long history, so it receives all of it."""

    @property
    def native_pings(self) -> bool:
        """Pings are frames of the transport, which the client's library answers."""

    @property
    def reports_positions(self) -> bool:
        """The client requested the positions of its streams. Others receive the reference's confirmations."""

    @property
    def shows_tips(self) -> bool:
        """Confirmations include tips. If not, the engine need not look them up."""

    @property
    def confirms_with_tips(self) -> bool:
        """The confirmation of a subscription has the tips of its streams even if their history follows."""

    @property
    def answers_repeats(self) -> bool:
        """A subscribe that repeats a pending one is answered too. Other clients would not expect that."""

    def decode(self, frame: bytes) -> Command:
        """Raises MalformedFrame."""

    # --- the session and its subscriptions ----------------------------------------------------------------------------

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        """None: a new session. A sequence, also an empty one: a restored session."""

    def confirm_subscription(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        """`tips`: where live delivery continues, for clients that resume a stream without having received a message."""

    def reject_subscription(self, identifier: str, why: NotGranted | None = None) -> bytes:
        """`why`: for protocols that support a reason."""

    def confirm_history(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        """`tips`: as for `confirm_subscription`."""

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        """`confirm_history` for a request by time that reaches further back than these streams' history."""

    def history_part(self, part: HistoryPart | NotGranted) -> Iterator[bytes]:
        """The answer to `ReadHistory`: a frame for each message, and one more."""

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        """The answer to a presence query; None is the error answer."""

    def fitting(self, page: PresencePage, room: int) -> PresencePage:
        """As many members as fit into `room` bytes, at least one; the rest is for the next page."""

    # --- transmissions of an application, and replies to actions ------------------------------------------------------

    def transmission(self, text: str) -> bytes: ...

    def accepted(self, sid: str, texts: Sequence[str]) -> list[bytes]:
        """The texts of an application that accepted the client, after a welcome with the sid."""

    def refused(self, texts: Sequence[str]) -> list[bytes]:
        """The texts of an application that rejected the client."""

    def around_confirmation(self, identifier: str, texts: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        """The texts before and after the confirmation, which the server sends itself."""

    def rejected(self, identifier: str, texts: Sequence[str]) -> list[bytes]:
        """The texts of an application that rejected a subscription, including the rejection itself."""

    def reply(self, identifier: str, reply: Reply) -> bytes: ...

    # --- the connection -----------------------------------------------------------------------------------------------

    def ping(self, timestamp: int) -> bytes: ...

    def pong(self) -> bytes: ...

    def disconnect(self, closing: Closing) -> bytes:
        """Why the connection ends, if the protocol supports it."""

    def readable(self, data: bytes) -> str:
        """Encoded data as text for the log."""
