"""The ports: Protocol classes for what the engine needs from adapters, and for what it offers to them.

Their docstrings state what types cannot: atomicity, order, idempotence, and what may be raised. Each port that adapters fill
has a conformance suite in `ropewalk.testing`: `Backend` with its stores, leases and feed, `Journal`, `JournalReader` and
`ConsumerStore`, `Staging`, `RowReader` and `Rows`, `Archive`, `Authenticator`, `Channels`, `Application`. One has none:
`Connection`, whose promises are about bytes on a socket and are tested there, against real clients. `Transactor`, `Publisher`,
`SessionHandle` and `Inspector` are filled by the engine.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
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
from ropewalk.model.history import ColdPiece, Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import Consumer, Row, ShardMark, ShardSpan
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.refusals import Refusal
from ropewalk.model.report import NodeReport
from ropewalk.model.sessions import (
    Accepted,
    ConnectRequest,
    Refused,
    Rejected,
    Renewal,
    SessionSnapshot,
    SessionTaken,
    SessionWrite,
    Subscribed,
)
from ropewalk.model.transactions import AppRecord, Committed, Decision, Produced, Staged, StagedPiece

Clock = Callable[[], float]
"""UNIX seconds. Passed in everywhere, so that tests own the time."""


# --- where streams, sessions and presence are kept -------------------------------------------------------------------


class StreamStore(Protocol):
    """Gives positions and keeps the hot history.

    Offsets of one epoch are 1, 2, 3 … without holes, each given once. A uid that is known for its stream
    gets its first position back and appends nothing. A read sees everything that the feed delivered before it.
    Three outcomes: done; `Unavailable`, and then nothing happened; `Unanswered`, and then it may have happened. Reads and
    appends of publications with a uid or a producer may be repeated after either.
    """

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Register all of them in this order, or none; a receipt for each. Raises `PartitionChanged`.

        Everything new enters the feed in the order of positions, and not before it can be read; transient publications keep
        their place among the others. Nobody is called back: this process hears of it through the feed, like all others.
        """

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        """What follows `position`. A stream never heard of answers an empty Replay at offset 0 only to offset 0."""

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        """What was registered at or after `timestamp`. A Gap is TRIMMED where some of that is not kept any more, or PARTIAL."""

    async def tip(self, stream: str) -> Position:
        """The newest position; offset 0 and an empty epoch for a stream never heard of."""

    async def partition_key(self, stream: str) -> str:
        """What decides the stream's shard; its name, unless its first publication said otherwise."""

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        """Streams in order of name, strictly after `after`."""

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        """Kept messages with offsets above `after`; None for an unknown stream."""


class SessionStore(Protocol):
    """Keeps sessions whose connection is gone. Bounded: when there are too many, the oldest counts as expired.

    A store with `Leases` has those that live too. It may raise `Unavailable` and `Unanswered`; everything but `expired` may be
    repeated after either.
    """

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        """Raises `LimitReached` for one that is too large, and `Unavailable`; then it is not kept."""

    async def peek(self, sid: str) -> SessionSnapshot | None:
        """What `take` would return now. Changes nothing."""

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        """Return the snapshot and remove it, in one step: a sid is valid for one restore.

        With `Leases` it goes on in the same step as `successor`, a session that lives on this node. A node on which it lived is
        told by the feed (`SessionTaken`), and at its next `renew` or `write`. Until this node has written the successor as live
        for the first time, the old sid is valid too: a client that never heard of the new one comes back with it. The same call
        again gives the same answer.
        """

    async def revoke(self, ids: str) -> list[tuple[str, SessionSnapshot]]:
        """Remove and return every session with these ids, in one step: none of them can be taken or expires any more."""

    async def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        """Expired sessions, at most `limit`. Each is returned once."""

    async def abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        """At shutdown: the sessions that end with the process. Of a store that outlives it, only the expired ones."""


