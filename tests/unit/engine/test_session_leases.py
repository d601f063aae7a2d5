"""Sessions over a store that several nodes share: when they are written, how often, and what a store that is down costs.

In virtual time: nothing here waits.
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.adapters.backends.workers.sessions import SharedSessions
from ropewalk.core.rules import Rulebook
from ropewalk.engine.persistent_presence import PersistentPresence
from ropewalk.engine.session_leases import KNOWN_SECONDS, LEASE_SECONDS, RENEW_SECONDS, WRITE_SECONDS
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.tasks import Tasks
from ropewalk.model.history import Gap, Replay
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position, RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Accepted, ConnectRequest, SessionSnapshot, SessionTaken, SessionWrite, Subscribed
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.loop import run
from ropewalk.testing.simulation.unreliable import LATE_SECONDS, Air, Counts, Faults, UnreliableBackend
from tests.unit.engine.workbench import Client, Clock, Workbench, public

PATIENT = Limits(ping_interval=0, sessions_ttl=60.0, presence_ttl=5.0, resume_timeout=1e9)

BETWEEN_RENEWALS = 3.5 * RENEW_SECONDS
"""Seconds after which a node that has just started has renewed its lease, and does not renew it in the next moment."""


class Everybody:
    """Implements `ports.Authenticator`: all clients are the same user."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        return Accepted("bo")


class Ends(SessionLog):
    """Remembers which sessions the application was told of, if there was one."""

    def __init__(self, ended: list[str]) -> None:
        self._ended = ended

    def ended(self, sid: str) -> None:
        self._ended.append(sid)


class VirtualClock(Clock):
    def __call__(self) -> float:
        return self.now + asyncio.get_running_loop().time()


class Cluster:
    """Nodes over one store. `writes`: what they wrote, call by call. `missed`: what the feed of each calls after a loss."""

    def __init__(self) -> None:
        self.faults = Faults(latency=0.0)
        self.faults.heal()
        self.clock = VirtualClock()
        self._air = Air(self.faults, Counts(), Random(1))
        self.store = LosableStore(Rulebook(StreamRules(), ()), self.clock, self._air, presence_ttl=PATIENT.presence_ttl)
        self.writes: list[list[SessionWrite]] = []
        self.missed: list[Callable[[], None]] = []
        self.over: list[str] = []
        self.ended: list[str] = []
        self._started = 0

    async def node(self) -> Workbench:
        self._started += 1
        backend = UnreliableBackend(self.store, self._air, f"node {self._started}", self.over.append)
        write = backend.leases.write

        async def remember(sessions: Any) -> Any:
            self.writes.append(list(sessions))
            return await write(sessions)

        start = backend.feed.start

        async def start_and_remember(deliver: Any, obey: Any, missed: Callable[[], None]) -> None:
            self.missed.append(missed)
            await start(deliver, obey, missed)

        backend.leases.write = remember  # type: ignore[method-assign]
        backend.feed.start = start_and_remember  # type: ignore[assignment, method-assign]
        return await Workbench(
            PATIENT, authenticators=[Everybody()], backend=backend, session_log=Ends(self.ended), clock=self.clock
        ).__aenter__()


def link_of(node: Workbench) -> Any:
    assert isinstance(node.backend, UnreliableBackend)
    return node.backend.link


def kill(node: Workbench) -> None:
    assert isinstance(node.backend, UnreliableBackend)
    node.backend.die()


def hold_orders(node: Workbench) -> Callable[[], None]:
    """Hold the orders that the store sends to a node until the returned function is called."""
    assert isinstance(node.backend, UnreliableBackend)
    feed, held = node.backend.feed, list[SessionTaken]()
    send, feed.send_order = feed.send_order, held.append  # type: ignore[assignment, method-assign]

    def deliver() -> None:
        assert held
        for order in held:
            send(order)

    return deliver


