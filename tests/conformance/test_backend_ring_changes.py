"""A ring of nodes while shards move, links break and nodes are lost; over real links in this process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

import pytest

from ropewalk.adapters.backends.ring.backend import TO_AGREE, RingBackend
from ropewalk.adapters.backends.ring.router import UnsentCall
from ropewalk.core.ring import locate_shard
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, Replay, split_at_gaps
from ropewalk.model.messages import Deliverable, Position, Publication, Registered, RemoteDisconnect, TransientRun, expand_runs
from ropewalk.model.presence import Member
from ropewalk.model.ring import LeaveRing, RingMember
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionWrite
from ropewalk.testing.backend_rig import BackendSetup
from ropewalk.testing.clock import ManualClock
from tests.ring_nodes import SECONDS, SHARDS, RingInProcess, RingNodeInProcess, cut

STREAMS = [f"chat/{number}" for number in range(60)]
SNAPSHOT = SessionSnapshot("bo", {})
MEMBER = Member("bo")

pytestmark = pytest.mark.tier("all")


@pytest.fixture
async def ring() -> AsyncIterator[RingInProcess]:
    ring = RingInProcess(BackendSetup(ManualClock(), StreamRules(history_limit=1000, history_ttl=300.0)))
    await ring.start("abc")
    await ring.settled()
    yield ring
    await ring.stop()


async def publish(node: RingNodeInProcess, stream: str, payload: bytes = b"1", uid: str = "") -> Position:
    (receipt,) = await node.streams.append([Publication(stream, payload, uid=uid)])
    return Position(receipt.epoch, receipt.offset)


def held_by(node: RingNodeInProcess) -> list[int]:
    return [shard for shard in range(SHARDS) if node.state.serves(shard)]


def each_served_once(ring: RingInProcess) -> bool:
    return sorted(shard for node in ring.nodes.values() for shard in held_by(node)) == list(range(SHARDS))


class Heard:
    """The messages and requests that one node received through its feed."""

    def __init__(self) -> None:
        self.messages: list[Registered] = []
        self.missed = 0
        self.missed_anything = 0  # of unknown streams
        self.orders: list[object] = []

    async def start(self, node: RingNodeInProcess) -> "Heard":
        await node.feed.start(self._deliver, self._obey, self._miss)
        return self

    def _deliver(self, messages: Sequence[Deliverable]) -> None:
        self.messages += expand_runs(messages)

    async def _obey(self, order: object) -> int:
        self.orders.append(order)
        return 1

    def _miss(self, streams: Collection[str] | None = None) -> None:
        self.missed += 1
        self.missed_anything += streams is None


async def test_new_node_gets_its_share_and_streams_keep_their_epochs(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    before = {stream: await publish(a, stream, uid="first") for stream in STREAMS}
    await ring.start("d")
    await ring.settled()
    assert each_served_once(ring)
    assert len(held_by(ring.nodes["d"])) == SHARDS // 4
    for stream in STREAMS:
        for name in "abcd":
            assert await publish(ring.nodes[name], stream, uid="first") == before[stream]
        assert await publish(ring.nodes["d"], stream) == Position(before[stream].epoch, 2)
        answer = await ring.nodes["b"].streams.replay(stream, Position(before[stream].epoch, 0))
        assert isinstance(answer, Replay)
        assert [message.offset for message in answer.messages] == [1, 2]


async def test_gauges_and_counters_follow_the_ring(ring: RingInProcess) -> None:
    def ring_of(name: str) -> dict[str, float]:
        gauges = RingBackend.gauges(ring.nodes[name])
        return {each.removeprefix("ring_"): size for each, size in gauges.items() if each.startswith("ring_")}

    held = {name: len(held_by(node)) for name, node in ring.nodes.items()}
    for name in "abc":
        assert ring_of(name) == {"term": 1, "nodes": 3, "nodes_unreached": 0, "shards_held": held[name]}
        assert ring.nodes[name].counts() == {"ring_publications_forwarded": 0, "ring_shards_handed_over": 0}
    await ring.start("d")
    await ring.settled()
    for name in "abcd":
        assert ring_of(name) == {"term": 2, "nodes": 4, "nodes_unreached": 0, "shards_held": SHARDS // 4}
        assert ring.nodes[name].counts()["ring_shards_handed_over"] == held.get(name, 4) - 4
    await ring.kill("d")
    await ring.until(lambda: all(ring_of(name)["nodes_unreached"] == 1 for name in "abc"))
    assert ring_of("a")["nodes"] == 4


async def test_forwarded_publications_are_counted(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    elsewhere = [stream for stream in STREAMS if not a.state.serves(locate_shard(stream, SHARDS))]
    assert 0 < len(elsewhere) < len(STREAMS)

    def forwarded() -> int:
        return a.counts()["ring_publications_forwarded"]

    for stream in STREAMS:
        await publish(a, stream)
    assert forwarded() == len(elsewhere)
    await a.streams.append([Publication(stream, b"1") for stream in STREAMS])
    assert forwarded() == 2 * len(elsewhere)
    await a.streams.append([Publication(elsewhere[0], b"1")] * 3)
    assert forwarded() == 2 * len(elsewhere) + 3
    a.feed.publish([Registered(stream, b"1", 1.0) for stream in STREAMS])
    assert forwarded() == 3 * len(elsewhere) + 3
    runs = [TransientRun(stream, b"1", 2, 1.0, lambda run: []) for stream in STREAMS]
    assert a.feed.publish_runs(runs) is None
    assert forwarded() == 5 * len(elsewhere) + 3
    confirmed = a.feed.publish_runs(runs, confirm=True)
    assert confirmed is not None
    await confirmed
    assert forwarded() == 7 * len(elsewhere) + 3


async def test_large_history_between_nodes_does_not_break_their_link(ring: RingInProcess) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    large, live = [stream for stream in STREAMS if b.state.serves(locate_shard(stream, SHARDS))][:2]
    heard = await Heard().start(a)
    await a.feed.listen(live)
    for _ in range(100):
        await b.streams.append([Publication(large, b"x" * 700_000)])
    links = [a._links["b"]._connection, b._links["a"]._connection]
    asking = [asyncio.ensure_future(a.streams.replay(large, Position("", 0))) for _ in range(2)]
    for number in range(50):
        await publish(b, live)
        await ring.until(lambda number=number: len(heard.messages) > number)  # type: ignore[misc]
    for answer in await asyncio.gather(*asking):
        assert [message.offset for piece in split_at_gaps(answer) for message in piece.messages] == [
            1
        ]  # as much as one answer holds
    offset, epoch = 1, answer.epoch
    while offset < 100:
        page = await a.streams.replay(large, Position(epoch, offset))
        assert [message.offset for piece in split_at_gaps(page) for message in piece.messages] == [offset + 1]
        offset += 1
    assert [a._links["b"]._connection, b._links["a"]._connection] == links
    assert heard.missed == 0


async def test_publishers_get_no_error_while_shards_move(ring: RingInProcess) -> None:
    joined = asyncio.Event()

    async def many(name: str) -> dict[str, list[Position]]:
        given: dict[str, list[Position]] = {}
        while not joined.is_set():
            for stream in STREAMS:
                given.setdefault(stream, []).append(await publish(ring.nodes[name], stream))
        return given

    publishers = [asyncio.ensure_future(many(name)) for name in "abc"]
    await ring.start("d")
    await ring.settled()
    joined.set()
    given = await asyncio.gather(*publishers)
    for stream in STREAMS:
        positions = [position for each in given for position in each[stream]]
        assert len({position.epoch for position in positions}) == 1
        assert sorted(position.offset for position in positions) == list(range(1, len(positions) + 1))


async def test_listeners_receive_messages_from_the_new_holder(ring: RingInProcess) -> None:
    heard = await Heard().start(ring.nodes["b"])
    for stream in STREAMS:
        await ring.nodes["b"].feed.listen(stream)
    await ring.start("d")
    await ring.settled()
    assert heard.missed
    for stream in STREAMS:
        await publish(ring.nodes["c"], stream)
    await ring.until(lambda: {message.stream for message in heard.messages} == set(STREAMS))


async def test_sessions_and_members_move_with_their_shard(ring: RingInProcess) -> None:
    a, clock = ring.nodes["a"], ring.setup.clock
    await a.leases.renew(60.0, ())
    sids = [f"sid{number}" for number in range(60)]
    await a.leases.write(
        [SessionWrite(sid, SNAPSHOT, 1, 60.0, live=number % 2 == 0, began=clock()) for number, sid in enumerate(sids)]
    )
    for stream in STREAMS:
        await a.presence.join(stream, "sid0", MEMBER)
    await ring.start("d")
    await ring.settled()
    for stream in STREAMS:
        assert (await ring.nodes["c"].presence.members(stream, "", 10)).members == (MEMBER,)
    assert [await ring.nodes["d"].sessions.take(sid, f"{sid}~") for sid in sids] == [SNAPSHOT] * len(sids)
    assert (await ring.nodes["d"].presence.adopt("sid0", "sid0~")).keys() == set(STREAMS)


async def test_leaving_node_hands_over_all_shards(ring: RingInProcess) -> None:
    before = {stream: await publish(ring.nodes["a"], stream) for stream in STREAMS}
    b = ring.nodes["b"]
    b.state.apply(LeaveRing("1", "b"))
    b._follow()
    await ring.settled()
    assert held_by(b) == []
    await ring.kill("b")
    for stream in STREAMS:
        assert await publish(ring.nodes["c"], stream) == Position(before[stream].epoch, 2)


async def test_pending_change_is_not_reported_as_unreachable(
    ring: RingInProcess,
) -> None:
    a, clock = ring.nodes["a"], ring.setup.clock
    assert isinstance(clock, ManualClock)
    a.remove("b", lost=False)
    assert not a.state.has_quorum
    assert (a.health(), a.report().waits_for) == ("", "")
    clock.advance(TO_AGREE)
    assert "go by the same table; not reached: none" in a.report().waits_for
    await ring.until(lambda: a.state.has_quorum)
    assert a.health() == ""
    await ring.until(lambda: not held_by(ring.nodes["b"]))
    a.remove("b", lost=False)
    assert a.health() == ""


async def test_unreachable_nodes_are_reported_during_a_change(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    await a.add(RingMember("a", ring.members["a"].address))
    assert a.health() == ""
    await ring.kill("b")
    await ring.kill("c")
    await ring.until(lambda: "not reached: b, c" in a.health())
    await a.add(RingMember("a", ring.members["a"].address))
    assert "not reached: b, c" in a.health()


async def test_shards_of_a_lost_node_restart_on_other_nodes(ring: RingInProcess) -> None:
    before = {stream: await publish(ring.nodes["a"], stream) for stream in STREAMS}
    lost = held_by(ring.nodes["b"])
    await ring.kill("b")
    a = ring.nodes["a"]
    lease = (await a.leases.renew(60.0, ())).lease
    a.remove("b", lost=True)
    del ring.members["b"]
    await ring.settled()
    assert each_served_once(ring)
    for stream in STREAMS:
        after = await publish(ring.nodes["c"], stream)
        if locate_shard(stream, SHARDS) in lost:
            assert (after.offset, after.epoch != before[stream].epoch) == (1, True)
        else:
            assert after == Position(before[stream].epoch, 2)
    assert (await a.leases.renew(60.0, ())).lease != lease


async def test_dead_node_makes_only_its_shards_unavailable(ring: RingInProcess) -> None:
    lost = held_by(ring.nodes["b"])
    await ring.kill("b")
    a = ring.nodes["a"]
    a.router._patience = 0.1
    for stream in STREAMS:
        if locate_shard(stream, SHARDS) in lost:
            with pytest.raises(Unavailable, match="node b"):
                await publish(a, stream)
        else:
            assert (await publish(a, stream)).offset == 1
    assert a.health() == ""
    assert "node b" in a.impairments()[0]


async def test_node_restarted_without_data_starts_new_epochs(ring: RingInProcess) -> None:
    before = {stream: await publish(ring.nodes["a"], stream) for stream in STREAMS}
    lost = held_by(ring.nodes["b"])
    lease = (await ring.nodes["a"].leases.renew(60.0, ())).lease
    await ring.kill("b")
    await ring.start("b")
    await ring.settled()
    assert held_by(ring.nodes["b"]) == lost
    for stream in STREAMS:
        after = await publish(ring.nodes["a"], stream)
        assert (after.epoch == before[stream].epoch) is (locate_shard(stream, SHARDS) not in lost)
    assert (await ring.nodes["a"].leases.renew(60.0, ())).lease != lease


async def test_process_with_a_used_node_name_holds_no_shards(ring: RingInProcess) -> None:
    b = ring.nodes["b"]
    port = socket.create_server(("127.0.0.1", 0))
    second = RingNodeInProcess(ring, "b", port, list(ring.members.values()), run=99)
    second.router._patience = 0.1
    await second.run()
    try:
        await ring.until(lambda: "another process is the node b" in second.health())
        report = second.report()
        assert [node.holds for node in report.nodes] == [0, 0, 0]
        assert (report.moving, report.unavailable) == (0, SHARDS)
        stream = next(stream for stream in STREAMS if b.state.serves(locate_shard(stream, SHARDS)))
        with pytest.raises(Unavailable, match="another process is the node b"):
            await publish(second, stream)
        assert (await publish(b, stream)).offset == 1
    finally:
        await second.end()


# --- a hand-over that breaks ------------------------------------------------------------------------------------------


def broken(node: RingNodeInProcess, method: str, after: bool) -> Callable[[], None]:
    """Break the link before or after this call is executed. Returns a function that repairs it."""
    links = {name: link for name, link in node._links.items() if name == "d"}
    assert links
    link = links["d"]
    call = link.call

    async def breaking(asked: str, *arguments: object) -> Any:
        if asked != method:
            return await call(asked, *arguments)
        if after:
            await call(asked, *arguments)
        assert link._connection is not None
        link._connection.close()
        raise Unanswered("the link is lost")

    link.call = breaking  # type: ignore[method-assign,assignment]

    def mend() -> None:
        link.call = call  # type: ignore[method-assign]

    return mend


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["receive", "received"])
async def test_interrupted_handover_keeps_the_shard_and_is_retried(ring: RingInProcess, method: str, after: bool) -> None:
    before = {stream: await publish(ring.nodes["a"], stream) for stream in STREAMS}
    sources = [ring.nodes[name] for name in "abc"]
    ring.prepare("d")
    mends = []
    for node in sources:
        reach = node._reach_members

        def reach_and_break(node: RingNodeInProcess = node, reach: Callable[[], bool] = reach) -> bool:
            new = "d" not in node._links
            unheard = reach()
            if new and "d" in node._links:
                mends.append(broken(node, method, after))
            return unheard

        node._reach_members = reach_and_break  # type: ignore[method-assign]
    await ring.nodes["d"].run()
    await ring.until(lambda: len(mends) == 3)
    for _ in range(3):  # while it fails, the holder serves the shard
        for stream in STREAMS:
            await publish(ring.nodes["b"], stream)
        assert held_by(ring.nodes["d"]) == []
    for mend in mends:
        mend()
    await ring.settled()
    assert each_served_once(ring)
    for stream in STREAMS:
        assert await publish(ring.nodes["d"], stream) == Position(before[stream].epoch, 5)


async def test_receiver_that_dies_during_the_handover_leaves_the_shard_with_its_holder(ring: RingInProcess) -> None:
    before = {stream: await publish(ring.nodes["a"], stream) for stream in STREAMS}
    ring.prepare("d")
    d = ring.nodes["d"]
    dying = asyncio.Event()

    async def die(*arguments: object) -> None:
        dying.set()
        await asyncio.Event().wait()

    d._receiver.received = die  # type: ignore[method-assign,assignment]
    await d.run()
    await dying.wait()
    await ring.kill("d")
    ring.nodes["a"].remove("d", lost=True)
    await ring.settled()
    assert each_served_once(ring)
    for stream in STREAMS:
        assert await publish(ring.nodes["c"], stream) == Position(before[stream].epoch, 2)


class Transit:
    """Stops the hand-overs of three nodes to one that joins, while a shard of each is in neither store."""

    def __init__(self, ring: RingInProcess) -> None:
        self._ring = ring
        ring.prepare("d")
        self._node = ring.nodes["d"]
        self._go_on = asyncio.Event()
        self._stopped = 0
        received = self._node._receiver.received

        async def stop(*arguments: Any) -> None:
            self._stopped += 1
            await self._go_on.wait()
            await received(*arguments)

        self._node._receiver.received = stop  # type: ignore[method-assign,assignment]

    async def begin(self) -> None:
        await self._node.run()
        await self._ring.until(lambda: self._stopped == 3)

    async def go_on(self, meanwhile: asyncio.Future[Any]) -> None:
        """Continue when `meanwhile` is done. If it waits for the handover as it should, continue after a moment."""
        await asyncio.wait([meanwhile], timeout=0.2)
        self._go_on.set()


async def test_members_that_leave_during_the_handover_are_removed(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    await a.leases.renew(60.0, ())
    for stream in STREAMS:
        await a.presence.join(stream, f"sid of {stream}", MEMBER)
    transit = Transit(ring)
    await transit.begin()
    leaving = asyncio.gather(*(a.presence.detach(f"sid of {stream}", 0.0) for stream in STREAMS))
    await transit.go_on(leaving)
    await leaving
    await ring.settled()
    await a.presence.expire()
    for stream in STREAMS:
        assert (await a.presence.members(stream, "", 10)).members == ()


async def test_revoke_during_the_handover_reaches_moving_sessions(ring: RingInProcess) -> None:
    a, clock = ring.nodes["a"], ring.setup.clock
    sids = [f"sid{number}" for number in range(60)]
    await a.leases.write([SessionWrite(sid, SNAPSHOT, 1, 60.0, live=False, began=clock()) for sid in sids])
    transit = Transit(ring)
    await transit.begin()
    revoking = asyncio.ensure_future(a.sessions.revoke("bo", True))
    await transit.go_on(revoking)
    assert sorted(sid for sid, _ in await revoking) == sorted(sids)
    await ring.settled()
    assert [await a.sessions.peek(sid) for sid in sids] == [None] * len(sids)


# --- links ------------------------------------------------------------------------------------------------------------


async def test_broken_link_is_reopened_and_missed_messages_are_reported(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    heard = await Heard().start(a)
    for stream in STREAMS:
        await a.feed.listen(stream)
    for link in a._links.values():
        assert link._connection is not None
        link._connection.close()
    await asyncio.gather(*(publish(a, stream) for stream in STREAMS))
    await ring.settled()
    assert heard.missed >= 2
    for stream in STREAMS:
        await publish(ring.nodes["b"], stream)
    await ring.until(lambda: {message.stream for message in heard.messages if message.offset == 2} == set(STREAMS))


async def test_disconnect_request_reaches_a_node_after_it_reconnects(ring: RingInProcess) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    heard = await Heard().start(b)
    link = a._links["b"]
    assert link._connection is not None
    link._connection.close()
    await ring.until(lambda: not link.connected)
    await a.feed.disconnect(RemoteDisconnect("bo"))
    await ring.until(lambda: RemoteDisconnect("bo") in heard.orders)


async def test_pending_session_writes_are_sent_after_the_reconnect(ring: RingInProcess) -> None:
    a, b, clock = ring.nodes["a"], ring.nodes["b"], ring.setup.clock
    for node in (a, b):
        await node.leases.renew(60.0, ())
    sid = next(f"sid{number}" for number in range(1000) if a.router.holder(f"sid{number}") == "b")
    repair = cut(a, "b")
    await ring.until(lambda: not a._links["b"].connected)
    assert await a.leases.write([SessionWrite(sid, SNAPSHOT, 1, 60.0, began=clock())]) == []
    assert await b.sessions.peek(sid) is None
    repair()
    await ring.settled()
    assert await b.sessions.peek(sid) == SNAPSHOT


async def test_replay_reports_a_gap_for_messages_lost_with_a_node(ring: RingInProcess) -> None:
    positions = {stream: await publish(ring.nodes["a"], stream) for stream in STREAMS}
    lost = [stream for stream in STREAMS if ring.nodes["a"].router.holder(stream) == "b"]
    await ring.kill("b")
    await ring.start("b")
    await ring.settled()
    for stream in lost:
        assert isinstance(await ring.nodes["c"].streams.replay(stream, positions[stream]), Gap)


async def test_prefix_listener_is_notified_of_a_lost_node(ring: RingInProcess) -> None:
    a, c = ring.nodes["a"], ring.nodes["c"]
    heard = await Heard().start(a)
    others = await Heard().start(c)
    await a.feed.listen_prefix(b"chat/")
    await ring.kill("b")
    await ring.until(lambda: not a._links["b"].connected and not c._links["b"].connected)
    assert heard.missed_anything == 0
    a.remove("b", lost=True)
    del ring.members["b"]
    await ring.settled()
    assert (heard.missed_anything, others.missed_anything) == (1, 0)


async def test_prefix_listener_is_notified_if_an_unreachable_node_left(ring: RingInProcess) -> None:
    """The new holders do not repeat its messages."""
    a, b = ring.nodes["a"], ring.nodes["b"]
    heard = await Heard().start(a)
    await a.feed.listen_prefix(b"chat/")
    link = a._links["b"]
    link.retry_seconds = 3600.0
    assert link._connection is not None
    link._connection.close()
    await ring.until(lambda: not link.connected)
    c = ring.nodes["c"]
    c.remove("b", lost=False)
    await ring.until(lambda: held_by(b) == [])
    await ring.until(lambda: all(c.state.holder(shard) != "b" for shard in range(SHARDS)))  # c has to know before it removes b
    assert heard.missed_anything == 0
    c.remove("b", lost=False)
    del ring.members["b"]
    await ring.kill("b")
    await ring.settled()
    assert heard.missed_anything == 1


async def test_prefix_listener_misses_nothing_if_a_node_hands_over_and_stops(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    heard = await Heard().start(a)
    await a.feed.listen_prefix(b"chat/")
    await removed(ring, "b")
    del ring.members["b"]
    await ring.kill("b")
    await ring.settled()
    for stream in STREAMS:
        await publish(ring.nodes["c"], stream)
    await ring.until(lambda: {message.stream for message in heard.messages} == set(STREAMS))
    assert heard.missed_anything == 0


# --- nodes that missed a change -----------------------------------------------------------------------------------------


async def removed(ring: RingInProcess, name: str) -> None:
    """Remove a node from the table after its handover; its process keeps running."""
    at = next(node for other, node in ring.nodes.items() if other != name)
    at.remove(name, lost=False)
    await ring.settled()
    at.remove(name, lost=False)


async def test_node_removed_while_it_was_down_joins_again_on_start(ring: RingInProcess) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    a.remove("b", lost=False)
    await ring.settled()
    kept = b.state.news  # as the file has it: in the table, and leaving
    await ring.kill("b")
    a.remove("b", lost=False)
    ring.prepare("b")
    again = ring.nodes["b"]
    again.state.table, again.state._possessions = kept.table, list(kept.possessions)
    await again.run()
    await ring.until(lambda: again.state.table == a.state.table and again.state.table.member("b") is not None)
    await ring.settled()
    assert each_served_once(ring)
    assert held_by(again)


async def test_node_removed_while_it_runs_stays_out_and_reports_it(ring: RingInProcess) -> None:
    b = ring.nodes["b"]
    await removed(ring, "b")
    await ring.until(lambda: b.impairments() == ["this node is not in the table of its ring"])
    await ring.until(lambda: len({node.state.table.term for node in ring.nodes.values()}) == 1)
    assert not b.state.is_member


async def test_node_outside_the_table_follows_changes_and_misses_nothing(ring: RingInProcess) -> None:
    a, b = ring.nodes["a"], ring.nodes["b"]
    await removed(ring, "b")
    heard = await Heard().start(b)
    for stream in STREAMS:
        await b.feed.listen(stream)
    await ring.until(lambda: b.state.news == a.state.news)
    await ring.start("d")
    await ring.until(lambda: len(held_by(ring.nodes["d"])) == 5)
    missed = heard.missed
    for stream in STREAMS:  # it finds out by being refused, and long before it would give up
        assert (await publish(b, stream)).offset == 1
    await ring.until(lambda: b.state.news == a.state.news and heard.missed > missed)
    for stream in STREAMS:
        await publish(a, stream)
    await ring.until(lambda: {message.stream for message in heard.messages if message.offset == 2} == set(STREAMS))


async def test_news_that_a_busy_link_refused_are_sent_later(ring: RingInProcess) -> None:
    for node in ring.nodes.values():
        for link in node._links.values():
            call, failed = link.call, [False]

            async def busy(method: str, *arguments: object, call: Any = call, failed: list[bool] = failed) -> Any:
                if method == "news" and not failed[0]:
                    failed[0] = True
                    raise Unavailable("too many calls wait")
                return await call(method, *arguments)

            link.call = busy  # type: ignore[method-assign]
    ring.nodes["a"].state.apply(LeaveRing("1", "c"))
    ring.nodes["a"]._follow()
    await ring.settled()
    assert each_served_once(ring)
    await ring.until(lambda: len({repr(node.state.news) for node in ring.nodes.values()}) == 1)


async def test_shard_that_moves_to_a_node_being_connected_is_listened_to(ring: RingInProcess) -> None:
    a = ring.nodes["a"]
    heard = await Heard().start(a)
    for stream in STREAMS:
        await a.feed.listen(stream)
    ready, flush = asyncio.Event(), a._unsent_calls.flush

    async def late(node: str, send: Any) -> list[UnsentCall]:
        if node == "d":
            await ready.wait()
        return await flush(node, send)

    a._unsent_calls.flush = late  # type: ignore[method-assign]
    await ring.start("d")
    d = ring.nodes["d"]
    await ring.until(lambda: len(held_by(d)) >= 2)  # from the others
    await ring.until(lambda: all(a.state.holder(shard) == "d" for shard in held_by(d)))
    ready.set()
    await ring.settled()
    for stream in STREAMS:
        await publish(ring.nodes["c"], stream)
    await ring.until(lambda: {message.stream for message in heard.messages} == set(STREAMS))


async def test_pending_call_goes_to_the_new_holder_of_its_shard(ring: RingInProcess) -> None:
    """Shards may move while a call is pending. A stale call must not keep two nodes disconnected."""
    a, clock = ring.nodes["a"], ring.setup.clock
    await a.leases.renew(60.0, ())
    sid = next(f"sid{number}" for number in range(1000) if a.router.holder(f"sid{number}") == "c")
    repair = cut(a, "b")
    await ring.until(lambda: not a._links["b"].connected)
    a._unsent_calls.add("b", ("write", sid), "write", [SessionWrite(sid, SNAPSHOT, 1, 60.0, live=False, began=clock())])
    repair()
    async with asyncio.timeout(SECONDS):
        while await ring.nodes["c"].sessions.peek(sid) != SNAPSHOT:
            await asyncio.sleep(0.01)
