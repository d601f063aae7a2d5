"""A node whose ring is found by leases: renews its own, looks at those of others, and does what follows from them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from ropewalk.core import ring_leases
from ropewalk.core.ring_leases import BeginRing, FoundRing, JoinRing, Verdict, WaitForRing, Watch
from ropewalk.core.ring_state import RingState
from ropewalk.model.errors import Conflict, Unavailable
from ropewalk.model.ring import MemberLease, RingMember, SeenLeases
from ropewalk.ports import MemberLeases

logger = logging.getLogger("ropewalk.ring")

ANSWER_SECONDS = 3.0
FAREWELL_SECONDS = 1.0
"""For so long a node that ends tries to say so. Others find out without it, only later."""


class LeasedMembers:
    """`me`: what this node says of itself. `away_since` tells since when there is no link to each other node, None where there
    is one, and `follow` is called when what is known of the ring has changed; both are to be set."""

    def __init__(self, state: RingState, me: MemberLease, leases: MemberLeases) -> None:
        self._state = state
        self._me = me
        self._leases = leases
        self._watch = Watch(me, time.monotonic())
        self._would_be = secrets.token_hex(8)
        self._ring = ""
        self._answered: set[str] = set()
        self._verdict = Verdict()
        self._seeking = "looking for nodes of the ring"
        self._trouble = f"{leases.store} was not reached yet, by which nodes of the ring find each other"
        self._store_missed = False  # and that was logged
        self._stuck = False  # likewise
        self._foreign = ""
        self._running: asyncio.Task[None] | None = None
        self.addresses: dict[str, str] = {}  # of members, as they say themselves
        self.away_since: Callable[[], Mapping[str, float | None]] = dict
        self.follow: Callable[[], None] = lambda: None

    async def start(self) -> None:
        await self._leases.start()
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop_looking(self) -> None:
        """This node is about to end."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def stop(self) -> None:
        """This node serves nothing any more, and says so."""
        try:
            if self._running is not None:
                await self._say_the_end()
        finally:
            await self._leases.stop()

    async def _say_the_end(self) -> None:
        self._renumber(ended=True)
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._leases.renew(self._me, ring_leases.LEASE_SECONDS)
        except (Unavailable, TimeoutError) as error:
            logger.info("others learn of the end of this node when its lease ends", extra={"reason": str(error)})

    def health(self) -> str:
        """Why this node belongs to no ring yet; "" once it does."""
        return (self._trouble or self._seeking) if self._state.seeking else ""

    def impairments(self) -> list[str]:
        kept = [
            f"{name} does not renew its lease, and what it holds may be in its journal: start it again, or declare it lost"
            f" (ropewalk ring remove {name} --lost)"
            for name in self._verdict.kept
        ]
        doubtful = ", ".join(self._verdict.doubtful)
        cut = [f"too few nodes renew their leases to tell dead ones from a cut: {doubtful} may have to be declared lost"]
        return [*filter(None, (self._trouble, self._foreign, self._state.paused)), *kept, *(cut if doubtful else [])]

    # --- one look after another ---------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # whatever it is, nobody else would look again
                logger.exception("the leases of the ring were not looked at")
            await asyncio.sleep(ring_leases.RENEW_SECONDS)

    async def _look(self) -> None:
        asked = time.monotonic()
        self._renumber()
        self._pause()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                seen = await self._leases.renew(self._me, ring_leases.LEASE_SECONDS)
                self._watch.saw(asked, time.monotonic(), seen)
                await (self._seek(seen) if self._state.seeking else self._look_after(seen))
            self._say("")
        except (Unavailable, TimeoutError) as error:
            self._watch.missed()
            self._verdict = Verdict()
            self._say(
                f"{self._leases.store} is not reached, by which nodes of the ring find each other: {error}".removesuffix(": ")
            )
        self._pause()

    def _renumber(self, ended: bool = False) -> None:
        ring, links = "" if self._state.seeking else self._ring, () if ended else self._linked()
        self._me = replace(self._me, number=self._me.number + 1, ring=ring, links=links, ended=ended)

    def _pause(self) -> None:
        table = self._state.table
        self._state.paused = ring_leases.pause(self._watch, self._me, table.members, self._linked(), time.monotonic())

    def _linked(self) -> tuple[str, ...]:
        return tuple(sorted(name for name, since in self.away_since().items() if since is None))

    def _say(self, trouble: str) -> None:
        self._trouble = trouble
        if bool(trouble) == self._store_missed:
            return
        self._store_missed = bool(trouble)
        if not trouble:
            logger.info("%s is reached, by which nodes of the ring find each other", self._leases.store)
        elif self._state.seeking:
            logger.warning(
                "waiting for %s, by which nodes of the ring find each other", self._leases.store, extra={"reason": trouble}
            )
        else:
            logger.warning("the ring goes on without leases", extra={"reason": trouble})

    async def _seek(self, seen: SeenLeases) -> None:
        state, me = self._state, self._me
        shards = state.table.shards
        step = ring_leases.next_step(me, shards, self._would_be, seen, self._watch, self._leases.place)
        match step:
            case FoundRing(record=record):
                if await self._leases.replace_record(seen, record):
                    self._found()
            case BeginRing():
                self._found()
            case JoinRing(record=record, members=members):
                if record != seen.record and not await self._leases.replace_record(seen, record):
                    return
                self._ring = record.ring
                self._seeking = f"joining the ring of {', '.join(member.name for member in members)}, not reached yet"
                state.guess((self._member, *members))
                self.follow()
            case WaitForRing(reason=reason, stuck=stuck):
                if stuck and reason != self._seeking:
                    self._stuck = True
                    logger.warning("waiting to join the ring", extra={"reason": reason})
                self._seeking = reason

    @property
    def _member(self) -> RingMember:
        return RingMember(self._me.name, self._me.address)

    def _found(self) -> None:
        logger.info("founding a ring", extra={"ring": self._would_be, "node": self._me.name})
        self._ring = self._would_be
        self._state.found(self._member)
        self.follow()

    async def _look_after(self, seen: SeenLeases) -> None:
        """Of a ring that this node knows."""
        if self._stuck:
            self._stuck = False
            logger.info("this node has its ring, and waits no more")
        state, record = self._state, seen.record
        if not self._ring and record is not None and self._me.name in record.members:
            self._ring = record.ring
        if record is not None:
            latest = self._watch.latest(seen)
            self.addresses = {lease.name: lease.address for lease in latest if lease.ring == record.ring}
        self._foreign = ""
        if record is not None and record.ring != self._ring:
            self._foreign = f"{self._leases.place} is that of another ring, or of this one without this node"
        elif state.belongs:
            await self._keep_record(seen)
        self._join_again()
        self._declare()

    async def _keep_record(self, seen: SeenLeases) -> None:
        record = ring_leases.record_of(self._ring or self._would_be, self._state.table, seen, self._watch, self._me)
        if record != seen.record:
            await self._leases.replace_record(seen, record)

    def _join_again(self) -> None:
        unanswered = ring_leases.declared(self._state.table.changes, self._me) - self._answered
        self._answered |= unanswered
        if unanswered and not self._state.belongs:
            logger.warning("this node was declared lost and lives: it has dropped what it held, and joins again")
            self._state.may_join_again()
            self.follow()

    def _declare(self) -> None:
        state = self._state
        now = time.monotonic()
        away = {name: 0.0 if since is None else now - since for name, since in self.away_since().items()}
        self._verdict = ring_leases.verdict(self._watch, state.me, state.table.members, away)
        for name in self._verdict.lost:
            reason = "was stopped" if self._watch.ended(name) else "does not renew its lease"
            logger.warning("a node %s and had no journal: it is declared lost", reason, extra={"node": name})
            try:
                state.make(state.removal(ring_leases.declaration(self._watch, name), name, alive=False, lost=True))
            except Conflict as conflict:
                logger.warning("a node cannot be declared lost", extra={"node": name, "reason": str(conflict)})
        if self._verdict.lost:
            self.follow()