def in_cluster(story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def told() -> None:
        await story(Cluster())

    run(told())


async def subscribed(node: Workbench, stream: str = "s") -> Client:
    client = await node.connect()
    await client.send(command="subscribe", identifier=public(stream), presence={"id": "bo"})
    return client


def welcome(client: Client) -> dict[str, Any]:
    return client.connection.replies()[0]


def test_changes_of_many_sessions_are_written_together_a_moment_later() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        clients = [await subscribed(node) for _ in range(20)]
        assert cluster.writes == []
        await asyncio.sleep(2 * WRITE_SECONDS)
        assert [len(batch) for batch in cluster.writes] == [20]
        assert {write.sid for write in cluster.writes[0]} == {client.sid for client in clients}
        assert all(public("s") in write.snapshot.subscriptions for write in cluster.writes[0])
        await asyncio.sleep(10)
        assert len(cluster.writes) == 1  # one that does not change costs nothing

    in_cluster(story)


def test_a_client_hears_its_sid_when_a_store_that_is_near_knows_it_or_is_away() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        assert isinstance(node.backend, UnreliableBackend)
        node.backend.leases.near = True
        for cut, seconds in ((False, 0.2), (True, KNOWN_SECONDS)):
            link_of(node).latency, link_of(node).cut = 0.1, cut
            client = node.open_connection()
            await asyncio.sleep(0.1)
            assert client.connection.replies() == []
            await asyncio.sleep(seconds)
            assert welcome(client)["type"] == "welcome"

    in_cluster(story)


def test_a_session_outlives_its_node_with_what_was_written() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(2 * WRITE_SECONDS)
        await client.send(command="subscribe", identifier=public("late"))
        kill(first)  # before that is written
        back = await second.connect(client.sid)
        await asyncio.sleep(1)
        assert welcome(back)["restored"] is True
        assert welcome(back)["restored_ids"] == [public("s")]

    in_cluster(story)


def test_a_session_that_began_right_before_its_node_died_is_not_known() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        kill(first)
        back = await second.connect(client.sid)
        await asyncio.sleep(1)
        assert "restored" not in welcome(back)

    in_cluster(story)


def test_a_connection_that_only_looks_alive_is_closed_when_its_session_goes_on_elsewhere() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(2 * WRITE_SECONDS)
        back = await second.connect(client.sid)
        await asyncio.sleep(0.01)
        assert welcome(back)["restored"] is True
        assert client.connection.closed == (1000, "Session resumed elsewhere")
        await asyncio.sleep(2 * PATIENT.sessions_ttl)
        assert (back.connection.closed, cluster.over) == (None, [])
        assert cluster.store.presence.roster.page("s", "", 10).total == 1

    in_cluster(story)


def test_a_session_that_was_written_between_the_steps_of_an_unsubscribe_is_no_member_any_more() -> None:
    async def story(cluster: Cluster) -> None:
        node, bo, roster = await cluster.node(), Member("bo"), cluster.store.presence.roster
        granted = {public("kept"): Subscribed(("kept",), presence="kept")}
        cluster.store.sessions.save("sid", SessionSnapshot("bo", granted, members={"kept": bo, "left": bo}), 60.0)
        for stream in ("kept", "left", "joined last"):
            roster.join(stream, "sid", bo)
        await node.connect("sid")
        await asyncio.sleep(1)
        assert [roster.page(stream, "", 10).total for stream in ("kept", "left", "joined last")] == [1, 0, 0]

    in_cluster(story)


def test_a_store_that_is_down_costs_no_connection_and_the_sessions_are_written_afterwards() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(1)
        link_of(first).cut = True
        left = await first.connect()
        left.session.lost()
        await asyncio.sleep(2 * LEASE_SECONDS + PATIENT.presence_ttl)
        assert cluster.store.presence.roster.page("s", "", 10).total == 0  # the others took the node for dead
        link_of(first).cut = False
        await asyncio.sleep(3 * RENEW_SECONDS)
        assert client.connection.closed is None
        assert cluster.store.presence.roster.page("s", "", 10).total == 1
        await asyncio.sleep(2 * PATIENT.sessions_ttl)
        assert cluster.over == [left.sid]
        assert "restored" in welcome(await second.connect(client.sid))

    in_cluster(story)


def test_a_session_that_ends_for_good_is_over_for_all_nodes() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(1)
        client.session.malformed("nonsense", 1003)
        await asyncio.sleep(2)
        assert cluster.over == [client.sid]
        assert "restored" not in welcome(await second.connect(client.sid))

    in_cluster(story)


def test_a_remote_disconnect_counts_each_session_once_wherever_it_is() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        live, away = await subscribed(first), await subscribed(second)
        away.session.lost()
        await asyncio.sleep(1)
        unwritten = await subscribed(second)
        assert await first.node.broker.disconnect(RemoteDisconnect("bo")) == 3
        await asyncio.sleep(1)
        assert sorted(cluster.over) == sorted([live.sid, away.sid])
        assert sorted(cluster.ended) == sorted([live.sid, away.sid, unwritten.sid])
        assert live.connection.closed == unwritten.connection.closed == (1000, "Closed remotely")
        for client in (live, away, unwritten):
            assert "restored" not in welcome(await second.connect(client.sid))

    in_cluster(story)


def test_a_store_of_one_process_is_asked_for_nothing_while_sessions_live() -> None:
    async def story(cluster: Cluster) -> None:
        async with Workbench(PATIENT) as bench:
            client = await subscribed(bench)
            await asyncio.sleep(10)
            assert bench.backend.gauges()["sessions_kept"] == 0
            assert client.connection.closed is None

    in_cluster(story)


def test_sessions_of_the_store_are_bounded_by_those_that_live_or_are_away() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        for _ in range(50):
            client = await subscribed(node)
            await asyncio.sleep(0.2)
            client.session.lost()
        await asyncio.sleep(2 * PATIENT.sessions_ttl)
        sessions: SharedSessions = cluster.store.sessions
        assert (len(sessions), sessions.nodes()) == (0, set())
        assert len(cluster.over) == 50

    in_cluster(story)


def test_a_client_that_leaves_while_its_resume_waits_for_the_store_is_nobodys_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(2 * WRITE_SECONDS)
        client.session.lost()
        back = await node.connect(client.sid)
        link_of(node).cut = True
        await back.send(command="history", identifier=public("s"), history={"since": 1})
        back.session.lost()
        await asyncio.sleep(LEASE_SECONDS)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    in_cluster(story)


def test_a_restored_session_that_subscribes_again_is_answered_when_the_store_is_back() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(2 * WRITE_SECONDS)
        client.session.lost()
        back = await node.connect(client.sid)
        link_of(node).cut = True
        await back.send(command="subscribe", identifier=public("s"), history={"since": 1})
        await asyncio.sleep(PATIENT.sessions_ttl / 2)
        assert back.connection.closed is None
        link_of(node).cut = False
        await asyncio.sleep(10)
        assert back.seen() == ["welcome", "confirm_subscription", "confirm_history"]

    in_cluster(story)


def test_a_restored_session_is_written_with_its_members_however_long_the_store_takes_to_hand_them_over() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(2 * WRITE_SECONDS)
        adopt, answered = second.backend.presence.adopt, asyncio.Event()

        async def adopt_slowly(former: str, sid: str) -> dict[str, Member]:
            await answered.wait()
            return await adopt(former, sid)

        second.backend.presence.adopt = adopt_slowly  # type: ignore[method-assign, assignment]
        back = second.open_connection(client.sid)
        await asyncio.sleep(3 * WRITE_SECONDS)
        written = [write.snapshot for batch in cluster.writes for write in batch if write.sid == back.sid]
        assert [snapshot.members for snapshot in written] == [{"s": Member("bo")}]
        answered.set()
        await asyncio.sleep(2 * WRITE_SECONDS)

    in_cluster(story)


def test_who_joins_gets_everything_also_where_a_server_of_the_store_answers_that_is_behind() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        await subscribed(node)
        await node.publish("s", "1")
        replay = node.backend.streams.replay
        behind = await replay("s", Position("", 0))
        await node.publish("s", "2", "3")
        answers = [behind, behind]

        async def replay_behind(stream: str, position: Position) -> Replay | Gap:
            return answers.pop() if answers else await replay(stream, position)

        node.backend.streams.replay = replay_behind  # type: ignore[method-assign]
        late = await node.connect()
        history = {"streams": {"s": {"epoch": behind.epoch, "offset": 0}}}
        await late.send(command="subscribe", identifier=public("s"), history=history)
        await asyncio.sleep(10)
        await node.publish("s", "4")
        await asyncio.sleep(1)
        assert [each for each in late.seen() if isinstance(each, int)] == [1, 2, 3, 4]
        assert answers == []

    in_cluster(story)


def test_a_client_that_comes_while_the_store_is_down_is_subscribed_once_it_is_back() -> None:
    """Clients take a rejection for final."""

    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        link_of(node).cut = True
        client = await subscribed(node)
        await asyncio.sleep(120)
        assert client.seen() == ["welcome"]
        link_of(node).cut = False
        await asyncio.sleep(10)
        assert client.seen()[:2] == ["welcome", "confirm_subscription"]
        await node.publish("s", "1")
        assert client.seen()[-1] == 1

    in_cluster(story)


def test_a_node_stops_without_a_store_that_is_away() -> None:
    async def story(cluster: Cluster) -> None:
        node, other = await cluster.node(), await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(LEASE_SECONDS)
        link_of(node).cut = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        await node.node.stop()
        assert loop.time() - began < LEASE_SECONDS
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert welcome(await other.connect(client.sid))["restored"] is True

    in_cluster(story)


def test_what_is_left_of_a_stream_that_the_store_has_lost_does_not_reach_who_joined_after_it() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        early = await subscribed(node)
        await node.publish("s", "1")
        *_, last = (await node.backend.streams.replay("s", Position("", 0))).messages
        await cluster.store.lose()
        late = await node.connect()
        history = {"streams": {"s": {"epoch": "", "offset": 0}}}
        await late.send(command="subscribe", identifier=public("s"), history=history)
        await asyncio.sleep(10)
        node.node._deliver([replace(last, offset=2)])  # it was on its way
        await asyncio.sleep(1)
        assert [each for each in late.seen() if isinstance(each, int)] == []
        await node.publish("s", "9")
        await asyncio.sleep(5)
        assert [each for each in late.seen() if isinstance(each, int)] == [1]
        assert early.seen()[-2:] == ["reject_history", 1]

    in_cluster(story)


def test_an_answer_that_was_overtaken_by_the_feed_is_not_taken_for_old() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        await subscribed(node)
        await node.publish("s", "1")
        replay, asked = node.backend.streams.replay, []

        async def replay_slowly(stream: str, position: Position) -> Replay | Gap:
            answer = await replay(stream, position)
            asked.append(answer.tip)
            await node.publish("s", str(answer.tip + 1))
            return answer

        node.backend.streams.replay = replay_slowly  # type: ignore[method-assign]
        late = await node.connect()
        history = {"streams": {"s": {"epoch": "", "offset": 0}}}
        await late.send(command="subscribe", identifier=public("s"), history=history)
        await asyncio.sleep(1)
        assert asked == [1]
        assert [each for each in late.seen() if isinstance(each, int)] == [1, 2]

    in_cluster(story)


def test_who_joins_while_its_node_gets_a_new_lease_stays_a_member() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        join, answered = first.backend.presence.join, asyncio.Event()

        async def join_and_answer_late(stream: str, sid: str, member: Member) -> list[PresenceEvent]:
            events = await join(stream, sid, member)
            await answered.wait()
            return events

        first.backend.presence.join = join_and_answer_late  # type: ignore[method-assign]
        await subscribed(first)
        assert await members(second) == ["bo"]
        link_of(first).cut = True
        await asyncio.sleep(2 * LEASE_SECONDS + PATIENT.presence_ttl)
        assert await members(second) == []
        link_of(first).cut = False
        await asyncio.sleep(2 * RENEW_SECONDS)
        answered.set()
        await asyncio.sleep(LEASE_SECONDS + PATIENT.presence_ttl)
        assert await members(second) == ["bo"]

    in_cluster(story)


def test_who_moves_to_another_node_while_its_join_is_under_way_is_a_member_there() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()

        async def never_join(stream: str, sid: str, member: Member) -> list[PresenceEvent]:
            await asyncio.get_running_loop().create_future()
            return []

        first.backend.presence.join = never_join  # type: ignore[method-assign]
        client = await subscribed(first)
        await asyncio.sleep(2 * WRITE_SECONDS)
        assert welcome(await second.connect(client.sid))["restored_ids"] == [public("s")]
        await asyncio.sleep(WRITE_SECONDS)
        assert await members(second) == ["bo"]

    in_cluster(story)


async def members(node: Workbench) -> list[str]:
    return [member.id for member in (await node.backend.presence.page("s", "", 10)).members]


def test_a_store_that_lost_its_data_gets_the_sessions_that_live_again_and_nobody_is_disconnected() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        clients = [await subscribed(first), await subscribed(second)]
        await asyncio.sleep(LEASE_SECONDS)
        await cluster.store.lose()
        await asyncio.sleep(LEASE_SECONDS)
        assert [client.connection.closed for client in clients] == [None, None]
        clients[0].session.lost()
        assert welcome(await second.connect(clients[0].sid))["restored"] is True

    in_cluster(story)


@pytest.mark.parametrize("registered", ["not yet", "unanswered", "yes"])
def test_takeover_that_arrives_after_the_store_lost_its_data_leaves_no_live_session(registered: str) -> None:
    """`registered`: whether the node has registered the session again when the order arrives."""

    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(BETWEEN_RENEWALS)
        deliver_orders = hold_orders(first)
        back = await second.connect(client.sid)
        await asyncio.sleep(2 * WRITE_SECONDS)
        await cluster.store.lose()
        for missed in cluster.missed:
            missed()
        await asyncio.sleep(WRITE_SECONDS / 2)
        if registered != "not yet":
            cluster.faults.unanswered = float(registered == "unanswered")  # the store executes the write later
            await asyncio.sleep(WRITE_SECONDS)
            cluster.faults.unanswered = 0.0
        assert cluster.store.sessions.live_on("node 1") == ([client.sid] if registered == "yes" else [])
        deliver_orders()
        await asyncio.sleep(2 * LATE_SECONDS)
        assert client.connection.closed == (1000, "Session resumed elsewhere")
        assert back.connection.closed is None
        assert [cluster.store.sessions.live_on(node) for node in ("node 1", "node 2")] == [[], [back.sid]]
        assert cluster.over == [client.sid]
        assert "restored" not in welcome(await second.connect(client.sid))

    in_cluster(story)


def test_a_node_whose_store_was_out_of_reach_renews_its_lease_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(BETWEEN_RENEWALS)
        await cluster.store.lose()
        cluster.missed[0]()
        await asyncio.sleep(2 * WRITE_SECONDS)
        client.session.lost()
        assert welcome(await second.connect(client.sid))["restored"] is True

    in_cluster(story)


def test_a_node_that_comes_back_after_long_does_not_bring_back_sessions_that_are_over() -> None:
    async def story(cluster: Cluster) -> None:
        first, _ = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(LEASE_SECONDS)
        link_of(first).cut = True
        await asyncio.sleep(LEASE_SECONDS + 3 * PATIENT.sessions_ttl)
        assert cluster.over == [client.sid]
        link_of(first).cut = False
        await asyncio.sleep(LEASE_SECONDS)
        assert client.connection.closed is not None
        assert cluster.store.sessions.live_on("node 1") == []

    in_cluster(story)


def test_a_client_that_comes_back_to_its_node_while_the_store_is_down_is_let_in_with_a_new_session() -> None:
    async def story(cluster: Cluster) -> None:
        node = await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(LEASE_SECONDS)
        link_of(node).cut = True
        client.session.lost()
        back = await node.connect(client.sid)
        await asyncio.sleep(10)
        assert "restored" not in welcome(back)

    in_cluster(story)


def test_who_joins_while_a_stream_begins_anew_is_told_so_and_not_taken_for_slow() -> None:
    async def story(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        await subscribed(first)
        await second.publish("s", "1")
        client = await first.connect()
        link_of(first).latency = 1.0
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        await asyncio.sleep(0.5)
        await cluster.store.lose()
        await second.publish("s", "2")
        await asyncio.sleep(10)
        assert client.connection.closed is None
        await second.publish("s", "3")
        await asyncio.sleep(3)
        assert client.connection.replies()[-1]["message"] == 3
        assert {"reject_history", "confirm_history"} & set(client.seen())

    in_cluster(story)


def test_a_place_that_a_session_has_left_is_given_back_also_after_its_end() -> None:
    """It left while the store did not answer, and was gone before that did."""

    async def story(cluster: Cluster) -> None:
        node, tasks = await cluster.node(), Tasks()
        client = await subscribed(node)
        link_of(node).cut = True
        client.session.lost()
        client.session.members = None
        PersistentPresence(node.backend.presence, tasks, Random(1).random).settle(client.session, "s")
        await asyncio.sleep(LEASE_SECONDS - RENEW_SECONDS - 0.5)  # the node is not taken for dead
        link_of(node).cut = False
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert cluster.store.presence.roster.page("s", "", 9).members == ()
        await tasks.cancel()

    in_cluster(story)
