"""Sessions in a store shared by several nodes: when they are written, how often, and store outages.

Runs in virtual time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.core.rules import Rulebook
from ropewalk.engine.persistent_presence import PersistentPresence
from ropewalk.engine.session_leases import FIRST_WRITE_SECONDS, LEASE_SECONDS, RENEW_SECONDS, WRITE_SECONDS
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.tasks import Tasks
from ropewalk.model.errors import Unanswered
from ropewalk.model.history import Gap, Replay
from ropewalk.model.limits import Limits, StoreLimits
from ropewalk.model.messages import Position, Publication, RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Accepted, ConnectRequest, SessionSnapshot, SessionTaken, SessionWrite, Subscribed
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.steps import run
from ropewalk.testing.simulation.unreliable import LATE_SECONDS, Air, Counts, Faults, UnreliableBackend
from tests.unit.engine.workbench import Client, Clock, Workbench, public

PATIENT = Limits(ping_interval=0, sessions_ttl=60.0, presence_ttl=5.0, resume_timeout=1e9)

BETWEEN_RENEWALS = 3.5 * RENEW_SECONDS
"""Seconds after a node's start that are between two renewals of its lease."""


class SameUser:
    """Implements `ports.Authenticator`: all clients are the same user."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        return Accepted("bo")


class RecordingSessionLog(SessionLog):
    """Records the sessions that ended."""

    def __init__(self, ended: list[str]) -> None:
        self._ended = ended

    def ended(self, sid: str) -> None:
        self._ended.append(sid)


class VirtualClock(Clock):
    def __call__(self) -> float:
        return self.now + asyncio.get_running_loop().time()


class Cluster:
    """Nodes over one store. `writes`: the batches they wrote. `missed`: the loss callbacks of their feeds."""

    def __init__(self) -> None:
        self.faults = Faults(latency=0.0)
        self.faults.heal()
        self.clock = VirtualClock()
        self._air = Air(self.faults, Counts(), Random(1))
        self.store = LosableStore(
            Rulebook(StreamRules(), ()), self.clock, self._air, StoreLimits(presence_ttl=PATIENT.presence_ttl)
        )
        self.writes: list[list[SessionWrite]] = []
        self.missed: list[Callable[[], None]] = []
        self.over: list[str] = []
        self.ended: list[str] = []
        self.feeds: list[Any] = self._air.feeds
        self._started = 0

    async def node(self) -> Workbench:
        self._started += 1
        backend = UnreliableBackend(self.store, self._air, f"node {self._started}", self.over.append)
        write = backend.leases.write

        async def record_write(sessions: Any) -> Any:
            self.writes.append(list(sessions))
            return await write(sessions)

        start = backend.feed.start

        async def start_and_record(deliver: Any, obey: Any, missed: Callable[[], None]) -> None:
            self.missed.append(missed)
            await start(deliver, obey, missed)

        backend.leases.write = record_write  # type: ignore[method-assign]
        backend.feed.start = start_and_record  # type: ignore[assignment, method-assign]
        return await Workbench(
            PATIENT, authenticators=[SameUser()], backend=backend, session_log=RecordingSessionLog(self.ended), clock=self.clock
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


def run_in_cluster(scenario: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Cluster())

    run(main())


async def subscribed(node: Workbench, stream: str = "s") -> Client:
    client = await node.connect()
    await client.send(command="subscribe", identifier=public(stream), presence={"id": "bo"})
    return client


def welcome(client: Client) -> dict[str, Any]:
    return client.connection.replies()[0]


def test_changes_of_many_sessions_are_written_in_one_batch() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        clients = [await subscribed(node) for _ in range(20)]
        assert cluster.writes == []
        await asyncio.sleep(2 * WRITE_SECONDS)
        assert [len(batch) for batch in cluster.writes] == [20]
        assert {write.sid for write in cluster.writes[0]} == {client.sid for client in clients}
        assert all(public("s") in write.snapshot.subscriptions for write in cluster.writes[0])
        await asyncio.sleep(10)
        assert len(cluster.writes) == 1  # an unchanged session is not written again

    run_in_cluster(scenario)


def test_welcome_waits_for_a_near_store_up_to_a_limit() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        assert isinstance(node.backend, UnreliableBackend)
        node.backend.leases.same_host = True
        for cut, seconds in ((False, 0.2), (True, FIRST_WRITE_SECONDS)):
            link_of(node).latency, link_of(node).cut = 0.1, cut
            client = node.open_connection()
            await asyncio.sleep(0.1)
            assert client.connection.replies() == []
            await asyncio.sleep(seconds)
            assert welcome(client)["type"] == "welcome"

    run_in_cluster(scenario)


def test_session_survives_its_node_with_the_written_state() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(2 * WRITE_SECONDS)
        await client.send(command="subscribe", identifier=public("late"))
        kill(first)  # before the change is written
        back = await second.connect(client.sid)
        await asyncio.sleep(1)
        assert welcome(back)["restored"] is True
        assert welcome(back)["restored_ids"] == [public("s")]

    run_in_cluster(scenario)


def test_session_not_written_before_its_node_died_is_unknown() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        kill(first)
        back = await second.connect(client.sid)
        await asyncio.sleep(1)
        assert "restored" not in welcome(back)

    run_in_cluster(scenario)


def test_stale_connection_is_closed_when_its_session_resumes_elsewhere() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_session_written_during_an_unsubscribe_is_no_longer_a_member() -> None:
    async def scenario(cluster: Cluster) -> None:
        node, bo, roster = await cluster.node(), Member("bo"), cluster.store.presence.roster
        granted = {public("kept"): Subscribed(("kept",), presence="kept")}
        cluster.store.sessions.save("sid", SessionSnapshot("bo", granted, members={"kept": bo, "left": bo}), 60.0)
        for stream in ("kept", "left", "joined last"):
            roster.join(stream, "sid", bo)
        await node.connect("sid")
        await asyncio.sleep(1)
        assert [roster.page(stream, "", 10).total for stream in ("kept", "left", "joined last")] == [1, 0, 0]

    run_in_cluster(scenario)


def test_store_outage_closes_no_connection_and_sessions_are_written_afterwards() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(1)
        link_of(first).cut = True
        left = await first.connect()
        left.session.connection_lost()
        await asyncio.sleep(2 * LEASE_SECONDS + PATIENT.presence_ttl)
        assert cluster.store.presence.roster.page("s", "", 10).total == 0  # the node was declared dead
        link_of(first).cut = False
        await asyncio.sleep(3 * RENEW_SECONDS)
        assert client.connection.closed is None
        assert cluster.store.presence.roster.page("s", "", 10).total == 1
        await asyncio.sleep(2 * PATIENT.sessions_ttl)
        assert cluster.over == [left.sid]
        assert "restored" in welcome(await second.connect(client.sid))

    run_in_cluster(scenario)


def test_ended_session_is_over_for_all_nodes() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(1)
        client.session.reject_frame("nonsense", 1003)
        await asyncio.sleep(2)
        assert cluster.over == [client.sid]
        assert "restored" not in welcome(await second.connect(client.sid))

    run_in_cluster(scenario)


def test_remote_disconnect_counts_each_session_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        live, away = await subscribed(first), await subscribed(second)
        departing = [await subscribed(node) for node in (first, second)]
        away.session.connection_lost()
        await asyncio.sleep(1)
        unwritten = await subscribed(second)
        for client in departing:
            client.session.connection_lost()
        assert await first.node.broker.disconnect(RemoteDisconnect("bo")) == 5
        await asyncio.sleep(1)
        stored = [live.sid, away.sid, *(client.sid for client in departing)]
        assert sorted(cluster.over) == sorted(stored)
        assert sorted(cluster.ended) == sorted([*stored, unwritten.sid])
        assert live.connection.closed == unwritten.connection.closed == (1000, "Closed remotely")
        for client in (live, away, unwritten, *departing):
            assert "restored" not in welcome(await second.connect(client.sid))

    run_in_cluster(scenario)


def test_upkeep_that_fails_during_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        link_of(node).cut = True
        await asyncio.sleep(60)
        link_of(node).cut = False
        await asyncio.sleep(10)

    with caplog.at_level("INFO"):
        run_in_cluster(scenario)
    messages = [record.message for record in caplog.records if record.message.startswith("upkeep")]
    assert messages == ["upkeep failed", "upkeep works again"]


def test_retry_of_an_unanswered_append_is_not_reported_as_a_duplicate() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        append, failures = node.backend.streams.append, iter([True])

        async def append_and_lose_the_answer(publications: Any) -> Any:
            receipts = await append(publications)
            if next(failures, False):
                raise Unanswered("no answer")
            return receipts

        node.backend.streams.append = append_and_lose_the_answer  # type: ignore[method-assign]
        receipts = await node.node.broker.publish([Publication("s", b"1"), Publication("s", b"2", uid="u")])
        assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(1, False), (2, True)]

    run_in_cluster(scenario)


@pytest.mark.parametrize("outage", [RENEW_SECONDS, 2 * LEASE_SECONDS])
@pytest.mark.parametrize("reconnect", [True, False])
def test_client_of_a_node_that_missed_the_disconnect_receives_its_reconnect_flag(outage: float, reconnect: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(LEASE_SECONDS)
        cluster.feeds.remove(feed := first.backend.feed)  # the node receives no requests
        link_of(first).cut = True
        await second.node.broker.disconnect(RemoteDisconnect("bo", reconnect))
        await asyncio.sleep(outage)
        cluster.feeds.append(feed)
        link_of(first).cut = False
        await client.send(command="subscribe", identifier=public("late"))
        await asyncio.sleep(LEASE_SECONDS)
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "remote", "reconnect": reconnect}
        assert client.connection.closed == (1000, "Closed remotely")

    run_in_cluster(scenario)


def test_store_of_a_single_process_is_not_written_while_sessions_live() -> None:
    async def scenario(cluster: Cluster) -> None:
        async with Workbench(PATIENT) as bench:
            client = await subscribed(bench)
            await asyncio.sleep(10)
            assert bench.backend.gauges()["sessions_kept"] == 0
            assert client.connection.closed is None

    run_in_cluster(scenario)


def test_sessions_in_the_store_are_removed_after_their_ttl() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        for _ in range(50):
            client = await subscribed(node)
            await asyncio.sleep(0.2)
            client.session.connection_lost()
        await asyncio.sleep(2 * PATIENT.sessions_ttl)
        sessions: MemorySessions = cluster.store.sessions
        assert (len(sessions), sessions.nodes()) == (0, set())
        assert len(cluster.over) == 50

    run_in_cluster(scenario)


def test_client_that_leaves_while_its_resume_waits_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(2 * WRITE_SECONDS)
        client.session.connection_lost()
        back = await node.connect(client.sid)
        link_of(node).cut = True
        await back.send(command="history", identifier=public("s"), history={"since": 1})
        back.session.connection_lost()
        await asyncio.sleep(LEASE_SECONDS)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    run_in_cluster(scenario)


def test_restored_session_that_subscribes_again_is_answered_after_an_outage() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(2 * WRITE_SECONDS)
        client.session.connection_lost()
        back = await node.connect(client.sid)
        link_of(node).cut = True
        await back.send(command="subscribe", identifier=public("s"), history={"since": 1})
        await asyncio.sleep(PATIENT.sessions_ttl / 2)
        assert back.connection.closed is None
        link_of(node).cut = False
        await asyncio.sleep(10)
        assert back.seen() == ["welcome", "confirm_subscription", "confirm_history"]

    run_in_cluster(scenario)


def test_restored_session_is_written_with_its_members_while_the_adoption_is_pending() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_join_is_complete_when_a_store_replica_lags() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_subscribe_during_an_outage_is_answered_after_it() -> None:
    """Clients treat a rejection as final."""

    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_node_stops_within_the_lease_time_without_its_store() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_late_message_of_a_lost_epoch_does_not_reach_a_new_subscriber() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        early = await subscribed(node)
        await node.publish("s", "1")
        *_, last = (await node.backend.streams.replay("s", Position("", 0))).messages
        await cluster.store.lose()
        late = await node.connect()
        history = {"streams": {"s": {"epoch": "", "offset": 0}}}
        await late.send(command="subscribe", identifier=public("s"), history=history)
        await asyncio.sleep(10)
        node.node._deliver([replace(last, offset=2)])  # it was in transit
        await asyncio.sleep(1)
        assert [each for each in late.seen() if isinstance(each, int)] == []
        await node.publish("s", "9")
        await asyncio.sleep(5)
        assert [each for each in late.seen() if isinstance(each, int)] == [1]
        assert early.seen()[-2:] == ["reject_history", 1]

    run_in_cluster(scenario)


def test_replay_overtaken_by_the_feed_is_not_repeated() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_member_that_joins_while_its_node_renews_its_lease_stays() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_member_that_moves_to_another_node_during_its_join_is_a_member_there() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


async def members(node: Workbench) -> list[str]:
    return [member.id for member in (await node.backend.presence.members("s", "", 10)).members]


def test_store_that_lost_its_data_gets_the_live_sessions_again() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        clients = [await subscribed(first), await subscribed(second)]
        await asyncio.sleep(LEASE_SECONDS)
        await cluster.store.lose()
        await asyncio.sleep(LEASE_SECONDS)
        assert [client.connection.closed for client in clients] == [None, None]
        clients[0].session.connection_lost()
        assert welcome(await second.connect(clients[0].sid))["restored"] is True

    run_in_cluster(scenario)


@pytest.mark.parametrize("departs", [False, True])
def test_session_that_changes_before_the_node_notices_the_loss_stays_connected(departs: bool) -> None:
    """The store comes back without the session's record, and the session is written before the lease is renewed."""

    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(BETWEEN_RENEWALS)
        await cluster.store.lose()
        if departs:
            client.session.connection_lost()
        else:
            await client.send(command="subscribe", identifier=public("late"))
        await asyncio.sleep(4 * WRITE_SECONDS)
        assert departs or client.connection.closed is None
        restored = welcome(await second.connect(client.sid))
        assert set(restored["restored_ids"]) == {public("s")} | (set() if departs else {public("late")})

    run_in_cluster(scenario)


