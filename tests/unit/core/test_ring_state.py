"""The report of a node about its ring."""

import pytest

from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import RemoveNode, RingMember, RingReport

SHARDS = 8
MEMBERS = RingMember("a", "a:1"), RingMember("b", "b:1")


def make_state(name: str, shards: int = SHARDS) -> RingState:
    return RingState(name, build_first_table(MEMBERS, shards))


def begin_together(one: RingState, other: RingState) -> None:
    for state, peer in ((one, other), (other, one)):
        state.merge_news(peer.me, peer.news)
    for state, peer in ((one, other), (other, one)):
        for shard in state.shards_to_begin():
            state.mark_begun(shard)
        peer.merge_news(state.me, state.news)


def held(report: RingReport) -> dict[str, int]:
    return {node.name: node.holds for node in report.nodes}


def test_shards_are_held_by_no_node_until_one_has_begun_them() -> None:
    report = make_state("b").report({"a": False}, stream="chat/1")
    assert held(report) == {"a": 0, "b": 0}
    assert (report.moving, report.unavailable) == (0, SHARDS)
    assert report.place
    assert (report.place.owner != "", report.place.holder) == (True, "")


def test_node_that_has_begun_a_shard_holds_it() -> None:
    a, b = make_state("a"), make_state("b")
    begin_together(a, b)
    for state, peer in ((a, "b"), (b, "a")):
        report = state.report({peer: True})
        assert held(report) == {"a": SHARDS // 2, "b": SHARDS // 2}
        assert (report.moving, report.unavailable) == (0, 0)


def test_lost_shards_are_unavailable_until_begun_again() -> None:
    a, b = make_state("a"), make_state("b")
    begin_together(a, b)
    change = a.build_removal("1", "b", alive=False, lost=True)
    assert isinstance(change, RemoveNode)
    a.apply(change)
    report = a.report({})
    assert held(report) == {"a": SHARDS // 2}
    assert (report.moving, report.unavailable) == (0, SHARDS // 2)
    for shard in a.shards_to_begin():
        a.mark_begun(shard)
    report = a.report({})
    assert (held(report), report.unavailable) == ({"a": SHARDS}, 0)


def test_news_with_another_shard_count_are_refused_with_both_node_names() -> None:
    with pytest.raises(Conflict, match="b has a ring of 16 shards, a one of 8"):
        make_state("a").merge_news("b", make_state("b", 16).news)