class PresenceStore(Protocol):
    """Presence sets. The events of a change enter the feed as transient messages in the same step, so that a process that dies
    right after it leaves nobody in the dark. They are returned too, for the session log; a repeated call may return fewer.

    With `Leases` a sid belongs to the node that joined or adopted for it last, and ends with its lease; a join takes back that
    it was detached. Everything may raise `Unavailable` and `Unanswered`, and may be repeated.
    """

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        """For a member that is present already, the info is replaced without an event. A sid that holds another member there
        leaves first."""

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]: ...

    async def detach(self, sid: str, ttl: float) -> None:
        """The connection is gone: what the sid holds ends after `ttl` seconds, unless it is adopted before."""

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        """A restored session takes over what its old sid held, without events. Returns what it holds now, by stream."""

    async def expire(self) -> list[PresenceEvent]:
        """Remove members whose TTL ended. Cheap when there are none; called about once a second."""

    async def page(self, stream: str, after: str, limit: int) -> PresencePage: ...


class Leases(Protocol):
    """What a store offers that several nodes share. Each node has an instance of the backend of its own.

    What lives on a node belongs to it under one lease. When that ends, the node counts as dead: its sessions are kept for their
    TTL from then on, and each is given out by `SessionStore.expired` once, to whichever node asks; its members leave after the
    presence TTL. `Backend.sweep` of any node sees to it. What a node has not written when it dies is not known to the others.
    """

    async def renew(self, ttl: float, heard: Collection[str]) -> Renewal:
        """Keep the lease of this node for `ttl` seconds from now. `heard`: sids of earlier answers that need not be said again.

        One that had ended begins anew under another number, and with nothing: a node that is told another number than before
        writes its sessions and joins its members again.
        """

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        """Write sessions of this node as they are now; each by itself, in one step. Returns those that were not written because
        they are not the node's any more. Raises `Unavailable`, and may be repeated."""


class Backend(Protocol):
    """The three stores of one backend."""

    @property
    def streams(self) -> StreamStore: ...
    @property
    def sessions(self) -> SessionStore: ...
    @property
    def presence(self) -> PresenceStore: ...
    @property
    def feed(self) -> "Feed":
        """What brings its registered messages to the processes that share it."""

    @property
    def leases(self) -> Leases | None:
        """None: the stores are this process's own, and nothing need be written while it lives."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def health(self) -> str:
        """Why it cannot work now, for the health page. "" means healthy."""

    async def sweep(self) -> None:
        """Remove what has expired. Bounded work per call; called about once a second."""

    def gauges(self) -> dict[str, float]:
        """Sizes for the metrics page: streams, history_messages, history_bytes, sessions_kept, sessions_kept_bytes,
        presence_members, dedup_keys."""


class Feed(Protocol):
    """Brings what is registered, and orders, to every process that wants to hear of it, this one included.

    Messages of one stream mostly come once and in order. Unless the feed is `exact` that is not promised: some may be lost,
    late or repeated, and readers go by the positions.
    """

    @property
    def exact(self) -> bool:
        """Every message is delivered once, in order, in the very step in which it becomes readable."""

    async def start(
        self, deliver: Callable[[Sequence[Registered]], None], obey: Callable[[RemoteDisconnect | SessionTaken], Awaitable[int]]
    ) -> None:
        """`deliver` never raises and never blocks; bounded queues before it may lose what does not fit."""

    async def stop(self) -> None: ...

    async def listen(self, stream: str) -> None:
        """Returns when messages that are registered from now on are brought here. Raises `Unavailable`."""

    def unlisten(self, stream: str) -> None:
        """Nobody here wants to hear of the stream any more. What comes nevertheless does no harm."""

    def publish(self, messages: Sequence[Registered]) -> None:
        """Hand over transient messages, in order; never blocks. Those with a position come from the store."""

    async def command(self, order: RemoteDisconnect) -> int:
        """How many sessions of this process were ended. Raises `Unavailable` where that may not outlive a crash; they are
        ended all the same, and the same order again is safe."""

    def health(self) -> str: ...


# --- the journal -----------------------------------------------------------------------------------------------------


class Journal(Protocol):
    """The durable, append-only record. One writer; rows of one shard keep the order in which they were handed over."""

    @property
    def instant(self) -> bool:
        """True: an acknowledgement does not wait for the journal, so `note` is all that is ever needed."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Returns when the rows are as safe as the durability asked for. Raises `Unavailable`, and then none of them counts."""

    def note(self, rows: Sequence[Row]) -> None:
        """Record with the next group, without waiting. Bounded: rows that would overflow are counted and logged."""

    def health(self) -> str: ...

    def gauges(self) -> dict[str, float]: ...


