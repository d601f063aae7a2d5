"""What a `ports.Backend` must do that several nodes share: leases, sessions that are written while they live, take-over,
members of dead nodes, and calls that fail."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWanted, SessionWrite, Subscribed
from ropewalk.testing.backend_feed import Process, until
from ropewalk.testing.backend_rig import SharedBackendRig, SharingNode, StoreFault

SNAPSHOT = SessionSnapshot('{"user":"1"}', {'{"channel":"Chat"}': Subscribed(("chat/1",), presence="chat/1")})
CHANGED = replace(SNAPSHOT, members={"chat/1": Member("1")})
HUGE = replace(SNAPSHOT, subscriptions={f"{number:0100}": Subscribed(("chat/1",)) for number in range(20_000)})
BO = Member("bo")
TTL = 10.0
LEASE = 6.0


async def opened(node: SharingNode, sid: str, began: float, snapshot: SessionSnapshot = SNAPSHOT, ttl: float = TTL) -> None:
    assert await node.leases.write([SessionWrite(sid, snapshot, 1, ttl, began=began)]) == []


async def listed(node: SharingNode, stream: str) -> list[str]:
    return [member.id for member in (await node.presence.page(stream, "", 100)).members]


class LeaseConformance(SharedBackendRig):
    async def over(self, *nodes: SharingNode) -> list[str]:
        """The sids that are given out as expired, to whichever node asks."""
        given = []
        for node in nodes:
            await node.backend.sweep()
            given += [sid for sid, _ in await node.sessions.expired(10)]
        return given

    async def pass_time(self, seconds: float, *living: SharingNode) -> None:
        """The leases of those that live are renewed meanwhile."""
        while seconds > 0:
            step = min(seconds, LEASE / 3)
            await self.advance(step)
            seconds -= step
            for node in living:
                await node.leases.renew(LEASE, ())
                await node.backend.sweep()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def test_a_session_that_lives_can_be_taken_over_and_its_node_is_told(self) -> None:
        async with self.two_nodes() as (old, new):
            here = await Process().start(old.backend)
            await old.leases.renew(LEASE, ())
            await opened(old, "sid", self.clock.now)
            assert await new.sessions.peek("sid") == SNAPSHOT
            assert await new.sessions.take("sid", "next") == SNAPSHOT
            await until(lambda: SessionTaken("sid") in here.orders)
            assert set(here.orders) <= {SessionWanted("sid"), SessionTaken("sid")}
            assert (await old.leases.renew(LEASE, ())).taken == (SessionTaken("sid"),)
            assert (await old.leases.renew(LEASE, ["sid"])).taken == ()

    async def test_a_node_whose_session_was_taken_over_cannot_write_it_any_more(self) -> None:
        async with self.two_nodes() as (old, new):
            await opened(old, "sid", self.clock.now)
            await new.sessions.take("sid", "next")
            late = SessionWrite("sid", CHANGED, 2, TTL)
            for write in (late, replace(late, live=False), replace(late, began=self.clock.now)):
                assert await old.leases.write([write]) == [SessionTaken("sid")]
            assert await new.sessions.peek("next") == SNAPSHOT

    async def test_what_was_written_last_is_what_is_taken(self) -> None:
        async with self.two_nodes() as (old, new):
            await opened(old, "sid", self.clock.now)
            assert await old.leases.write([SessionWrite("sid", CHANGED, 3, TTL)]) == []
            assert await old.leases.write([SessionWrite("sid", SNAPSHOT, 2, TTL)]) == []  # it comes late
            assert await new.sessions.take("sid", "next") == CHANGED

    async def test_a_former_sid_is_valid_until_its_successor_is_written(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            assert await two.sessions.take("sid", "second") == SNAPSHOT  # and the client never hears of it
            assert await one.sessions.take("sid", "third") == SNAPSHOT
            assert await two.leases.write([SessionWrite("second", SNAPSHOT, 1, TTL)]) == [SessionTaken("second")]
            assert await one.leases.write([SessionWrite("third", SNAPSHOT, 2, TTL)]) == []
            assert [await two.sessions.take(sid, "fourth") for sid in ("sid", "second")] == [None, None]
            assert await two.sessions.take("third", "fourth") == SNAPSHOT

    async def test_a_taken_session_that_its_new_node_never_writes_expires(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            await two.sessions.take("sid", "next")
            await self.pass_time(TTL, one, two)
            assert await self.over(one, two) == ["next"]

    async def test_the_sessions_of_a_dead_node_can_be_resumed_for_their_time(self) -> None:
        async with self.two_nodes() as (dead, alive):
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await opened(dead, "sid", self.clock.now)
            await opened(dead, "other", self.clock.now)
            await self.pass_time(LEASE + TTL - 1, alive)
            assert await alive.sessions.take("sid", "next") == SNAPSHOT

    async def test_a_session_of_a_dead_node_expires_once(self) -> None:
        async with self.two_nodes() as (dead, alive):
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await opened(dead, "sid", self.clock.now)
            await self.pass_time(LEASE, alive)
            assert await self.over(alive) == []
            await self.pass_time(TTL, alive)
            assert await self.over(alive, dead, alive) == ["sid"]
            assert await alive.sessions.take("sid", "next") is None

    async def test_a_session_lives_as_long_as_its_node_renews_its_lease(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            await opened(one, "sid", self.clock.now)
            await self.pass_time(10 * (LEASE + TTL), one)
            assert await self.over(one, two) == []
            assert await two.sessions.take("sid", "next") == SNAPSHOT

    async def test_a_lease_that_ended_begins_anew_and_what_is_written_again_lives(self) -> None:
        async with self.two_nodes() as (slow, alive):
            first = (await slow.leases.renew(LEASE, ())).lease
            assert (await slow.leases.renew(LEASE, ())).lease == first
            await opened(slow, "sid", self.clock.now)
            await self.pass_time(LEASE + 1, alive)
            assert (await slow.leases.renew(LEASE, ())).lease != first
            assert await slow.leases.write([SessionWrite("sid", SNAPSHOT, 2, TTL)]) == []
            await self.pass_time(2 * TTL, slow, alive)
            assert await self.over(slow, alive) == []

    async def test_a_session_that_expired_meanwhile_is_not_the_nodes_any_more(self) -> None:
        async with self.two_nodes() as (slow, alive):
            await slow.leases.renew(LEASE, ())
            await opened(slow, "sid", self.clock.now)
            await self.pass_time(LEASE + TTL, alive)
            await slow.leases.renew(LEASE, ())
            assert await slow.leases.write([SessionWrite("sid", SNAPSHOT, 2, TTL)]) == [SessionTaken("sid")]

    async def test_a_session_whose_connection_is_gone_is_kept_for_its_time(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            await opened(one, "away", self.clock.now)
            await opened(one, "ended", self.clock.now)
            gone = [SessionWrite("away", SNAPSHOT, 2, TTL, live=False), SessionWrite("ended", SNAPSHOT, 3, 0.0, live=False)]
            assert await one.leases.write(gone) == []
            assert await self.over(two, one) == ["ended"]
            await self.pass_time(TTL - 1, one, two)
            assert await two.sessions.peek("away") == SNAPSHOT
            await self.pass_time(1, one, two)
            assert await self.over(two, one) == ["away"]

    async def test_a_session_that_cannot_be_resumed_is_over_with_its_node(self) -> None:
        async with self.two_nodes() as (dead, alive):
            await dead.leases.renew(LEASE, ())
            await opened(dead, "sid", self.clock.now, ttl=0.0)
            assert await alive.sessions.take("sid", "next") is None
            assert await self.over(alive) == []
            await self.pass_time(LEASE, alive)
            assert await self.over(alive, alive) == ["sid"]

    async def test_a_session_that_is_too_large_keeps_no_other_from_being_written(self) -> None:
        """It may be that it cannot be resumed, but its end is told."""
        async with self.two_nodes() as (old, new):
            await old.leases.renew(LEASE, ())
            sessions = {"huge": HUGE, "small": SNAPSHOT}
            writes = [SessionWrite(sid, snapshot, 1, TTL, began=self.clock.now) for sid, snapshot in sessions.items()]
            assert await old.leases.write(writes) == []
            assert await new.sessions.peek("small") == SNAPSHOT
            assert await old.leases.write([SessionWrite("huge", HUGE, 2, TTL, live=False)]) == []
            await self.pass_time(TTL + 1, old, new)
            assert await self.over(old, new) == ["huge"]

    async def test_a_remote_disconnect_ends_sessions_that_live_elsewhere(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            await opened(one, "sid", self.clock.now)
            await opened(one, "other", self.clock.now, replace(SNAPSHOT, ids="another"))
            assert await two.sessions.revoke(SNAPSHOT.ids) == [("sid", SNAPSHOT)]
            assert (await one.leases.renew(LEASE, ())).taken == (SessionTaken("sid", revoked=True),)
            assert await one.leases.write([SessionWrite("sid", SNAPSHOT, 9, TTL)]) == [SessionTaken("sid")]
            assert await two.sessions.take("sid", "next") is None
            assert await two.sessions.peek("other") is not None

    async def test_a_node_hears_of_an_order_before_its_sessions_are_taken_by_it(self) -> None:
        """The order says whether clients may come back."""
        async with self.two_nodes() as (old, new):
            here = await Process().start(old.backend)
            order = RemoteDisconnect(SNAPSHOT.ids, reconnect=False)

            async def obey(given: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
                return len(await new.sessions.revoke(SNAPSHOT.ids)) if given == order else 0

            await new.backend.feed.start(lambda messages: None, obey)
            await old.leases.renew(LEASE, ())
            await opened(old, "sid", self.clock.now)
            await new.backend.feed.command(order)
            await until(lambda: SessionTaken("sid", revoked=True) in here.orders)
            assert here.orders[0] == order

    async def test_a_remote_disconnect_ends_sessions_that_were_not_written_yet_and_none_that_begin_later(self) -> None:
        async with self.two_nodes() as (one, two):
            began = self.clock.now
            await self.advance(1)
            await two.sessions.revoke(SNAPSHOT.ids)
            await self.advance(1)
            early = SessionWrite("early", SNAPSHOT, 1, TTL, began=began)
            assert await one.leases.write([early]) == [SessionTaken("early", revoked=True)]
            await opened(one, "late", self.clock.now)
            assert [await two.sessions.peek(sid) is not None for sid in ("early", "late")] == [False, True]

    # --- presence -----------------------------------------------------------------------------------------------------

    async def test_members_of_a_dead_node_leave_after_their_time_and_everybody_hears_of_it_once(self) -> None:
        async with self.two_nodes() as (dead, alive):
            there = await Process().start(alive.backend)
            await alive.backend.feed.listen("a")
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await dead.presence.join("a", "one", BO)
            await alive.presence.join("a", "two", Member("cy"))
            await self.pass_time(LEASE + 14, alive)
            await alive.presence.expire()
            assert await listed(alive, "a") == ["bo", "cy"]
            await self.pass_time(2, alive)
            await alive.presence.expire()
            await alive.presence.expire()
            assert await listed(alive, "a") == ["cy"]
            await until(lambda: len(there.messages) == 3)
            assert [message.payload.count(b"leave") for message in there.messages] == [0, 0, 1]

    async def test_a_member_outlives_the_node_that_its_session_has_left(self) -> None:
        async with self.two_nodes() as (dead, alive):
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await dead.presence.join("a", "old", BO)
            assert await alive.presence.adopt("old", "new") == {"a": BO}
            await self.pass_time(LEASE + 20, alive)
            assert await alive.presence.expire() == []
            assert await listed(alive, "a") == ["bo"]

    async def test_a_member_that_joins_again_after_the_lease_ended_stays(self) -> None:
        async with self.two_nodes() as (slow, alive):
            await slow.leases.renew(LEASE, ())
            await slow.presence.join("a", "sid", BO)
            await self.pass_time(LEASE + 1, alive)
            await slow.leases.renew(LEASE, ())
            assert await slow.presence.join("a", "sid", BO) == []
            await self.pass_time(20, slow, alive)
            assert await alive.presence.expire() == []
            assert await listed(alive, "a") == ["bo"]

    # --- calls that fail ----------------------------------------------------------------------------------------------

    async def failing(self, node: SharingNode, fault: StoreFault, call: Callable[[], Awaitable[object]]) -> None:
        self.disturb(node.backend, fault)
        try:
            await call()
        except Unanswered:
            failed = StoreFault.UNANSWERED
        except Unavailable:
            failed = StoreFault.UNAVAILABLE
        else:
            failed = StoreFault.NONE
        assert failed is fault
        self.disturb(node.backend, StoreFault.NONE)

    async def test_what_a_store_has_not_heard_of_has_not_happened(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            await two.presence.join("a", "sid", BO)
            for call in (
                lambda: one.backend.streams.append([Publication("a", b"1")]),
                lambda: one.leases.write([SessionWrite("sid", CHANGED, 2, TTL)]),
                lambda: one.sessions.take("sid", "next"),
                lambda: one.sessions.revoke(SNAPSHOT.ids),
                lambda: one.leases.renew(LEASE, ()),
                lambda: one.presence.leave("a", "sid"),
            ):
                await self.failing(one, StoreFault.UNAVAILABLE, call)
            assert (await two.backend.streams.tip("a")).offset == 0
            assert await two.sessions.peek("sid") == SNAPSHOT
            assert await listed(two, "a") == ["bo"]

    async def test_what_was_not_answered_can_be_repeated(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            publication = Publication("a", b"1", uid="u")
            write = SessionWrite("sid", SNAPSHOT, 1, TTL, began=self.clock.now)
            await self.failing(one, StoreFault.UNANSWERED, lambda: one.backend.streams.append([publication]))
            assert [receipt.offset for receipt in await one.backend.streams.append([publication])] == [1]
            await self.failing(one, StoreFault.UNANSWERED, lambda: one.leases.write([write]))
            assert await one.leases.write([replace(write, version=2)]) == []
            await self.failing(two, StoreFault.UNANSWERED, lambda: two.sessions.take("sid", "next"))
            assert await two.sessions.take("sid", "next") == SNAPSHOT
            await self.failing(one, StoreFault.UNANSWERED, lambda: one.leases.renew(LEASE, ()))
            assert (await one.leases.renew(LEASE, ())).taken == (SessionTaken("sid"),)
            await self.failing(one, StoreFault.UNANSWERED, lambda: one.presence.join("a", "sid", BO))
            assert await one.presence.join("a", "sid", BO) == []
            assert await listed(two, "a") == ["bo"]

    async def test_of_two_who_repeat_a_take_the_one_who_was_last_has_the_session(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            await self.failing(one, StoreFault.UNANSWERED, lambda: one.sessions.take("sid", "first"))
            assert await two.sessions.take("sid", "second") == SNAPSHOT
            assert await one.sessions.take("sid", "first") is None
            assert await two.leases.write([SessionWrite("second", SNAPSHOT, 1, TTL)]) == []

    async def test_a_slow_store_keeps_no_other_node_waiting(self) -> None:
        async with self.two_nodes() as (slow, fast):
            await opened(fast, "sid", self.clock.now)
            self.disturb(slow.backend, StoreFault.SLOW)
            waiting = asyncio.ensure_future(slow.sessions.peek("sid"))
            assert await fast.sessions.take("sid", "next") == SNAPSHOT
            assert await fast.leases.write([SessionWrite("next", SNAPSHOT, 1, TTL)]) == []
            assert await waiting is None
