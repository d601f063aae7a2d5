"""Presence sets: the members of each stream, and the sessions that hold them.

Invariant: a member joins with its first sid and leaves with its last one, and both are reported once. Each sid has its own info
of the member, which is removed with the sid.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from ropewalk.core.expiry import Expiry
from ropewalk.core.names import OrderedNames
from ropewalk.model.errors import LimitReached
from ropewalk.model.presence import Member, PresenceEvent, PresencePage

MAX_EXPIRED_AT_ONCE = 2000
"""Sids that one call of `expire` checks: a few milliseconds of work, even after a mass disconnect."""


class _Seat:
    """One member in one stream, and the sids that hold it there, each with its info of the member."""

    __slots__ = ("sids",)

    def __init__(self) -> None:
        self.sids: dict[str, Member] = {}  # in the order of their joins

    @property
    def member(self) -> Member:
        """With the info of the latest join that is still present."""
        return self.sids[next(reversed(self.sids))]


class _Set:
    """The members of one stream: by id, and their ids in order for paging."""

    __slots__ = ("ids", "seats")

    def __init__(self) -> None:
        self.seats: dict[str, _Seat] = {}
        self.ids = OrderedNames()


class Roster:
    """All presence sets. The cost of a join, a leave and a page does not depend on the size of the set."""

    def __init__(self, max_members: int = 10_000) -> None:
        self._max_members = max_members
        self._sets: dict[str, _Set] = {}
        self._held: dict[str, dict[str, str]] = {}  # sid -> stream -> member id
        self._detached = Expiry()
        self.members = 0

    def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        """Raises `LimitReached` without a change. A detached sid that joins stays detached."""
        before = self._held.get(sid, {}).get(stream)
        if before is not None and before != member.id:
            self._check_room(stream, member.id, freed=self._is_alone(stream, before))
            return [*self._vacate(stream, sid, before), *self._occupy(stream, sid, member)]
        self._check_room(stream, member.id, freed=False)
        return list(self._occupy(stream, sid, member))

    def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        """Without effect if the sid holds no member there."""
        return list(self._release(stream, sid)) if stream in self._held.get(sid, {}) else []

    def holds(self, sid: str) -> bool:
        return sid in self._held

    def detach(self, sid: str, deadline: float) -> None:
        if sid in self._held:
            self._detached.set(sid, deadline)

    def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        """Move members from the old sid to the new one. If the new sid has another member in a stream already, it keeps that
        one, and the old sid's member ends with the next `expire`. Returns the new sid's members by stream."""
        if old_sid == new_sid:
            self._detached.discard(old_sid)
        else:
            self._move(old_sid, new_sid)
        held = self._held.get(new_sid, {})
        return {stream: self._sets[stream].seats[member_id].sids[new_sid] for stream, member_id in held.items()}

    def _move(self, old_sid: str, new_sid: str) -> None:
        for stream, member_id in list(self._held.get(old_sid, {}).items()):
            if self._held.get(new_sid, {}).get(stream, member_id) == member_id:
                self._hand_over(stream, member_id, old_sid, new_sid)
        if old_sid in self._held:
            self._detached.set(old_sid, 0.0)

    def expire(self, now: float) -> list[PresenceEvent]:
        """Remove the members of expired detached sids. After a mass disconnect this takes several calls."""
        return self.end(self.due(now))

    def due(self, now: float) -> list[str]:
        """Returns expired detached sids, for `end`, and no longer tracks them."""
        return self._detached.due(now, MAX_EXPIRED_AT_ONCE)

    def is_due(self, now: float) -> bool:
        """Whether `due` has something to look at."""
        return self._detached.is_due(now)

    def end(self, sids: Collection[str]) -> list[PresenceEvent]:
        return [event for sid in sids for stream in list(self._held[sid]) for event in self._release(stream, sid)]

    def page(self, stream: str, after: str, limit: int) -> PresencePage:
        """Returns at most `limit` members with ids strictly after `after`, in order of id."""
        members = self._sets.get(stream)
        if members is None:
            return PresencePage(stream, 0)
        ids = members.ids.after(after, limit + 1)
        found = tuple(members.seats[member_id].member for member_id in ids[:limit])
        return PresencePage(stream, len(members.seats), found, ids[limit - 1] if len(ids) > limit else None)

    def streams(self) -> list[str]:
        """The streams with members."""
        return list(self._sets)

    def take_out(self, stream: str) -> list[tuple[Member, list[tuple[str, float | None]]]]:
        """Remove a stream for another store, without events. Returns its members, each with its sids and their deadlines if
        detached; a member comes several times if its sids have different infos."""
        taken: list[tuple[Member, list[tuple[str, float | None]]]] = []
        for seat in list(self._sets[stream].seats.values()):
            for member, same in groupby(list(seat.sids.items()), itemgetter(1)):
                taken.append((member, [(sid, self._detached.deadline(sid)) for sid, _ in same]))
            for sid in list(seat.sids):
                list(self._release(stream, sid))
        return taken

    def put_in(self, stream: str, member: Member, holders: Iterable[tuple[str, float | None]]) -> None:
        """The opposite of `take_out`, for one member. Ignores the limit of members."""
        for sid, deadline in holders:
            list(self._occupy(stream, sid, member))
            if deadline is not None:
                self._detached.set(sid, deadline)

    def _check_room(self, stream: str, member_id: str, freed: bool) -> None:
        members = self._sets.get(stream)
        if members is not None and member_id not in members.seats and len(members.seats) - freed >= self._max_members:
            raise LimitReached(f"presence of stream {stream!r} is full: {self._max_members} members")

    def _is_alone(self, stream: str, member_id: str) -> bool:
        return len(self._sets[stream].seats[member_id].sids) == 1

    def _occupy(self, stream: str, sid: str, member: Member) -> Iterator[PresenceEvent]:
        members = self._sets.setdefault(stream, _Set())
        seat = members.seats.get(member.id)
        if seat is None:
            seat = members.seats[member.id] = _Seat()
            members.ids.add(member.id)
            self.members += 1
            yield PresenceEvent("join", stream, member)
        seat.sids.pop(sid, None)
        seat.sids[sid] = member
        self._held.setdefault(sid, {})[stream] = member.id

    def _release(self, stream: str, sid: str) -> Iterator[PresenceEvent]:
        return self._vacate(stream, sid, self._remove_hold(stream, sid))

    def _vacate(self, stream: str, sid: str, member_id: str) -> Iterator[PresenceEvent]:
        members = self._sets[stream]
        seat = members.seats[member_id]
        member = seat.sids.pop(sid)
        if seat.sids:
            return
        del members.seats[member_id]
        members.ids.remove(member_id)
        self.members -= 1
        if not members.seats:
            del self._sets[stream]
        yield PresenceEvent("leave", stream, member)

    def _hand_over(self, stream: str, member_id: str, old_sid: str, new_sid: str) -> None:
        self._remove_hold(stream, old_sid)
        sids = self._sets[stream].seats[member_id].sids
        member = sids.pop(old_sid)
        sids.setdefault(new_sid, member)
        self._held.setdefault(new_sid, {})[stream] = member_id

    def _remove_hold(self, stream: str, sid: str) -> str:
        held = self._held[sid]
        member_id = held.pop(stream)
        if not held:
            del self._held[sid]
            self._detached.discard(sid)
        return member_id
