"""Where streams, sessions and presence are kept, and what brings their changes to every process."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import QueuedRows, Row
from ropewalk.model.messages import Deliverable, Position, Publication, Receipt, Registered, RemoteDisconnect, TransientRun
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import EndRequest, Renewal, SessionSnapshot, SessionTaken, SessionWrite


class StreamStore(Protocol):
    """Gives positions and keeps the hot history.

    Offsets of one epoch are 1, 2, 3 … without holes, each given once. A uid that is known for its stream
    gets its first position back and appends nothing. A read sees everything that the feed delivered before it.
    A stream that was idle for many times its history TTL is forgotten, so that names that come and go do not add up. Published
    to again, it begins a new epoch.
    Three outcomes: done; `Unavailable`, and then nothing happened; `Unanswered`, and then it may have happened. Reads and
    appends of publications with a uid or a producer may be repeated after either.
    """

    @property
    def resolves_unanswered(self) -> bool:
        """It finds out by itself what became of an append to one stream that got no answer, uid or not. What it calls
        `Unanswered` then is final: to repeat it helps nobody."""

    @property
    def instant(self) -> bool:
        """`append` never suspends: run to its end in one step, it needs no task."""

    @property
    def confirms_transient(self) -> bool:
        """What passes the feed alone may be lost on its way to other processes. An append of transient publications is
        answered when they are passed on."""

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Register all of them in this order, or none; a receipt for each. Raises `PartitionChanged`. Their `fields` are what
        `message_fields` makes of each and of the stream's partition key.

        Everything new enters the feed in the order of positions, and not before it can be read; transient publications keep
        their place among the others. Nobody is called back: this process hears of it through the feed, like all others.
        """

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        """Returns the messages after `position`, at most `MAX_ANSWER_BYTES` of them but at least one. If there are more, call
        again from the end of the answer. An unknown stream returns an empty Replay for offset 0 without an epoch, and a Gap for
        any other position: an epoch that a client knows began with a message."""

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        """What was registered at or after `timestamp`, bounded as `replay` is. A Gap is TRIMMED where some of that is not kept
        any more, or PARTIAL."""

    async def tip(self, stream: str) -> Position:
        """The newest position; offset 0 and an empty epoch for a stream never heard of."""

    async def partition_key(self, stream: str) -> str:
        """What decides the stream's shard; its name, unless its first publication said otherwise."""

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        """Streams in order of name, strictly after `after`."""

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        """Kept messages with offsets above `after`, bounded as `replay` is; None for an unknown stream."""


@runtime_checkable
class DerivedPartitions(Protocol):
    """A `StreamStore` that finds a stream by its name alone: the partition key follows from it."""

    def derive_partition(self, stream: str) -> str: ...


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

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Remove and return every session with these ids, in one step: none of them can be taken or expires any more. With
        `Leases` their nodes are told with the same `reconnect`."""

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        """Expired sessions, at most `limit`. Each is returned once."""

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
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

    `near`: it is on the same machine, so that changes are written at once and need not wait for others to come.
    """

    same_host: bool

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        """Keep the lease of this node for `ttl` seconds from now. `heard`: sids of earlier answers that need not be said again.

        One that had ended begins anew under another number, and with nothing: a node that is told another number than before
        writes its sessions and joins its members again.

        A store that may have lost writes returns another number too. What the node does not register again ends as if the node
        had died after this call: its departure may be among the lost writes.
        """

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        """Write sessions of this node as they are now; each by itself, in one step. Returns those that were not written because
        they are not the node's any more, for the reason that `renew` gives; without `began`, also those that the store does
        not know. Raises `Unavailable`, and may be repeated."""


class RecordQueue(Protocol):
    """What a shared store keeps for the one node that records it in a journal: everything registered, and rows that nodes add.

    It is empty and takes nothing until a node claims it for the first time. From then on a publication enters in the step that
    registers it, on whichever node. Rows of one stream keep their order, and so do those that one node adds. It is bounded:
    past that the oldest rows go and are counted. Everything may raise `Unavailable` and `Unanswered`.
    """

    async def claim(self, ttl: float) -> bool:
        """This node records for `ttl` seconds from now, unless another one does. May be repeated."""

    async def read(self, limit: int) -> QueuedRows:
        """The oldest rows, at most `limit`; the same again until they are removed. May be repeated."""

    async def remove(self, piece: QueuedRows) -> bool:
        """Its rows are recorded. False, and nothing is removed, where this node does not hold the claim. May be repeated."""

    async def add(self, rows: Sequence[Row]) -> bool:
        """Rows about sessions and presence. False where nobody has ever claimed the record queue: then they are not kept."""

    def gauges(self) -> dict[str, float]:
        """For the metrics page, as far as this node has heard: record_queue_rows, record_queue_dropped_rows."""


