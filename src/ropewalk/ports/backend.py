"""The stores of streams, sessions and presence, and the feed that delivers their changes to every process."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import QueuedRows, Row
from ropewalk.model.messages import Deliverable, Position, Publication, Receipt, Registered, RemoteDisconnect, TransientRun
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.ring import RingMember, RingReport
from ropewalk.model.sessions import EndRequest, Renewal, SessionSnapshot, SessionTaken, SessionWrite

Clock = Callable[[], float]
"""Returns UNIX seconds. Passed in everywhere, so that tests control the time."""


class Ring(Protocol):
    """The node's state of its ring, and the changes that operators make. A change takes effect here at once and is sent to the
    other nodes; then shards move. Raises `Conflict` if a change is not possible."""

    def report(self, stream: str = "") -> RingReport:
        """With the place of `stream`, if given."""

    def impairments(self) -> Sequence[str]:
        """Problems of the ring for the health page; empty while all nodes are connected."""

    async def add(self, member: RingMember) -> None:
        """Add a running node. It must be reachable at its address and prove the ring's key first. A node that starts adds
        itself."""

    def remove(self, name: str, lost: bool) -> None:
        """A live node hands over its shards, and can be stopped and removed after that. The shards of a dead node are
        reassigned only if they are declared `lost`: they restart empty, and their streams begin new epochs."""


class StreamStore(Protocol):
    """Assigns positions and keeps the hot history.

    Offsets of one epoch are 1, 2, 3 … without holes, each assigned once. A publication whose uid is known for its stream is
    not appended; it gets its original position. A read includes everything that the feed has delivered before it.

    A stream that was idle for many times its history TTL is deleted, so that short-lived names do not accumulate. If it is
    published to again, it begins a new epoch.

    A call has one of three outcomes: it succeeds; `Unavailable`, and nothing happened; or `Unanswered`, and it may have
    happened. Reads, and appends of publications with a uid or a producer, may be retried after both errors.
    """

    @property
    def resolves_unanswered(self) -> bool:
        """The store itself determines the outcome of an append to one stream after a timeout, with or without a uid. If it
        raises `Unanswered` nevertheless, a retry does not help."""

    @property
    def instant(self) -> bool:
        """`append` never suspends, so it needs no task."""

    @property
    def confirms_transient(self) -> bool:
        """`append` confirms transient publications once they are forwarded. `Feed.publish` may lose them on their way to other
        processes."""

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Register all of them in this order, or none. Returns a receipt for each. Raises `PartitionChanged`. Their `fields`
        are built by `message_fields`, with the stream's partition key.

        New messages enter the feed in the order of their positions, once they can be read; transient publications keep their
        place among the others. There is no callback: the publishing process receives them from the feed, like all others.
        """

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        """Returns the messages after `position`, at most `MAX_ANSWER_BYTES` of them but at least one. If there are more, call
        again from the end of the answer. An unknown stream returns an empty Replay for offset 0 without an epoch, and a Gap for
        any other position: an epoch that a client knows began with a message."""

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        """Returns the messages registered at or after `timestamp`, limited like `replay`. A Gap is TRIMMED if some of them are
        no longer kept, or PARTIAL."""

    async def tip(self, stream: str) -> Position:
        """The newest position; offset 0 and an empty epoch for an unknown stream."""

    async def partition_key(self, stream: str) -> str:
        """The key that decides the stream's shard: the stream's name, or the key of its first publication."""

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        """Streams in order of name, strictly after `after`."""

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        """Kept messages with offsets above `after`, limited like `replay`; None for an unknown stream."""


@runtime_checkable
class DerivedPartitions(Protocol):
    """A `StreamStore` that derives the partition key from the stream's name."""

    def derive_partition(self, stream: str) -> str: ...


