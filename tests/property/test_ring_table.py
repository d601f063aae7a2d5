"""Ring tables: balance, minimal moves, and convergence of nodes that receive the same changes."""

from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import (
    add_member,
    apply_change,
    build_first_table,
    count_owned,
    list_moves,
    mark_leaving,
    newest_table,
    remove_member,
)
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import AddNode, Lost, Possession, RemoveNode, RingChange, RingMember, RingTable

NAMES = "abcdefghijklmnop"


def member(name: str) -> RingMember:
    return RingMember(name, f"{name}:8080")


def ring(size: int, shards: int) -> RingTable:
    return build_first_table([member(name) for name in NAMES[:size]], shards)


@st.composite
def tables(draw: st.DrawFn) -> RingTable:
    """Tables reached from the first one by joining and leaving nodes."""
    table = ring(draw(st.integers(1, 6)), draw(st.integers(1, 70)))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=12)):
        if table.member(name) is None:
            table = add_member(table, member(name))
        elif len(table.members) > 1:
            table = remove_member(table, name)
    return table


@given(tables())
def test_shard_counts_of_members_differ_by_at_most_one(table: RingTable) -> None:
    owned = count_owned(table).values()
    assert sum(owned) == table.shards
    assert max(owned) - min(owned) <= 1


@given(tables())
def test_joining_node_takes_its_share_and_no_other_shard_moves(table: RingTable) -> None:
    after = add_member(table, member("z"))
    moved = list_moves(table, after)
    assert {move.target for move in moved} <= {"z"}
    assert len(moved) <= ceil(table.shards / len(after.members))
    assert after.term == table.term + 1


@given(tables(), st.data(), st.booleans())
def test_only_the_shards_of_a_leaving_node_move(table: RingTable, data: st.DataObject, at_once: bool) -> None:
    name = data.draw(st.sampled_from([each.name for each in table.members]))
    if len(table.members) == 1:
        with pytest.raises(Conflict):
            remove_member(table, name)
        return
    after = remove_member(table, name) if at_once else mark_leaving(table, name)
    assert [move.shard for move in list_moves(table, after)] == [
        shard for shard, owner in enumerate(table.owners) if owner == name
    ]
    assert {move.source for move in list_moves(table, after)} <= {name}
    assert after.term == table.term + 1
    remaining = [count for other, count in count_owned(after).items() if other != name]
    assert max(remaining) - min(remaining) <= 1


@given(st.permutations(NAMES[:6]), st.integers(1, 70))
def test_order_of_the_settings_does_not_matter(names: list[str], shards: int) -> None:
    assert build_first_table(map(member, names), shards) == ring(6, shards)


@given(tables())
def test_table_survives_encoding(table: RingTable) -> None:
    assert msgspec.json.decode(msgspec.json.encode(table), type=RingTable) == table
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=RingTable) == table


@given(tables(), st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True), st.permutations(range(5)))
def test_same_table_wins_in_any_order(table: RingTable, names: list[str], order: list[int]) -> None:
    candidates = [add_member(table, RingMember(name, "elsewhere:1")) for name in names]
    shuffled = [candidates[place] for place in order if place < len(candidates)]
    assert _winner(candidates) == _winner(shuffled)
    assert newest_table(_winner(candidates), table) == _winner(candidates)


def _winner(tables: list[RingTable]) -> RingTable:
    winner = tables[0]
    for table in tables[1:]:
        winner = newest_table(winner, table)
    return winner


def test_changed_address_moves_no_shard() -> None:
    table = replace(ring(3, 4), owners=("a", "b", "c", "c"))
    after = add_member(table, RingMember("b", "elsewhere:1"))
    assert after.owners == table.owners
    assert after.member("b") == RingMember("b", "elsewhere:1")


def test_change_is_applied_once() -> None:
    table = ring(3, 8)
    change = AddNode("1", member("d"))
    assert apply_change(apply_change(table, change), change) == apply_change(table, change)


def test_shards_declared_lost_twice_begin_one_generation() -> None:
    table = ring(3, 8)
    lost = tuple(Lost(shard, 1) for shard, owner in enumerate(table.owners) if owner == "b")
    once = apply_change(table, RemoveNode("1", "b", lost))
    assert sum(once.generations) == len(lost)
    assert apply_change(once, RemoveNode("2", "b", lost)).generations == once.generations


@given(st.data(), st.integers(2, 5))
def test_concurrent_changes_are_all_in_the_agreed_table(data: st.DataObject, size: int) -> None:
    table = ring(size, 16)
    begun = (Possession(0, 0, "a"),) * table.shards
    states = [RingState(each.name, table, begun) for each in table.members]
    steps = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1), st.booleans()), max_size=30))
    made: list[RingChange] = []
    for sender, receiver, makes in steps:
        terms = [state.table.term for state in states]
        if makes:
            made.append(AddNode(f"{len(made)}", RingMember(f"n{len(made)}", "x:1")))
            states[sender].apply(made[-1])
        else:
            states[receiver].merge_news(states[sender].me, states[sender].news)
        assert all(state.table.term >= term for state, term in zip(states, terms, strict=True))
    for _ in range(2 * len(made) + 2):
        for sender_state in states:
            for state in states:
                state.merge_news(sender_state.me, sender_state.news)
    assert len({msgspec.json.encode(state.news) for state in states}) == 1
    assert {change.member.name for change in made if isinstance(change, AddNode)} <= {
        each.name for each in states[0].table.members
    }
