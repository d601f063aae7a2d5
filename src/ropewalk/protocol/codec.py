"""The codec protocols: how records become bytes for one kind of connection. All that the engine knows of a wire format.

`MessageCodec` is for the hub, which encodes a message once for many connections. `SessionCodec` is for one session: what its
client may say, and every other answer. Codecs are stateless and shared by all connections of their kind. Every method that
returns bytes returns them as they go on the wire, framing included; b"" when this kind of connection does not carry it.
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
        """The part of a message that depends on the identifier alone; kept by the caller, given back to `batch`."""

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        """These messages of one stream, in order."""

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        """Messages are missing here."""


class MeteredPart(NamedTuple):
    """A frame of several that a codec made. Of a delivery: its stream, and the position of its last message if it has one."""

    frame: bytes
    stream: str = ""
    position: Position | None = None


class Meter(Protocol):
    """Of a client that says how many bytes of deliveries it takes: so many are `left`, less than 0 where the last had more."""

    left: int

    def counted(self, data: bytes) -> int:
        """How many bytes of these frames are deliveries."""

    def parts(self, data: bytes) -> Iterator[MeteredPart]: ...


class SessionCodec(Protocol):
    @property
    def messages(self) -> MessageCodec: ...

    @property
    def meter(self) -> Meter | None:
        """None: the client takes whatever its transport takes."""

    @property
    def one_way(self) -> bool:
        """The client cannot ask for the rest of a history that is longer than one answer, so it gets all of it."""

    @property
    def native_pings(self) -> bool:
        """A ping is answered by the client's library, whatever protocol the client speaks."""

    @property
    def tells_positions(self) -> bool:
        """Whether the client asked to be told where its streams stand. Others get the confirmations of the reference."""

    @property
    def shows_tips(self) -> bool:
        """Whether confirmations carry the tips that they are given. Where they do not, nobody has to find them out."""

    @property
    def confirms_with_tips(self) -> bool:
        """Whether the confirmation of a subscription tells where its streams stand although their history follows it."""

    @property
    def answers_repeats(self) -> bool:
        """Whether a subscribe that repeats one before its answer is answered too. Other clients would not know what for."""

    def decode(self, frame: bytes) -> Command:
        """Raises MalformedFrame."""

    # --- the session and its subscriptions ----------------------------------------------------------------------------

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        """None: a new session. A sequence, also an empty one: a restored session."""

    def confirm_subscription(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        """`tips`: where live delivery goes on, for clients that resume a stream of which they never saw a message."""

    def reject_subscription(self, identifier: str, why: NotGranted | None = None) -> bytes:
        """`why`: for those who have a word for it."""

    def confirm_history(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        """`tips`: as for `confirm_subscription`."""

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        """`confirm_history` for a request by time that reaches further back than these streams' history."""

    def history_part(self, part: HistoryPart | NotGranted) -> Iterator[bytes]:
        """The answer to `ReadHistory`: a frame for each message, and one more."""

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        """The answer to a presence query; None is the error answer."""

    def fitting(self, page: PresencePage, room: int) -> PresencePage:
        """As many of its members as `room` bytes hold, at least one; the rest is for the next page."""

    # --- what an application writes for its client: JSON texts, and the replies to actions ----------------------------

    def transmission(self, text: str) -> bytes: ...

    def accepted(self, sid: str, texts: Sequence[str]) -> list[bytes]:
        """The texts of an application that let the client in, with a welcome that carries the sid first."""

    def refused(self, texts: Sequence[str]) -> list[bytes]:
        """The texts of an application that did not let the client in."""

    def around_confirmation(self, identifier: str, texts: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        """What comes before and what after the confirmation, which is the server's to say."""

    def rejected(self, identifier: str, texts: Sequence[str]) -> list[bytes]:
        """The texts of an application that rejected a subscription, and the rejection in its place among them."""

    def reply(self, identifier: str, reply: Reply) -> bytes: ...

    # --- the connection -----------------------------------------------------------------------------------------------

    def ping(self, timestamp: int) -> bytes: ...

    def pong(self) -> bytes: ...

    def disconnect(self, closing: Closing) -> bytes:
        """Why it ends, where this kind of connection has a word for it."""

    def readable(self, data: bytes) -> str:
        """What this codec made, as text for the log."""