def test_restored_session_stays_connected_when_the_store_loses_the_takeover() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(BETWEEN_RENEWALS)
        back = await second.connect(client.sid)
        await cluster.store.lose()  # before the session is written under its new sid
        await asyncio.sleep(4 * WRITE_SECONDS)
        assert back.connection.closed is None
        assert welcome(await first.connect(back.sid))["restored_ids"] == [public("s")]

    run_in_cluster(scenario)


@pytest.mark.parametrize("registered", ["not yet", "unanswered", "yes"])
def test_takeover_that_arrives_after_the_store_lost_its_data_leaves_no_live_session(registered: str) -> None:
    """`registered`: whether the node has registered the session again when the order arrives."""

    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_reported_loss_of_the_feed_renews_the_lease_at_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.node(), await cluster.node()
        client = await subscribed(first)
        await asyncio.sleep(BETWEEN_RENEWALS)
        await cluster.store.lose()
        cluster.missed[0]()
        await asyncio.sleep(2 * WRITE_SECONDS)
        client.session.connection_lost()
        assert welcome(await second.connect(client.sid))["restored"] is True

    run_in_cluster(scenario)


def test_node_that_returns_late_does_not_revive_expired_sessions() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_client_that_reconnects_during_an_outage_gets_a_new_session() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node()
        client = await subscribed(node)
        await asyncio.sleep(LEASE_SECONDS)
        link_of(node).cut = True
        client.session.connection_lost()
        back = await node.connect(client.sid)
        await asyncio.sleep(10)
        assert "restored" not in welcome(back)

    run_in_cluster(scenario)


def test_client_that_joins_during_an_epoch_change_is_not_closed() -> None:
    async def scenario(cluster: Cluster) -> None:
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

    run_in_cluster(scenario)


def test_member_that_left_during_an_outage_is_removed_after_it() -> None:
    """It left while the store did not respond, and its session ended before the store did."""

    async def scenario(cluster: Cluster) -> None:
        node, tasks = await cluster.node(), Tasks()
        client = await subscribed(node)
        link_of(node).cut = True
        client.session.connection_lost()
        client.session.members = None
        PersistentPresence(node.backend.presence, tasks, Random(1).random).reconcile(client.session, "s")
        await asyncio.sleep(LEASE_SECONDS - RENEW_SECONDS - 0.5)  # the node is not declared dead
        link_of(node).cut = False
        await asyncio.sleep(2 * LEASE_SECONDS)
        assert cluster.store.presence.roster.page("s", "", 9).members == ()
        await tasks.cancel()

    run_in_cluster(scenario)