class JournalReader(Protocol):
    """The journal as readers see it: by shard and dense position."""

    def spans(self) -> list[ShardSpan]:
        """What can be read, by shard in order and by age within a shard. Ends are of what is written, never of what waits.
        Between two spans of one epoch lies what was lost."""

    def read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncIterator[bytes]:
        """An Arrow IPC stream that covers [first, end) or as much of its beginning as fits; whole batches, so that it may begin
        earlier and end later: readers cut by the column `position`. Raises BadRequest for what is not there (any more)."""

    def archived(self, positions: dict[int, int]) -> None:
        """Everything below these positions is in the archive, so that its segments may go."""

    def archived_ends(self) -> dict[int, int]:
        """The positions that `archived` was told, by shard."""


class ConsumerStore(Protocol):
    """The marks of named readers. On return a change is on disk. Changes may raise `Unavailable`, and then nothing happened.
    The caller ensures that marks name shards and positions that the journal has."""

    def consumers(self) -> list[Consumer]:
        """In order of name."""

    async def pin(self, name: str, marks: Mapping[int, ShardMark]) -> Consumer:
        """Set the marks, unless they are set: a shard that has a mark keeps it. Raises LimitReached for one name too many."""

    async def move(self, name: str, marks: Mapping[int, ShardMark]) -> Consumer:
        """Advance the marks; a mark never goes back. An unknown name is added, which may raise LimitReached."""

    async def forget(self, name: str) -> bool:
        """False for an unknown name."""


# --- transactions ----------------------------------------------------------------------------------------------------


class Staging(Protocol):
    """Keeps what transactions need over a crash, by application. Everything may raise `Unavailable`.

    Several pieces may be put at once; decisions and ends of one application come one after another.
    """

    async def load(self) -> list[AppRecord]:
        """Everything that is kept. Called once, before all else."""

    async def put(self, app: str, batch: int, piece: StagedPiece, data: bytes) -> None:
        """Keep a piece, whole or not at all. It need not outlive a power failure yet."""

    async def discard(self, app: str, batch: int, pieces: Sequence[StagedPiece]) -> None: ...

    async def discard_batch(self, app: str, batch: int) -> None: ...

    async def decide(self, app: str, last: int | None, decision: Decision) -> list[StagedPiece]:
        """On return the pieces and then the decision are on disk, unless it names pieces that are not as they were put:
        then nothing is decided."""

    async def read(self, app: str, batch: int, piece: StagedPiece) -> bytes:
        """A decided piece, exactly as it was put."""

    async def finish(self, app: str, batch: int) -> None:
        """On return it is on disk that the batch is the application's last, and what was kept up to it is removed."""


class Rows(Protocol):
    """The rows of a body that was read."""

    def __len__(self) -> int: ...

    def publications(self, start: int, count: int) -> list[Publication]:
        """Raises MalformedPublication with the index of the row."""


RowReader = Callable[[bytes], Rows]
"""A body to its rows; raises MalformedPublication. Called in a thread, for it may take its time."""


class Transactor(Protocol):
    """Where endpoints bring transactions and numbered rows. Everything may raise `Unavailable`; the same call again is safe."""

    async def stage(self, app: str, batch: int, key: tuple[int, int, int], body: bytes) -> Staged:
        """Keep a body for (part, attempt, seq). Raises MalformedPublication, LimitReached, or Conflict out of turn."""

    async def commit(self, app: str, batch: int, winners: Mapping[int, int], counts: Mapping[int, int]) -> Committed:
        """Publish the pieces of the winning attempts (part → attempt), once. `counts`: how many pieces some parts have.
        Raises Conflict, and then nothing was published."""

    async def last(self, app: str) -> int | None:
        """The last finished batch."""

    async def produce(self, producer: str, first: int, body: bytes) -> Produced:
        """Publish rows with the sequences `first`, `first` + 1 …; those that are known already are skipped."""

    async def publish(self, body: bytes) -> Produced:
        """Publish rows as they come. Those with a uid that is known in their stream, and those with a producer whose sequence
        has come that far, are skipped."""