class SessionStore(Protocol):
    """Keeps sessions without a connection. Bounded: if there are too many, the oldest expire.

    A store with `Leases` also has the live sessions. Calls may raise `Unavailable` and `Unanswered`; all but `take_expired`
    may be retried after both.
    """

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        """Raises `LimitReached` if the session is too large; then it is not kept."""

    async def peek(self, sid: str) -> SessionSnapshot | None:
        """Returns the result that `take` would have now, and changes nothing."""

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        """Return the snapshot and remove it, in one step: a sid is valid for one restore.

        With `Leases` the session continues in the same step as `successor`, a session of this node. The node that had it is
        notified by the feed (`SessionTaken`), and by its next `renew` or `write`. Until this node has written the successor as
        live for the first time, the old sid stays valid too, for clients that never received the new one. A repeated call
        returns the same result.
        """

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        """Remove and return all sessions with these ids, in one step: none of them can be taken or expire afterwards. With
        `Leases` their nodes are notified with the same `reconnect`."""

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        """Remove and return at most `limit` expired sessions. Each is returned once."""

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        """At shutdown: remove and return the sessions that end with the process. A store that outlives the process returns only
        the expired ones."""


class PresenceStore(Protocol):
    """Presence sets. The events of a change enter the feed as transient messages in the same step, so that they are published
    even if the process dies right after it. They are also returned, for the session log; a retry may return fewer.

    With `Leases` a sid belongs to the node that last joined or adopted for it, and ends with that node's lease. A join cancels
    `detach`. All calls may raise `Unavailable` and `Unanswered`, and may be retried.
    """

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        """If the member is present already, its info is replaced without an event. If the sid holds another member there, that
        one leaves first."""

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]: ...

    async def detach(self, sid: str, ttl: float) -> None:
        """The connection is gone: the members of this sid leave after `ttl` seconds, unless they are adopted before."""

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        """Move the members of the old sid to the restored session, without events. Returns its members by stream."""

    async def expire(self) -> list[PresenceEvent]:
        """Remove members whose TTL has ended, in slices: called about once a second, and again until the result is empty.
        Cheap if there are none."""

    async def members(self, stream: str, after: str, limit: int) -> PresencePage: ...


class Leases(Protocol):
    """The leases of a store that several nodes share. Each node has its own backend object.

    Live sessions and members belong to their node under one lease. If the lease expires, the node counts as dead: its sessions
    are kept for their TTL from then on, and `SessionStore.take_expired` returns each once, to any node; its members leave after
    the presence TTL. `Backend.sweep` of any node does this. Changes that a dead node has not written are lost.

    `same_host`: the store runs on the same machine, so changes are written at once instead of in groups.
    """

    same_host: bool

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        """Keep the lease of this node for `ttl` seconds from now. `received`: sids of earlier results, which need not be
        repeated.

        An expired lease restarts empty, under another number: if the number changes, the node writes its sessions and joins its
        members again.

        A store that may have lost writes returns another number too. Sessions that the node does not write again then end as
        if the node had died after this call: the write of their end may be among the lost ones.
        """

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        """Write the current state of this node's sessions, each in one step. Returns those that were not written because they
        no longer belong to the node, with the reason as in `renew`; without `began`, also those that the store does not know.
        Raises `Unavailable`, and may be retried."""


class RecordQueue(Protocol):
    """The queue of a shared store for the one node that records the journal: all publications, and rows that nodes add.

    It stays empty until a node claims it for the first time. From then on each publication is queued in the step that
    registers it, on any node. Rows of one stream keep their order, as do rows added by one node. It is bounded: on overflow the
    oldest rows are dropped and counted. All calls may raise `Unavailable` and `Unanswered`.
    """

    async def claim(self, ttl: float) -> bool:
        """This node records for `ttl` seconds from now. False if another node holds the claim. May be retried."""

    async def read(self, limit: int) -> QueuedRows:
        """The oldest rows, at most `limit`. Returns the same rows until they are removed. May be retried."""

    async def remove(self, piece: QueuedRows) -> bool:
        """Remove recorded rows. False if this node does not hold the claim; then nothing is removed. May be retried."""

    async def add(self, rows: Sequence[Row]) -> bool:
        """Add session and presence rows. False if no node has ever claimed the queue; then they are discarded."""

    def gauges(self) -> dict[str, float]:
        """For the metrics page, as last read by this node: record_queue_rows, record_queue_dropped_rows."""


