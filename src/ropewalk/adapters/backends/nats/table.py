"""Small records that all nodes share: each has a copy of all of them, kept up by a JetStream consumer.

Invariant: copies change only by what comes from JetStream, in the order in which it was stored there. Who writes says which
record it has seen, and is refused if that is not the last one; who reads asks first how far JetStream has come, and waits until
its copy has come as far.
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
"""Without a word of the consumer for longer it is asked for anew."""

TOMBSTONE_SECONDS = 120.0
ATTEMPTS = 50
FORGOTTEN_AT_ONCE = 16
AROUND_BYTES = 8192
RECENT_RECORDS = 32
"""The last records that came: JetStream is asked whether it still has them. Most of them are replaced soon by newer ones."""

PROBE = "probe"
"""A record that says nothing."""


class Change(Struct, frozen=True):
    """A record to be written; without data it is removed. `checked`: only if nobody has written it since it was seen here."""

    key: str
    data: bytes = b""
    checked: bool = True
    ttl: float | None = None


class Applied(Struct, frozen=True):
    """A record that came. `fresh`: it was written while this node was looking, or while it could not; otherwise it is part of
    what was there when the node began."""

    key: str
    data: bytes
    seq: int
    fresh: bool


class Table:
    """`apply` is called for every record, in order; `reset` when all of them come anew, because JetStream has lost some."""

    def __init__(self, link: NatsLink, prefix: str, replicas: int, metadata: dict[str, str]) -> None:
        self._link = link
        self._jet = f"{prefix.upper()}_STATE"
        self._prefix = f"{prefix}.k."
        self._config = jets.config(self._jet, [f"{prefix}.k.>"], replicas, 1, metadata=metadata)
        self.apply: Callable[[Applied], None] = lambda applied: None
        self.reset: Callable[[], None] = lambda: None
        self.revisions: dict[str, int] = {}  # of records that are there, and of some that were removed
        self._expiring = Expiry()
        self.metadata: dict[str, str] = {}
        self._created = ""
        self._seen = 0
        self._recent: deque[tuple[int, str, bytes]] = deque(maxlen=RECENT_RECORDS)  # sequence, key, digest
        self._loaded = 0  # up to here it is what was there at the beginning
        self._came: asyncio.Condition = asyncio.Condition()
        self._consumed = 0
        self._goal = 0  # how far JetStream had come when it was asked; the last messages up to there may be gone
        self._heard = 0.0
        self._subscription: Subscription | None = None
        self._inbox = ""  # of the consumer that counts: an earlier one may still deliver
        self._watching: asyncio.Task[None] | None = None
        self._broken = asyncio.Event()
        self._asking: asyncio.Task[int] | None = None
        self._ready = asyncio.Event()
        self.trouble = ""  # why the copy is not kept up, "" if it is

    # --- keeping the copy up ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        tasks = [task for task in (self._watching, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def doubt(self) -> None:
        """The consumer may be gone."""
        self._broken.set()

    def _doubt(self, trouble: str) -> None:
        self.trouble = trouble
        self._broken.set()

    @property
    def ready(self) -> bool:
        """Whether the copy was complete once."""
        return self._ready.is_set()

    @property
    def most_bytes(self) -> int:
        """Of a record, with room for what NATS counts beside it."""
        return self._link.max_payload - AROUND_BYTES

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
            except Exception:  # whatever it is, nobody else would try again
                logger.exception("the records of the cluster cannot be read")
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                await self._unsubscribe()

    async def _quiet(self) -> bool:
        """Wait a moment; False when the consumer has to be asked for anew."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._broken.wait()
            return False
        except TimeoutError:
            return asyncio.get_running_loop().time() - self._heard < QUIET_SECONDS

    async def _consume(self) -> None:
        self._inbox = inbox = f"_INBOX.{token_hex(12)}"
        found = await jets.ensure(self._link, self._config)
        self.metadata = found["config"].get("metadata") or {}
        last = found["state"]["last_seq"]
        lost = found["created"] != self._created
        if not lost and last < self._seen:
            # Of several servers, one that was paused answers with what it had then; but it can store nothing.
            last = await self._probe()
            lost = last <= self._seen
        if lost or await self._were_replaced():
            if self._created:
                logger.error("NATS has lost sessions and members of the cluster")
            self._created, self._seen, self._loaded = found["created"], 0, last
            self.revisions.clear()
            self._recent.clear()
            self._expiring = Expiry()
            self.reset()
        self._consumed, self._goal = 0, last
        self._heard = asyncio.get_running_loop().time()
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
            made = await self._link.api(f"CONSUMER.CREATE.{self._jet}", {"stream_name": self._jet, "config": consumer})
        except ApiError as error:
            raise Unavailable(f"JetStream refuses a consumer: {error}") from None
        if not made["num_pending"] and not made["delivered"]["consumer_seq"]:
            await self._reach_goal()

    async def _were_replaced(self) -> bool:
        """Whether there are other records at the sequences of the last ones that came: JetStream has lost its newest records,
        and other nodes have written since."""
        for sequence, key, digest in reversed(self._recent):
            if (stored := await self._link.at(self._jet, sequence)) is not None:
                return (stored.subject, _digest(stored.data)) != (self._prefix + key, digest)
        return False

    async def _probe(self) -> int:
        """The sequence of a record that a majority of the servers has now."""
        return await jets.store(self._link, [jets.JetWrite(self._prefix + PROBE, b"", ttl=0)])

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except Exception as error:  # the connection went meanwhile, and the subscription with it
                logger.debug("cannot unsubscribe", extra={"reason": str(error)})

    async def _receive(self, inbox: str, message: Msg) -> None:
        if inbox != self._inbox:
            return
        self._heard = asyncio.get_running_loop().time()
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
            self._expiring.set(f"{sequence} {key}", self._heard + int(ttl))
        if key == PROBE:
            return
        try:
            self.apply(Applied(key, message.data, sequence, sequence > self._loaded))
        except Exception:  # one record that cannot be read must not stop the others
            logger.exception("a record of the cluster cannot be read", extra={"record": key})

    def _forget_expired(self) -> None:
        """NATS has removed these by now, and tells nobody."""
        for each in self._expiring.due(self._heard, FORGOTTEN_AT_ONCE):
            sequence, _, key = each.partition(" ")
            if self.revisions.get(key) == int(sequence):
                del self.revisions[key]

    async def _reach_goal(self) -> None:
        """The consumer has no more: the rest up to the goal was removed, or the consumer's server lags behind the leader."""
        try:
            rest = await self._link.following(self._jet, self._seen + 1, f"{self._prefix}>")
        except Unavailable:
            self._broken.set()
            return
        if rest is None or rest.seq > self._goal:
            await self._reach(self._goal)

    async def _reach(self, sequence: int) -> None:
        self._seen = max(self._seen, sequence)
        async with self._came:
            self._came.notify_all()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Until the copy has everything that was stored before this call. Raises `Unavailable`, `Unanswered`."""
        asking = self._asking
        if asking is not None:  # that question may have been asked before the call: the next one is shared
            await asyncio.wait([asking])
        if self._asking is None or self._asking is asking:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(_heard_of)  # those who asked may have given up
        await self.wait_for(await asyncio.shield(self._asking))

    async def _ask(self) -> int:
        seen = self._seen  # of now: while the answer is on its way, more may come
        found = await jets.info(self._link, self._jet)
        if found is None or found["created"] != self._created or found["state"]["last_seq"] < seen:
            self._doubt("the records of the cluster are being read anew")
            raise Unavailable(self.trouble)
        last: int = found["state"]["last_seq"]
        return last

    async def wait_for(self, sequence: int) -> None:
        if self._seen >= sequence:
            return
        try:
            async with asyncio.timeout(self._link.timeout), self._came:
                await self._came.wait_for(lambda: self._seen >= sequence)
        except TimeoutError:
            self._doubt("the records of the cluster do not come")
            raise Unanswered(self.trouble) from None

    # --- writing ------------------------------------------------------------------------------------------------------

    async def write(self, changes: Sequence[Change]) -> int:
        """All of them or none, and the copy has them then. Raises `WriteConflict`, `Unavailable`, `Unanswered`."""
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

    async def settle(self, decide: Callable[[], Sequence[Change]]) -> int:
        """Write what `decide` says by the copy; again as long as others are faster. 0 when there is nothing to write."""
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
        """What was removed long ago is removed in NATS too at some time, and nobody is told."""
        for key in keys:
            stored = await self._link.last(self._jet, self._prefix + key)
            if stored is None:
                self.revisions.pop(key, None)
            elif stored.seq <= self._seen:
                self.revisions[key] = stored.seq


def _digest(data: bytes) -> bytes:
    return sha1(data, usedforsecurity=False).digest()


def _heard_of(task: "asyncio.Task[int]") -> None:
    """Python complains of failures that nobody has looked at."""
    if not task.cancelled():
        task.exception()
