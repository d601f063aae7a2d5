"""The table of a ring: the owner of each shard, and its changes.

Invariant: the numbers of owned shards differ by at most one, a change moves as few shards as possible, and every node computes
the same table from the same change.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec
from msgspec.structs import replace

from ropewalk.core.ring import locate_stream
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
"""Ids of changes that a table carries: so many changes later a node can still check whether its change is included."""


def build_first_table(members: Iterable[RingMember], shards: int) -> RingTable:
    """The initial table. Nodes with the same settings compute the same one without communication."""
    ordered = _by_name(members)
    owners = _assigned(ordered, ("",) * shards)
    return RingTable(FIRST_TERM, ordered, owners, owners, (0,) * shards)


def add_member(table: RingTable, member: RingMember, stays: bool = False) -> RingTable:
    """Add a member, or change the address of a known one. A leaving member keeps leaving, unless it `stays`."""
    known = table.member(member.name)
    others = (other for other in table.members if other is not known)
    after = member if known is None else replace(known, address=member.address, leaving=known.leaving and not stays)
    return _next(table, (*others, after))


def mark_leaving(table: RingTable, name: str) -> RingTable:
    """The node owns no shards from now on, and remains a member until it is removed."""
    return _next(table, (replace(member, leaving=True) if member.name == name else member for member in table.members))


def remove_member(table: RingTable, name: str, lost: Iterable[Lost] = ()) -> RingTable:
    """Remove the node. The content of `lost` shards is void from now on, and their owners begin them. A repeated loss has no
    further effect."""
    after = _next(table, (member for member in table.members if member.name != name))
    generations, founders = list(table.generations), list(table.founders)
    for each in lost:
        if each.generation > generations[each.shard]:
            generations[each.shard] = each.generation
            founders[each.shard] = after.owners[each.shard]
    return replace(after, generations=tuple(generations), founders=tuple(founders))


def apply_change(table: RingTable, change: RingChange) -> RingTable:
    """The table after the change; the same one if it includes the change already. Raises Conflict if it is not possible."""
    if change.id in table.changes:
        return table
    match change:
        case AddNode(member=member, stays=stays):
            after = add_member(table, member, stays)
        case LeaveRing(name=name):
            after = mark_leaving(table, name)
        case RemoveNode(name=name, lost=lost):
            after = remove_member(table, name, lost)
        case _:
            assert_never(change)
    return replace(after, changes=(*table.changes, change.id)[-CHANGES_KEPT:])


def newest_table(one: RingTable, other: RingTable) -> RingTable:
    """The valid one: that of the higher term, and within a term that of the higher digest. So nodes that received the same
    tables choose the same one, in any order of arrival."""
    if one == other:
        return one
    return max(one, other, key=lambda table: (table.term, digest(table)))


def list_moves(old: RingTable, new: RingTable) -> list[Move]:
    """The shards whose owner changed, in order of shards."""
    owners = zip(old.owners, new.owners, strict=True)
    return [Move(shard, source, target) for shard, (source, target) in enumerate(owners) if source != target]


def count_owned(table: RingTable) -> dict[str, int]:
    """The number of shards that each member owns."""
    owned = dict.fromkeys((member.name for member in table.members), 0)
    for owner in table.owners:
        owned[owner] += 1
    return owned


def find_place(table: RingTable, stream: str) -> RingPlace:
    """The place of a stream by the table, without its holder."""
    shard = locate_stream(stream, table.shards)
    return RingPlace(stream, shard, table.owners[shard])


def digest(known: RingTable | RingNews) -> str:
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def _next(table: RingTable, members: Iterable[RingMember]) -> RingTable:
    ordered = _by_name(members)
    return replace(table, term=table.term + 1, members=ordered, owners=_assigned(ordered, table.owners))


def _by_name(members: Iterable[RingMember]) -> tuple[RingMember, ...]:
    return tuple(sorted(members, key=lambda member: member.name))


def _assigned(members: Sequence[RingMember], owners: Sequence[str]) -> tuple[str, ...]:
    """Sticky: each node keeps its shards up to its share, and the rest go to the nodes with the fewest."""
    owned: dict[str, list[int]] = {member.name: [] for member in members if not member.leaving}
    if not owned:
        raise Conflict("a ring needs at least one node that stays")
    for shard, owner in enumerate(owners):
        if owner in owned:
            owned[owner].append(shard)
    share, extra = divmod(len(owners), len(owned))
    assigned = [""] * len(owners)
    for place, name in enumerate(sorted(owned, key=lambda name: (-len(owned[name]), name))):
        # If shards do not divide evenly, the nodes with the most keep one more, so that the fewest move.
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