Deliver = Callable[[Sequence[Deliverable]], None]
OnDisconnectRequest = Callable[[EndRequest], Awaitable[int]]
"""Returns the number of ended sessions."""


class OnMissed(Protocol):
    """Called when messages of these streams, or of any stream, may have been lost."""

    def __call__(self, streams: Collection[str] | None = None) -> None: ...


def ignore_missed(streams: Collection[str] | None = None) -> None:
    pass


class Feed(Protocol):
    """Delivers registered messages and disconnect requests to every process that listens, including this one.

    Messages of one stream mostly arrive once and in order. Only an `exact` feed promises it: otherwise some may be lost, late
    or repeated, and the receivers check the positions.
    """

    @property
    def exact(self) -> bool:
        """Every message of every stream is delivered once, in order, in the same step in which it becomes readable. `listen` is
        not called then."""

    @property
    def reports_losses(self) -> bool:
        """Every loss is reported by `on_missed`, so that no periodic check is needed."""

    async def start(
        self, deliver: Deliver, on_disconnect_request: OnDisconnectRequest, on_missed: OnMissed = ignore_missed
    ) -> None:
        """`deliver` never raises and never blocks; the bounded queues before it may drop messages. The feed calls `on_missed`
        when messages may have been lost, for example while a connection was down; the receiver then reads the store."""

    async def stop(self) -> None: ...

    async def listen(self, stream: str) -> None:
        """Returns once messages that are registered from then on are delivered. Raises `Unavailable`."""

    def unlisten(self, stream: str) -> None:
        """No session here uses the stream. Later messages of it are harmless."""

    def publish(self, messages: Sequence[Registered]) -> None:
        """Send transient messages, in order; never blocks. Messages with a position come from the store."""

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        """Send transient runs. A feed without support for runs sends their messages.

        Returns None if the caller may continue at once, as with any `exact` feed; otherwise it must await the result before it
        sends more, which may raise `Unavailable`. With `confirm` the result means that the runs were forwarded, not only that
        they were accepted.
        """

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Returns the number of ended sessions of this process. Raises `Unavailable` if the request may be lost in a crash; the
        sessions are ended nevertheless, and the request may be retried."""

    def health(self) -> str: ...


@runtime_checkable
class PrefixFeed(Protocol):
    """A `Feed` that can also deliver all messages of streams whose key has a prefix.

    While connected it delivers each message once, and those of a stream in order. After a loss it calls `on_missed`.
    """

    async def listen_prefix(self, prefix: bytes) -> None:
        """Like `Feed.listen`. May be repeated."""

    def unlisten_prefix(self, prefix: bytes) -> None:
        """Like `Feed.unlisten`."""


class NodeName(NamedTuple):
    """The name of a node in a shared store.

    Attributes:
        process: unique to this process. A restarted node must not renew the lease of its former process, whose sessions and
            members are gone.
        lasting: the same after a restart.
    """

    process: str
    lasting: str


class Backend(Protocol):
    """The three stores of one backend, and their feed."""

    @property
    def streams(self) -> StreamStore: ...
    @property
    def sessions(self) -> SessionStore: ...
    @property
    def presence(self) -> PresenceStore: ...
    @property
    def feed(self) -> Feed:
        """Delivers its registered messages to the processes that share it."""

    @property
    def leases(self) -> Leases | None:
        """None if the stores belong to this process: then live sessions need not be written."""

    @property
    def record_queue(self) -> RecordQueue | None:
        """None if the journal is written with each append."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def health(self) -> str:
        """The problem for the health page, or "" if healthy."""

    async def sweep(self) -> None:
        """Remove everything that has expired, in slices so that other work is not delayed. Called about once a second."""

    def reload_rules(self) -> None:
        """The rulebook passed to the constructor has changed."""

    def gauges(self) -> dict[str, float]:
        """Sizes for the metrics page, as of the last sweep: streams, history_messages, history_bytes, sessions_kept,
        sessions_kept_bytes, presence_members, dedup_keys."""
