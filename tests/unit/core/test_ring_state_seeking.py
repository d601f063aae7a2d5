"""A node that seeks its ring."""

from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import first_table
from ropewalk.model.ring import AddNode, Possession, RingMember, RingNews

SHARDS = 8
A, B = RingMember("a", "a:1"), RingMember("b", "b:1")
EVERY = list(range(SHARDS))


def seeking(member: RingMember) -> RingState:
    return RingState(member.name, first_table([member], SHARDS), seeking=True)


def founded(member: RingMember) -> RingState:
    state = seeking(member)
    state.found(member)
    for shard in state.to_begin():
        state.begun(shard)
    return state


def test_seeking_node_begins_and_holds_nothing() -> None:
    state = seeking(A)
    report = state.report({})
    assert (state.agreed, state.to_begin()) == (False, [])
    assert (report.moving, report.unavailable, [node.holds for node in report.nodes]) == (0, SHARDS, [0])


def test_founder_begins_all_shards() -> None:
    state = seeking(A)
    state.guess([A, B])
    state.found(A)
    assert ([member.name for member in state.table.members], state.to_begin()) == (["a"], EVERY)
    state.guess([A, B])  # no effect once it has a ring
    assert state.table.member("b") is None


def test_seeking_nodes_do_not_adopt_each_others_tables() -> None:
    one, other = seeking(A), seeking(B)
    other.guess([B, A])
    one.hear("b", other.news)
    assert (one.seeking, one.to_begin(), one.table.members) == (True, [], (A,))


def test_seeking_node_joins_a_ring_it_receives_news_of() -> None:
    founder, state = founded(A), seeking(B)
    state.guess([B, A])
    assert not state.is_to_join(B)
    state.hear("a", founder.news)
    assert (state.seeking, state.to_begin(), state.is_to_join(B)) == (False, [], True)
    state.make(AddNode("1", B))
    founder.hear("b", state.news)
    assert len(founder.to_hand_over()) == SHARDS // 2


def test_node_declared_lost_can_join_again() -> None:
    founder, state = founded(A), seeking(B)
    state.hear("a", founder.news)
    assert state.is_to_join(B)
    state.make(AddNode("1", B))
    founder.hear("b", state.news)
    founder.make(founder.removal("2", "b", alive=False, lost=True))
    state.hear("a", founder.news)
    assert (state.belongs, state.is_to_join(B)) == (False, False)
    state.may_join_again()
    assert state.is_to_join(B)


def test_stored_possessions_end_seeking() -> None:
    table = first_table([A, B], SHARDS)
    held = [Possession(0, 0, "a")] * SHARDS
    assert not RingState("a", table, held, seeking=True).seeking
    assert RingState("a", table, RingNews(table, ()).possessions, seeking=True).seeking
