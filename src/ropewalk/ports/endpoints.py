"""What the engine and the endpoints are to each other."""

from collections.abc import Awaitable, Container, Mapping, Sequence
from typing import Protocol

from ropewalk.model.commands import Command
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect, TransientRun
from ropewalk.model.refusals import Refusal
from ropewalk.model.report import Gauges, NodeReport


class Publisher(Protocol):
    """Where endpoints bring publications."""

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        """All or none, in order; a receipt for each. Raises `Unavailable`."""

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """How many sessions were ended: live ones, and those that were away and could have been resumed. As `Feed.disconnect`
        has it."""


class RunPublisher(Publisher, Protocol):
    """Where runs can be brought that stay whole, because their streams are ephemeral: nothing that is published to them has a
    position, or is kept."""

    @property
    def listened_streams(self) -> Container[str]:
        """The streams that somebody may listen to. What is published to another one reaches nobody."""

    def is_ephemeral(self, stream: str) -> bool: ...

    @property
    def derives_partitions(self) -> bool:
        """Not every stream may have every partition key."""

    def check_partition(self, stream: str, named: str) -> None:
        """Raises `PartitionChanged` where a stream with this name cannot have the partition key, whether it exists or not."""

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """In order. What it answers has to be waited for before more is brought, unless it is None. Raises `Unavailable`.
        `confirm`: it says that they were passed on."""


class Broadcaster(Protocol):
    """Fetches publications from where applications left them, and brings them to a `Publisher`."""

    async def start(self) -> None:
        """Returns at once. Where it cannot work, it tries for ever, and `health` says why."""

    async def stop(self) -> None:
        """Returns when what was fetched is registered, or left where another node or the next start finds it."""

    def health(self) -> str: ...

    def gauges(self) -> Gauges: ...


class DirectWrites(Protocol):
    """Writes to a socket itself, past the event loop. As long as they are not ended everything leaves at once, in the order in
    which it is written, and the connection pauses as soon as the kernel does not take all."""

    def send(self, data: bytes) -> int:
        """How many bytes the kernel took; what it left is for `Connection.write`. Raises OSError if it took none. Not for a
        connection that pauses."""

    def end(self) -> None:
        """What is written within a tick leaves together from now on."""


class Connection(Protocol):
    """A transport link as the engine sees it."""

    @property
    def direct(self) -> DirectWrites | None:
        """None for one that is not a socket without anything in between."""

    def write(self, data: bytes) -> None:
        """Bytes as they go on the wire. Never blocks; what waits counts in `pending`."""

    def close(self, code: int, text: str) -> None:
        """Flush what waits, then end. Harmless when it is ended already."""

    def pending(self) -> int:
        """Bytes written and not yet taken by the kernel."""

    async def wait_ready(self) -> None:
        """Until history may be written. At once, except where all commands of a request are granted before it is answered."""

    def unsent(self) -> int:
        """Bytes written that the peer has not received yet, as far as that is known. A change means that it takes some."""

    def hold_reading(self, hold: bool) -> None:
        """Stop (or go on) reading, so that a client with too many commands under way waits in its own socket."""


class SessionHandle(Protocol):
    """A session as its transport sees it. All calls come from the event loop's thread."""

    @property
    def sid(self) -> str: ...

    def receive(self, frame: bytes) -> None:
        """One whole message of the client. Handled strictly one after another; never raises for what the client did."""

    def note_activity(self) -> None:
        """The client sent something that is not a command, such as a pong."""

    def wait_idle(self) -> Awaitable[None] | None:
        """Until every message that came is handled, or one of them waits for the store or for the client to take its answer;
        None if there is nothing to wait for."""

    def reject_frame(self, reason: str, code: int, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        """The transport itself could not accept a frame. `refusal` is what it is counted as."""

    def message_overdue(self) -> None:
        """A message of the client was begun and not finished in time."""

    async def wait_opened(self) -> bool:
        """True once the welcome is sent, False if the client was refused."""

    async def submit(self, command: Command) -> bool:
        """Handle a command that did not come as bytes (SSE); True if it was granted."""

    def streams(self) -> Mapping[str, Sequence[str]]:
        """The streams of each identifier that is subscribed to."""

    def finish(self) -> Awaitable[None] | None:
        """The client has ended its side. What is answered lasts until all of its commands are handled and the transport has
        taken what they wrote, or the session has ended; None if there is nothing to wait for. Nothing is waited for that only
        the client could bring, and a store that fails is asked for a bounded time."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def credit_granted(self) -> None:
        """The client has granted credit: its codec's meter has more than before."""

    def connection_lost(self, going_away: bool = False) -> None:
        """The connection is gone. Called once. `going_away`: the client's close code says that its page is being closed."""


class Inspector(Protocol):
    """The node as pages and metrics see it."""

    def report(self) -> NodeReport:
        """How the node is now. Cheap, however many sessions there are: it is called with every health check."""
