"""Implements `ports.PresenceStore`: one record per member, with the sids that hold it.

Invariant: joins and leaves are derived from changes of the copy of the records. So every node notifies its own listeners of
changes by any node, and a node that was cut off catches up.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ropewalk.adapters.backends.nats.names import token
from ropewalk.adapters.backends.nats.table import Applied, Change, Table
from ropewalk.core.expiry import Expiry
from ropewalk.core.roster import Roster
from ropewalk.model.errors import LimitReached
from ropewalk.model.limits import StoreLimits
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.ports import Clock

NO_LIMIT = 1 << 60
TURNS = 256
EXPIRED_AT_ONCE = 200
"""Seats that are changed concurrently when sids or nodes have expired."""


T = TypeVar("T")
Hold = tuple[str, float | None]
"""The node of a sid, and its deadline if it is disconnected."""


MAX_INFOS = 8
"""Infos kept per seat, the first and the newest ones, so that a record stays small."""


class Seat(Struct, frozen=True):
    """A member and the sids that hold it. `said`: their infos in the order of their joins. The last one is shown."""

    stream: str
    member: Member
    sids: dict[str, Hold]
    said: dict[str, bytes] = {}

    def join(self, sid: str, hold: Hold, info: bytes) -> "Seat":
        said = {other: before for other, before in self.said.items() if other != sid}
        if len(said) >= MAX_INFOS:
            del said[list(said)[1]]
        return replace(self, member=Member(self.member.id, info), sids={**self.sids, sid: hold}, said={**said, sid: info})

    def without(self, over: Collection[str]) -> "Seat":
        sids = {sid: hold for sid, hold in self.sids.items() if sid not in over}
        said = {sid: info for sid, info in self.said.items() if sid not in over}
        info = list(said.values())[-1] if said else self.member.info
        return replace(self, member=Member(self.member.id, info), sids=sids, said=said)


_decoder = msgspec.msgpack.Decoder(Seat)


def seat_key(stream: str, member_id: str) -> str:
    return f"m.{token(stream)}.{token(member_id)}"


class NatsPresence:
    def __init__(
        self,
        table: Table,
        node: str,
        clock: Clock,
        limits: StoreLimits,
        on_events: Callable[[Sequence[PresenceEvent]], None],
    ) -> None:
        self._table = table
        self._node = node
        self._clock = clock
        self._ttl = limits.presence_ttl
        self._max_members = limits.max_members
        self._on_events = on_events
        # Changes of a member on this node are serialized, so that only other nodes cause conflicts.
        self._turns = [asyncio.Lock() for _ in range(TURNS)]
        self.clear()

    def clear(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._roster = Roster(NO_LIMIT)
        self._held: dict[str, set[str]] = {}  # sid → keys
        self._deadlines = Expiry()
        self._of_node: dict[str, set[tuple[str, str]]] = {}  # keys and sids that are connected there

    def _turn(self, key: str) -> asyncio.Lock:
        return self._turns[hash(key) % TURNS]

    @property
    def member_count(self) -> int:
        return self._roster.members

    def nodes(self) -> set[str]:
        return {node for node, holds in self._of_node.items() if holds}

    # --- the copy -----------------------------------------------------------------------------------------------------

    def apply(self, applied: Applied) -> None:
        before = self._seats.pop(applied.key, None)
        after = _decoder.decode(applied.data) if applied.data else None
        events = self._leave(before) if before else []
        if before:
            for sid, (node, _) in before.sids.items():
                _discard(self._held, sid, applied.key)
                _discard(self._of_node, node, (applied.key, sid))
        self._deadlines.discard(applied.key)
        if after:
            self._seats[applied.key] = after
            for sid, (node, deadline) in after.sids.items():
                events += self._roster.join(after.stream, sid, after.member)
                self._held.setdefault(sid, set()).add(applied.key)
                if deadline is None:
                    self._of_node.setdefault(node, set()).add((applied.key, sid))
            if due := [deadline for _, deadline in after.sids.values() if deadline is not None]:
                self._deadlines.set(applied.key, min(due))
        if before and after:
            events = []  # still present; only its sids have changed
        if events and applied.fresh:
            self._on_events(events)

    def _leave(self, before: Seat) -> list[PresenceEvent]:
        return [event for sid in before.sids for event in self._roster.leave(before.stream, sid)]

    # --- the port -----------------------------------------------------------------------------------------------------

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        key = seat_key(stream, member.id)
        async with self._turn(key):
            await self._table.catch_up()
            events: list[PresenceEvent] = []

            def decide() -> Sequence[Change]:
                events.clear()
                changes = []
                for other in self._held.get(sid, set()) - {key}:
                    if self._seats[other].stream == stream:
                        changes += self._without(other, sid, events)
                seat = self._seats.get(key)
                if seat is None:
                    self._check_room(stream, freed=bool(events))
                    events.append(PresenceEvent("join", stream, member))
                seat = seat or Seat(stream, member, {})
                # Written even if nothing changes: a node that still ends the seats of this node's former lease gets a conflict.
                return [*changes, _change(key, seat.join(sid, (self._node, None), member.info))]

            await self._table.update(decide)
            return events

    def _check_room(self, stream: str, freed: bool) -> None:
        if self._roster.page(stream, "", 1).total - freed >= self._max_members:
            raise LimitReached(f"presence of stream {stream!r} is full: {self._max_members} members")

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        await self._table.catch_up()
        events: list[PresenceEvent] = []

        def decide() -> Sequence[Change]:
            events.clear()
            keys = [key for key in self._held.get(sid, ()) if self._seats[key].stream == stream]
            return [change for key in keys for change in self._without(key, sid, events)]

        await self._table.update(decide)
        return events

    async def detach(self, sid: str, ttl: float) -> None:
        await self._table.catch_up()
        await self._hold(lambda key, seat: {sid: (seat.sids[sid][0], self._clock() + ttl)}, sid)

    async def _hold(self, holds: Callable[[str, Seat], dict[str, Hold]], sid: str) -> None:
        """Change how a sid holds its seats."""
        for key in sorted(self._held.get(sid, ())):

            def decide(key: str = key) -> Sequence[Change]:
                seat = self._seats.get(key)
                if seat is None or sid not in seat.sids:
                    return ()
                return [_change(key, replace(seat, sids={**seat.sids, **holds(key, seat)}))]

            await self._update(key, decide)

    async def _update(self, key: str, decide: Callable[[], Sequence[Change]]) -> None:
        async with self._turn(key):
            await self._table.update(decide)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        await self._table.catch_up()
        for key in sorted(self._held.get(old_sid, set()) | self._held.get(new_sid, set())):

            def decide(key: str = key) -> Sequence[Change]:
                seat = self._seats.get(key)
                if seat is None or not seat.sids.keys() & {old_sid, new_sid}:
                    return ()
                adopted = self._adopted(seat, old_sid, new_sid)
                return [] if adopted == seat else [_change(key, adopted)]

            await self._update(key, decide)
        held = [self._seats[key] for key in self._held.get(new_sid, ())]
        return {seat.stream: Member(seat.member.id, seat.said.get(new_sid, seat.member.info)) for seat in held}

    def _adopted(self, seat: Seat, old_sid: str, new_sid: str) -> Seat:
        """If the new sid is already another member of the stream, it stays so, and the seat of the old sid expires."""
        others = {self._seats[key].stream for key in self._held.get(new_sid, ()) if new_sid not in seat.sids}
        if seat.stream in others:
            return replace(seat, sids={**seat.sids, old_sid: (seat.sids[old_sid][0], 0.0)})
        info = seat.said.get(new_sid, seat.said.get(old_sid))
        if old_sid != new_sid:
            seat = seat.without([old_sid])
        hold = self._node, None
        if info is None or new_sid in seat.said:
            return replace(seat, sids={**seat.sids, new_sid: hold})
        return seat.join(new_sid, hold, info)

    async def expire(self) -> list[PresenceEvent]:
        now = self._clock()
        while self._deadlines.is_due(now):
            due = self._deadlines.due(now, EXPIRED_AT_ONCE)
            expired = await asyncio.gather(*(self._expire(key, now) for key in due), return_exceptions=True)
            if failed := next((each for each in expired if isinstance(each, BaseException)), None):
                raise failed
            if events := [event for each in expired if not isinstance(each, BaseException) for event in each]:
                return events
        return []

    async def _expire(self, key: str, now: float) -> list[PresenceEvent]:
        events: list[PresenceEvent] = []

        def decide() -> Sequence[Change]:
            events.clear()
            seat = self._seats.get(key)
            over = [sid for sid, (_, end) in seat.sids.items() if end is not None and end <= now] if seat else []
            return self._without_all(key, over, events) if over else ()

        try:
            await self._update(key, decide)
        except BaseException:
            if key in self._seats:
                self._deadlines.set(key, now)
            raise
        return events

    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        await self._table.catch_up()
        return self._roster.page(stream, after, limit)

    async def node_died(self, node: str, lives: Callable[[], bool]) -> None:
        await self.leave_behind(node, lives)

    async def leave_behind(self, node: str, lives: Callable[[], bool], grace: float = 0.0) -> None:
        """The seats of a node expire after `grace` and the presence TTL, unless the node `lives` again."""
        deadline = self._clock() + grace + self._ttl
        held = sorted(self._of_node.get(node, ()))
        for begin in range(0, len(held), EXPIRED_AT_ONCE):
            batch = held[begin : begin + EXPIRED_AT_ONCE]
            await asyncio.gather(*(self._leave_behind(key, sid, node, lives, deadline) for key, sid in batch))

    async def _leave_behind(self, key: str, sid: str, node: str, lives: Callable[[], bool], deadline: float) -> None:
        def decide() -> Sequence[Change]:
            seat = self._seats.get(key)
            if seat is None or seat.sids.get(sid) != (node, None) or lives():
                return ()
            return [_change(key, replace(seat, sids={**seat.sids, sid: (node, deadline)}))]

        await self._update(key, decide)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _without(self, key: str, sid: str, events: list[PresenceEvent]) -> list[Change]:
        return self._without_all(key, [sid], events)

    def _without_all(self, key: str, over: Collection[str], events: list[PresenceEvent]) -> list[Change]:
        seat = self._seats[key].without(over)
        if seat.sids:
            return [_change(key, seat)]
        events.append(PresenceEvent("leave", seat.stream, seat.member))
        return [Change(key)]


def _change(key: str, seat: Seat) -> Change:
    return Change(key, msgspec.msgpack.encode(seat))


def _discard(index: dict[str, set[T]], name: str, item: T) -> None:
    if name in index:
        index[name].discard(item)
        if not index[name]:
            del index[name]