class Archive(Protocol):
    """Cold history: what left the hot one, in the archive or still in the journal."""

    async def read(
        self, stream: str, partition_key: str, epoch: str, first: int, last: int, limit: int, since: float = 0.0
    ) -> ColdPiece:
        """Offsets [first, last] of that epoch that are there, registered at or after `since`: in order, each once, at most
        `limit`. Whether they are dense is for the caller to see. Times are kept to the microsecond. Never on the event loop.

        Raises `Unavailable` where something in the range may be there and cannot be read: an answer with less would tell the
        caller that it does not exist.
        """

    async def stop(self) -> None:
        """Reads under way are answered or raise `Unavailable`, later ones raise it. Again is harmless."""

    def health(self) -> str: ...

    def gauges(self) -> dict[str, float]:
        """For the metrics page, beside those of the backend: archive_reads_waiting, and others that begin with `archive_`."""


# --- who may come in, and what a channel does ------------------------------------------------------------------------


class Authenticator(Protocol):
    """One way to authenticate a client. They are asked in order; the first answer that is not None counts."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None: ...


class Channels(Protocol):
    """One way to answer channel subscriptions. They are asked in order; the first answer that is not None counts."""

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None: ...


class Application(Protocol):
    """The program behind the server that decides who connects and what its channels do.

    Calls of one session come one after another, in order: connect, then commands and restores, then one disconnect. A session
    that was authenticated in another way begins with a command. Every call ends within a bounded time. It may raise
    `Unavailable` (it could not be asked), of that `Unanswered` (it was asked and gave no answer in time), or
    `ApplicationError` (it was asked and failed); they concern this call only. Before its start and after its stop it cannot
    be asked.
    """

    async def start(self, publisher: "Publisher") -> None: ...
    async def stop(self) -> None:
        """Calls under way come to an end. Again, or without a start, is harmless."""

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        """Calls may have to wait before they are made. One that is no longer `wanted` when its turn comes is not made, and
        raises `Unavailable`: in a reconnect storm, clients that gave up would keep those who came after them waiting."""

    async def command(self, call: CommandCall) -> CommandResult: ...

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        """Empty if the application does not handle restores."""

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        """The application hears of it once. `Unavailable` means that it may be told again."""

    def health(self) -> str:
        """Why it cannot be called now, for the health page. "" means healthy."""

    def gauges(self) -> dict[str, float]:
        """For the metrics page: app_calls_active, app_calls_waiting."""


# --- what the engine offers to endpoints -----------------------------------------------------------------------------


class Publisher(Protocol):
    """Where endpoints bring publications."""

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        """All or none, in order; a receipt for each. Raises `Unavailable`."""

    async def disconnect(self, order: RemoteDisconnect) -> int:
        """How many sessions were ended: live ones, and those that were away and could have been resumed. As `Feed.command`
        has it."""


class Connection(Protocol):
    """A transport link as the engine sees it."""

    def write(self, data: bytes) -> None:
        """Bytes as they go on the wire. Never blocks; what waits counts in `pending`."""

    def close(self, code: int, text: str) -> None:
        """Flush what waits, then end. Harmless when it is ended already."""

    def pending(self) -> int:
        """Bytes written and not yet taken by the kernel."""

    async def ready(self) -> None:
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

    def heard(self) -> None:
        """The client sent something that is not a command, such as a pong."""

    def malformed(self, reason: str, code: int, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        """The transport itself could not accept a frame. `refusal` is what it is counted as."""

    async def opened(self) -> bool:
        """True once the welcome is sent, False if the client was refused."""

    async def submit(self, command: Command) -> bool:
        """Handle a command that did not come as bytes (SSE); True if it was granted."""

    def streams(self) -> Mapping[str, Sequence[str]]:
        """The streams of each identifier that is subscribed to."""

    def writing_paused(self) -> None: ...
    def writing_resumed(self) -> None: ...
    def lost(self, going_away: bool = False) -> None:
        """The connection is gone. Called once. `going_away`: the client's close code says that its page is being closed."""


class Inspector(Protocol):
    """The node as pages and metrics see it."""

    def report(self) -> NodeReport:
        """How the node is now. Cheap, however many sessions there are: it is called with every health check."""
