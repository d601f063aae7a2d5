"""The interfaces between the engine and the endpoints, and between the engine and who decides about clients: authentication,
subscriptions to channels, and the application behind the server."""

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Protocol

from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.commands import Command
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect, TransientRun
from ropewalk.model.refusals import Refusal
from ropewalk.model.report import Gauges, NodeReport
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, Rejected, Subscribed


class Publisher(Protocol):
    """Accepts publications from endpoints."""

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Publish all or none, in order. Returns a receipt for each. Raises `Unavailable`."""

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Returns the number of ended sessions: live ones, and disconnected ones that could have been resumed. Errors are those
        of `Feed.disconnect`."""


class RunPublisher(Publisher, Protocol):
    """A publisher that also accepts runs to ephemeral streams, whose messages have no positions and are not kept."""

    @property
    def listened_streams(self) -> Container[str]:
        """The streams that may have listeners. Messages to other streams are discarded."""

    def is_ephemeral(self, stream: str) -> bool: ...

    @property
    def derives_partitions(self) -> bool:
        """The stream's name decides its partition key."""

    def check_partition(self, stream: str, named: str) -> None:
        """Raises `PartitionChanged` if a stream of this name cannot have the partition key, whether it exists or not."""

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """Publish in order. If the result is not None, await it before the next call; it may raise `Unavailable`. With
        `confirm` it means that the runs were forwarded."""


class Broadcaster(Protocol):
    """Fetches publications from an external system and passes them to a `Publisher`."""

    async def start(self) -> None:
        """Returns at once. If the external system is down, it retries without end, and `health` returns the reason."""

    async def stop(self) -> None:
        """Returns when all fetched publications are registered, or left where another node or the next start finds them."""

    def health(self) -> str: ...

    def gauges(self) -> Gauges: ...


class DirectWrites(Protocol):
    """Synchronous writes to a socket. Until they are ended, every write is sent at once and in order, and the connection pauses
    as soon as the kernel does not accept all bytes."""

    def send(self, data: bytes) -> int:
        """Returns the number of bytes that the kernel accepted; pass the rest to `Connection.write`. Raises OSError if it
        accepted none. Not allowed while the connection is paused."""

    def end(self) -> None:
        """From now on the writes of a tick are sent together."""


class Connection(Protocol):
    """A transport link as the engine sees it."""

    @property
    def direct(self) -> DirectWrites | None:
        """None if the connection is not a plain socket."""

    def write(self, data: bytes) -> None:
        """Write encoded bytes. Never blocks; unsent bytes count in `pending`."""

    def close(self, code: int, text: str) -> None:
        """Flush the pending writes, then close. May be repeated."""

    def pending(self) -> int:
        """Bytes written that the kernel has not accepted yet."""

    async def wait_ready(self) -> None:
        """Returns when history may be written. Only waits if the response to a request begins after all its commands were
        granted."""

    def unsent(self) -> int:
        """Bytes written that the peer has not received yet, as far as known. A change means that the peer is reading."""

    def hold_reading(self, hold: bool) -> None:
        """Pause or resume reading: backpressure for a client with too many pending commands."""


class SessionHandle(Protocol):
    """A session as its transport sees it. All calls come from the event loop's thread."""

    @property
    def sid(self) -> str: ...

    def receive(self, frame: bytes) -> None:
        """Handle one complete message of the client. Messages are handled one after another. Never raises on invalid input."""

    def note_activity(self) -> None:
        """The client sent something other than a command, such as a pong."""

    def wait_idle(self) -> Awaitable[None] | None:
        """Wait until every received message is handled, or one of them waits for the store or for the client to read its reply.
        None if there is nothing to wait for."""

    def reject_frame(self, reason: str, code: int, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        """The transport could not accept a frame. It is counted as `refusal`."""

    def message_overdue(self) -> None:
        """The client did not finish a message in time."""

    async def wait_opened(self) -> bool:
        """True once the welcome is sent, False if the client was refused."""

    async def submit(self, command: Command) -> bool:
        """Handle a decoded command (SSE). Returns whether it was granted."""

    def streams(self) -> Mapping[str, Sequence[str]]:
        """The streams of each subscribed identifier."""

    def finish(self) -> Awaitable[None] | None:
        """The client has closed its side. Wait until all its commands are handled and the transport has sent their replies, or
        the session has ended; None if there is nothing to wait for. Does not wait for anything that only the client could
        send, and retries a failing store for a bounded time."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def credit_granted(self) -> None:
        """The client has granted credit: the meter of its codec has increased."""

    def connection_lost(self, going_away: bool = False) -> None:
        """The connection is gone. Called once. `going_away`: the client's close code means that its page is being closed."""


class Inspector(Protocol):
    """The node as pages and metrics see it."""

    def report(self) -> NodeReport:
        """The current state of the node. Its cost does not depend on the number of sessions: every health check calls it."""


class Authenticator(Protocol):
    """One way to authenticate a client. Several are tried in order; the first result that is not None counts."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None: ...


class Channels(Protocol):
    """One way to decide about subscriptions. Several are tried in order; the first result that is not None counts."""

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None: ...


class Application(Protocol):
    """The program behind the server that decides who connects and what its channels do.

    The calls of one session are sequential: connect, then commands and restores, then one disconnect. A session that another
    authenticator accepted begins with a command. Every call ends within a bounded time.

    Raises `Unavailable` if the call was not made, `Unanswered` (a kind of it) after a timeout, and `ApplicationError` if the
    application failed. These concern this call only. Before `start` and after `stop` all calls raise `Unavailable`.
    """

    async def start(self, publisher: Publisher) -> None: ...
    async def stop(self) -> None:
        """Waits for active calls. May be repeated, and called without a start."""

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        """A call may wait for its turn. If it is no longer `wanted` by then, it is not made and raises `Unavailable`, so that
        in a reconnect storm clients that gave up do not delay later ones."""

    async def command(self, call: CommandCall) -> CommandResult: ...

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        """Returns an empty result if the application does not handle restores."""

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        """Reports the end of a session, once. After `Unavailable` the caller may report it again."""

    def health(self) -> str:
        """The problem for the health page, or "" if healthy."""

    def gauges(self) -> dict[str, float]:
        """For the metrics page: app_calls_active, app_calls_waiting."""
