"""Small records that all nodes share. Each node has a full copy, updated by a JetStream consumer.

Invariant: a copy changes only by messages from JetStream, in the order in which they were stored. A write names the revision
that the node has seen and is rejected if there is a newer one. A read first asks JetStream for its last sequence and waits
until the copy has reached it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha1
from secrets import token_hex

from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ropewalk.adapters.backends.nats import jets
from ropewalk.adapters.backends.nats.link import RETRY_SECONDS, ApiError, NatsLink
from ropewalk.core.expiry import Expiry
from ropewalk.model.errors import Unanswered, Unavailable

logger = logging.getLogger("ropewalk.nats")

HEARTBEAT_SECONDS = 1
QUIET_SECONDS = 3.5
"""The consumer is created again if nothing arrives for longer."""

TOMBSTONE_SECONDS = 120.0
ATTEMPTS = 50
EXPIRED_AT_ONCE = 16
OVERHEAD_BYTES = 8192
RECENT_RECORDS = 32
"""The newest records received, to check whether JetStream still has them. Several, because most are soon replaced."""

PROBE = "probe"
"""The key of a record without content."""


class Change(Struct, frozen=True):
    """A write of one record; empty data removes it. `checked`: reject the write if there is a newer revision than in the
    copy."""

    key: str
    data: bytes = b""
    checked: bool = True
    ttl: float | None = None


class Applied(Struct, frozen=True):
    """A received record. `fresh`: written after this node loaded the table, even if it was disconnected then."""

    key: str
    data: bytes
    seq: int
    fresh: bool


class Table:
    """Calls `apply` for every record, in order, and `reset` before it reloads all records because JetStream has lost some."""

    def __init__(self, link: NatsLink, prefix: str, replicas: int, metadata: dict[str, str]) -> None:
        self._link = link
        self.jet = f"{prefix.upper()}_STATE"
        self._prefix = f"{prefix}.k."
        self._config = jets.config(self.jet, [f"{prefix}.k.>"], replicas, 1, metadata=metadata)
        self.apply: Callable[[Applied], None] = lambda applied: None
        self.reset: Callable[[], None] = lambda: None
        self.revisions: dict[str, int] = {}  # of existing records and of some removed ones
        self._expiring = Expiry()
        self.metadata: dict[str, str] = {}
        self._created = ""
        self._seen = 0
        self._recent: deque[tuple[int, str, bytes]] = deque(maxlen=RECENT_RECORDS)  # sequence, key, digest
        self._loaded = 0  # records up to this sequence were there at the first load
        self._advanced: asyncio.Condition = asyncio.Condition()
        self._consumed = 0
        self._goal = 0  # the last sequence of JetStream at the start of the consumer; messages before it may be gone
        self._last_received = 0.0
        self._subscription: Subscription | None = None
        self._inbox = ""  # of the current consumer: an earlier one may still deliver
        self._watching: asyncio.Task[None] | None = None
        self._broken = asyncio.Event()
        self._tip_request: asyncio.Task[int] | None = None
        self._ready = asyncio.Event()
        self.trouble = ""  # why the copy is not up to date, "" if it is

    # --- the consumer -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        tasks = [task for task in (self._watching, self._tip_request) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def resubscribe(self) -> None:
        """Create the consumer again: it may be gone."""
        self._broken.set()

    def mark_deleted(self) -> None:
        """Someone has deleted the JetStream stream. It is created again, and until then there is `trouble`."""
        self._mark_stale(f"JetStream has lost {self.jet}")

    def _mark_stale(self, trouble: str) -> None:
        self.trouble = trouble
        self._broken.set()

    @property
    def ready(self) -> bool:
        """Whether the copy has been complete once."""
        return self._ready.is_set()

    @property
    def max_record_bytes(self) -> int:
        """Leaves room for the subject and headers, which NATS counts too."""
        return self._link.max_payload - OVERHEAD_BYTES

    async def until_ready(self) -> None:
        await self._ready.wait()

    async def _watch(self) -> None:
        while True:
            self._broken.clear()
            try:
                await self._consume()
                await self.wait_for(self._loaded)
                self._ready.set()
                self.trouble = ""
                while await self._quiet():
                    pass
            except Unavailable as error:
                self.trouble = str(error)
                logger.debug("the records of the cluster cannot be read yet", extra={"reason": self.trouble})
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # keep trying: no other task restarts this one
                logger.exception("the records of the cluster cannot be read")
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                await self._unsubscribe()

    async def _quiet(self) -> bool:
        """Wait one heartbeat. False if the consumer must be created again."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._broken.wait()
            return False
        except TimeoutError:
            return asyncio.get_running_loop().time() - self._last_received < QUIET_SECONDS

    async def _consume(self) -> None:
        self._inbox = inbox = f"_INBOX.{token_hex(12)}"
        found = await jets.ensure(self._link, self._config)
        self.metadata = found["config"].get("metadata") or {}
        last = found["state"]["last_seq"]
        lost = found["created"] != self._created
        if not lost and last < self._seen:
            # A server that was paused answers with its old state, but it cannot store anything.
            last = await self._probe()
            lost = last <= self._seen
        if lost or await self._were_replaced():
            if self._created:
                logger.error("NATS has lost sessions and presence members of the cluster")
            self._created, self._seen, self._loaded = found["created"], 0, last
            self.revisions.clear()
            self._recent.clear()
            self._expiring = Expiry()
            self.reset()
        self._consumed, self._goal = 0, last
        self._last_received = asyncio.get_running_loop().time()
        self._subscription = await self._link.subscribe(inbox, partial(self._receive, inbox))
        consumer = {
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._seen + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "idle_heartbeat": HEARTBEAT_SECONDS * 1_000_000_000,
            "inactive_threshold": 30_000_000_000,
            "num_replicas": 1,
            "mem_storage": True,
            "max_deliver": 1,
        }
        try:
            made = await self._link.api(f"CONSUMER.CREATE.{self.jet}", {"stream_name": self.jet, "config": consumer})
        except ApiError as error:
            raise Unavailable(f"JetStream refuses a consumer: {error}") from None
        if not made["num_pending"] and not made["delivered"]["consumer_seq"]:
            await self._reach_goal()

    async def _were_replaced(self) -> bool:
        """Whether JetStream now has other records at the newest known sequences: it lost records and other nodes have written
        since."""
        for sequence, key, digest in reversed(self._recent):
            if (stored := await self._link.at(self.jet, sequence)) is not None:
                return (stored.subject, _digest(stored.data)) != (self._prefix + key, digest)
        return False

    async def _probe(self) -> int:
        """Store an empty record on a majority of the servers. Returns its sequence."""
        return await jets.store(self._link, [jets.JetWrite(self._prefix + PROBE, b"", ttl=0)])

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except Exception as error:  # the connection was lost, and the subscription with it
                logger.debug("cannot unsubscribe", extra={"reason": str(error)})

    async def _receive(self, inbox: str, message: Msg) -> None:
        if inbox != self._inbox:
            return
        self._last_received = asyncio.get_running_loop().time()
        if message.headers and message.headers.get("Status") == "100":
            if int(message.headers.get("Nats-Last-Consumer", self._consumed)) > self._consumed:
                self._broken.set()  # the last message was lost
            return
        # $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<sequence of the consumer>.<time>.<pending>
        *_, sequence, consumed, _, pending = message.reply.split(".")
        if int(consumed) != self._consumed + 1:
            self._broken.set()
            return
        self._consumed += 1
        if int(sequence) > self._seen:
            self._take(message, int(sequence))
            await self._reach(int(sequence))
            if pending == "0" and self._seen < self._goal:
                await self._reach_goal()

    def _take(self, message: Msg, sequence: int) -> None:
        key = message.subject.removeprefix(self._prefix)
        self.revisions[key] = sequence
        self._recent.append((sequence, key, _digest(message.data)))
        self._forget_expired()
        if message.headers and (ttl := message.headers.get("Nats-TTL")):
            self._expiring.set(f"{sequence} {key}", self._last_received + int(ttl))
        if key == PROBE:
            return
        try:
            self.apply(Applied(key, message.data, sequence, sequence > self._loaded))
        except Exception:  # a malformed record must not block the others
            logger.exception("a record of the cluster cannot be read", extra={"record": key})

    def _forget_expired(self) -> None:
        """Forget records that NATS has expired. It does not notify consumers."""
        for each in self._expiring.due(self._last_received, EXPIRED_AT_ONCE):
            sequence, _, key = each.partition(" ")
            if self.revisions.get(key) == int(sequence):
                del self.revisions[key]

    async def _reach_goal(self) -> None:
        """The consumer has no more messages: those up to the goal were removed, or its server lags behind the leader."""
        try:
            rest = await self._link.following(self.jet, self._seen + 1, f"{self._prefix}>")
        except Unavailable:
            self._broken.set()
            return
        if rest is None or rest.seq > self._goal:
            await self._reach(self._goal)

    async def _reach(self, sequence: int) -> None:
        self._seen = max(self._seen, sequence)
        async with self._advanced:
            self._advanced.notify_all()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Returns once the copy has every record stored before this call. Raises `Unavailable`, `Unanswered`."""
        request = self._tip_request
        if request is not None:  # it may have been sent before this call; share the next one
            await asyncio.wait([request])
        if self._tip_request is None or self._tip_request is request:
            self._tip_request = asyncio.get_running_loop().create_task(self._read_tip())
            self._tip_request.add_done_callback(_retrieve_failure)  # the callers may have been cancelled
        await self.wait_for(await asyncio.shield(self._tip_request))

    async def _read_tip(self) -> int:
        seen = self._seen  # read before the request: more may arrive while it is pending
        found = await jets.info(self._link, self.jet)
        if found is None or found["created"] != self._created or found["state"]["last_seq"] < seen:
            self._mark_stale("reading the records of the cluster again")
            raise Unavailable(self.trouble)
        last: int = found["state"]["last_seq"]
        return last

    async def wait_for(self, sequence: int) -> None:
        if self._seen >= sequence:
            return
        try:
            async with asyncio.timeout(self._link.timeout), self._advanced:
                await self._advanced.wait_for(lambda: self._seen >= sequence)
        except TimeoutError:
            self._mark_stale("timeout while reading the records of the cluster")
            raise Unanswered(self.trouble) from None

    # --- writing ------------------------------------------------------------------------------------------------------

    async def write(self, changes: Sequence[Change]) -> int:
        """Atomic. Returns once the copy has the records. Raises `WriteConflict`, `Unavailable`, `Unanswered`."""
        if not self.ready:
            raise Unavailable("the records of the cluster have not been read yet")
        writes = [
            jets.JetWrite(
                self._prefix + change.key,
                change.data,
                self.revisions.get(change.key, 0) if change.checked else None,
                change.ttl if change.data else TOMBSTONE_SECONDS,
            )
            for change in changes
        ]
        sequence = await jets.store(self._link, writes)
        await self.wait_for(sequence)
        return sequence

    async def update(self, decide: Callable[[], Sequence[Change]]) -> int:
        """Write the changes that `decide` derives from the copy; retry after a conflict. Returns 0 if there are none."""
        for attempt in range(ATTEMPTS):
            changes = decide()
            if not changes:
                return 0
            try:
                return await self.write(changes)
            except jets.WriteConflict:
                await self.catch_up()
                if attempt:
                    await self._correct([change.key for change in changes])
        raise Unavailable("other nodes change the same record all the time")

    async def _correct(self, keys: Sequence[str]) -> None:
        """Read the real revisions. NATS removes tombstones without notice."""
        for key in keys:
            stored = await self._link.last(self.jet, self._prefix + key)
            if stored is None:
                self.revisions.pop(key, None)
            elif stored.seq <= self._seen:
                self.revisions[key] = stored.seq


def _digest(data: bytes) -> bytes:
    return sha1(data, usedforsecurity=False).digest()


def _retrieve_failure(task: "asyncio.Task[int]") -> None:
    """Prevent asyncio's warning about an exception that was never retrieved."""
    if not task.cancelled():
        task.exception()
