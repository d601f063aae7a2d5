"""The table of a ring: which node owns which shard, and how it changes.

Invariant: owners are balanced to within one shard, a change moves no shard that it need not move, and every node makes the
same table of the same change.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from ropewalk.core.ring import place_of
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import (
    AddNode,
    LeaveRing,
    Lost,
    Move,
    RemoveNode,
    RingChange,
    RingMember,
    RingNews,
    RingPlace,
    RingTable,
)

FIRST_TERM = 1

CHANGES_KEPT = 64
"""Ids of changes that a table carries. Whoever made a change may still find out so many changes later whether it is in."""


def first_table(members: Iterable[RingMember], shards: int) -> RingTable:
    """What nodes begin with that have the same settings: they need not talk to have the same table."""
    ordered = _by_name(members)
    owners = _assigned(ordered, ("",) * shards)
    return RingTable(FIRST_TERM, ordered, owners, owners, (0,) * shards)


def joined(table: RingTable, member: RingMember, stays: bool = False) -> RingTable:
    """With one more member, or with another address of one that it has; one that leaves goes on leaving, unless it `stays`."""
    known = table.member(member.name)
    others = (other for other in table.members if other is not known)
    after = member if known is None else replace(known, address=member.address, leaving=known.leaving and not stays)
    return _next(table, (*others, after))


def leaving(table: RingTable, name: str) -> RingTable:
    """The node owns nothing any more, and is a member until it is `removed`."""
    return _next(table, (replace(member, leaving=True) if member.name == name else member for member in table.members))


def removed(table: RingTable, name: str, lost: Iterable[Lost] = ()) -> RingTable:
    """Without the node. What was held of the `lost` shards is void from now on, and their owners begin them; said twice, it
    is void once."""
    after = _next(table, (member for member in table.members if member.name != name))
    generations, founders = list(table.generations), list(table.founders)
    for each in lost:
        if each.generation > generations[each.shard]:
            generations[each.shard] = each.generation
            founders[each.shard] = after.owners[each.shard]
    return replace(after, generations=tuple(generations), founders=tuple(founders))


def changed(table: RingTable, change: RingChange) -> RingTable:
    """The table after the change; the same one if the change is in it already. Raises Conflict where it cannot be made."""
    if change.id in table.changes:
        return table
    match change:
        case AddNode(member=member, stays=stays):
            after = joined(table, member, stays)
        case LeaveRing(name=name):
            after = leaving(table, name)
        case RemoveNode(name=name, lost=lost):
            after = removed(table, name, lost)
        case _:
            assert_never(change)
    return replace(after, changes=(*table.changes, change.id)[-CHANGES_KEPT:])


def newer(one: RingTable, other: RingTable) -> RingTable:
    """The one that counts: of a higher term, and of two with the same term the one with the higher digest. So whoever has seen
    the same tables goes by the same one, in whichever order they came."""
    if one == other:
        return one
    return max(one, other, key=lambda table: (table.term, digest(table)))


def moves(old: RingTable, new: RingTable) -> list[Move]:
    """Which shards have another owner, in order of shards."""
    owners = zip(old.owners, new.owners, strict=True)
    return [Move(shard, source, target) for shard, (source, target) in enumerate(owners) if source != target]


def loads(table: RingTable) -> dict[str, int]:
    """How many shards each member owns."""
    owned = dict.fromkeys((member.name for member in table.members), 0)
    for owner in table.owners:
        owned[owner] += 1
    return owned


def place_in(table: RingTable, stream: str) -> RingPlace:
    """Where a stream is to be, whoever holds it."""
    shard = place_of(stream, table.shards)
    return RingPlace(stream, shard, table.owners[shard])


def digest(known: RingTable | RingNews) -> str:
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def _next(table: RingTable, members: Iterable[RingMember]) -> RingTable:
    ordered = _by_name(members)
    return replace(table, term=table.term + 1, members=ordered, owners=_assigned(ordered, table.owners))


def _by_name(members: Iterable[RingMember]) -> tuple[RingMember, ...]:
    return tuple(sorted(members, key=lambda member: member.name))


def _assigned(members: Sequence[RingMember], owners: Sequence[str]) -> tuple[str, ...]:
    """Sticky: everyone keeps what it has up to its share, and the rest goes to whoever has the least."""
    owned: dict[str, list[int]] = {member.name: [] for member in members if not member.leaving}
    if not owned:
        raise Conflict("a ring needs at least one node that stays")
    for shard, owner in enumerate(owners):
        if owner in owned:
            owned[owner].append(shard)
    share, extra = divmod(len(owners), len(owned))
    assigned = [""] * len(owners)
    for place, name in enumerate(sorted(owned, key=lambda name: (-len(owned[name]), name))):
        # Whoever has the most keeps one more where shards do not divide evenly: so the fewest move.
        owned[name] = owned[name][: share + (place < extra)]
        for shard in owned[name]:
            assigned[shard] = name
    count = {name: len(kept) for name, kept in owned.items()}
    for shard, owner in enumerate(assigned):
        if not owner:
            least = min(count, key=lambda name: (count[name], name))
            assigned[shard] = least
            count[least] += 1
    return tuple(assigned)