Deliver = Callable[[Sequence[Deliverable]], None]
OnDisconnectRequest = Callable[[EndRequest], Awaitable[int]]
"""Returns how many sessions were ended."""


class OnMissed(Protocol):
    """Messages may have been lost: of these streams, or of any."""

    def __call__(self, streams: Collection[str] | None = None) -> None: ...


def ignore_missed(streams: Collection[str] | None = None) -> None:
    pass


class Feed(Protocol):
    """Brings what is registered, and orders, to every process that wants to hear of it, this one included.

    Messages of one stream mostly come once and in order. Unless the feed is `exact` that is not promised: some may be lost,
    late or repeated, and readers go by the positions.
    """

    @property
    def exact(self) -> bool:
        """Every message of every stream is delivered once, in order, in the very step in which it becomes readable. Nobody
        calls `listen` then."""

    @property
    def reports_losses(self) -> bool:
        """Nothing is lost without a call of `missed`, so that readers need not look for it from time to time."""

    async def start(
        self, deliver: Deliver, on_disconnect_request: OnDisconnectRequest, on_missed: OnMissed = ignore_missed
    ) -> None:
        """`deliver` never raises and never blocks; bounded queues before it may lose what does not fit. `on_missed` is called
        when messages may have been lost, as while a connection was down, so that readers look for them at once."""

    async def stop(self) -> None: ...

    async def listen(self, stream: str) -> None:
        """Returns when messages that are registered from now on are brought here. Raises `Unavailable`."""

    def unlisten(self, stream: str) -> None:
        """Nobody here wants to hear of the stream any more. What comes nevertheless does no harm."""

    def publish(self, messages: Sequence[Registered]) -> None:
        """Hand over transient messages, in order; never blocks. Those with a position come from the store."""

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """The same for runs. A feed that cannot carry them as they are hands over their messages. None: more may come at once,
        always so where the feed is `exact`. Otherwise whoever brings more waits for the answer, which may raise
        `Unavailable`. `confirm`: the answer is to say that they were passed on, not only that they are on their way."""

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """How many sessions of this process were ended. Raises `Unavailable` where that may not outlive a crash; they are
        ended all the same, and the same order again is safe."""

    def health(self) -> str: ...


@runtime_checkable
class PrefixFeed(Protocol):
    """A `Feed` that can also bring whatever is registered on all streams whose key begins with something.

    While its connection stands it brings each message once, and those of a stream in order. After a loss it calls `missed`.
    """

    async def listen_prefix(self, prefix: bytes) -> None:
        """As `Feed.listen`. May be repeated."""

    def unlisten_prefix(self, prefix: bytes) -> None:
        """As `Feed.unlisten`."""


class Backend(Protocol):
    """The three stores of one backend."""

    @property
    def streams(self) -> StreamStore: ...
    @property
    def sessions(self) -> SessionStore: ...
    @property
    def presence(self) -> PresenceStore: ...
    @property
    def feed(self) -> Feed:
        """What brings its registered messages to the processes that share it."""

    @property
    def leases(self) -> Leases | None:
        """None: the stores are this process's own, and nothing need be written while it lives."""

    @property
    def record_queue(self) -> RecordQueue | None:
        """None: whoever wants a journal writes it here, with every append."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def health(self) -> str:
        """Why it cannot work now, for the health page. "" means healthy."""

    async def sweep(self) -> None:
        """Remove what has expired, all of it, in slices that let other work go first; called about once a second."""

    def reload_rules(self) -> None:
        """The rulebook it was made with says something else now."""

    def gauges(self) -> dict[str, float]:
        """Sizes for the metrics page, not older than the last sweep: streams, history_messages, history_bytes, sessions_kept,
        sessions_kept_bytes, presence_members, dedup_keys."""
