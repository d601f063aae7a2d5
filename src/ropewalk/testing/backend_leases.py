"""Conformance of a `ports.Backend` that several nodes share: leases, sessions written while they are live, takeover, members
of dead nodes, and calls that fail."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.sessions import EndRequest, SessionSnapshot, SessionTaken, SessionWanted, SessionWrite, Subscribed
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
    return [member.id for member in (await node.presence.members(stream, "", 100)).members]


class LeaseConformance(SharedBackendRig):
    async def expired_sids(self, *nodes: SharingNode) -> list[str]:
        """The sids of expired sessions that these nodes report, in this order."""
        given = []
        for node in nodes:
            await node.backend.sweep()
            given += [sid for sid, _ in await node.sessions.take_expired(10)]
        return given

    async def pass_time(self, seconds: float, *living: SharingNode) -> None:
        """Advance the time in steps; the living nodes renew their leases meanwhile."""
        while seconds > 0:
            step = min(seconds, LEASE / 3)
            await self.advance(step)
            seconds -= step
            for node in living:
                await node.leases.renew(LEASE, ())
                await node.backend.sweep()

    # --- sessions -----------------------------------------------------------------------------------------------------

    async def test_live_session_is_taken_over_and_its_node_is_notified(self) -> None:
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

    async def test_former_node_cannot_write_a_session_after_takeover(self) -> None:
        async with self.two_nodes() as (old, new):
            await opened(old, "sid", self.clock.now)
            await new.sessions.take("sid", "next")
            late = SessionWrite("sid", CHANGED, 2, TTL)
            for write in (late, replace(late, live=False), replace(late, began=self.clock.now)):
                assert await old.leases.write([write]) == [SessionTaken("sid")]
            assert await new.sessions.peek("next") == SNAPSHOT

    async def test_takeover_returns_the_latest_version(self) -> None:
        async with self.two_nodes() as (old, new):
            await opened(old, "sid", self.clock.now)
            assert await old.leases.write([SessionWrite("sid", CHANGED, 3, TTL)]) == []
            assert await old.leases.write([SessionWrite("sid", SNAPSHOT, 2, TTL)]) == []  # a late write
            assert await new.sessions.take("sid", "next") == CHANGED

    async def test_former_sid_is_valid_until_its_successor_is_written(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            assert await two.sessions.take("sid", "second") == SNAPSHOT  # the client never receives it
            assert await one.sessions.take("sid", "third") == SNAPSHOT
            assert await two.leases.write([SessionWrite("second", SNAPSHOT, 1, TTL)]) == [SessionTaken("second")]
            assert await one.leases.write([SessionWrite("third", SNAPSHOT, 2, TTL)]) == []
            assert [await two.sessions.take(sid, "fourth") for sid in ("sid", "second")] == [None, None]
            assert await two.sessions.take("third", "fourth") == SNAPSHOT

    async def test_session_expires_if_its_new_node_never_writes_it(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            await two.sessions.take("sid", "next")
            await self.pass_time(TTL, one, two)
            assert await self.expired_sids(one, two) == ["next"]

    async def test_session_of_a_dead_node_can_be_resumed_within_its_ttl(self) -> None:
        async with self.two_nodes() as (dead, alive):
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await opened(dead, "sid", self.clock.now)
            await opened(dead, "other", self.clock.now)
            await self.pass_time(LEASE + TTL - 1, alive)
            assert await alive.sessions.take("sid", "next") == SNAPSHOT

    async def test_session_of_a_dead_node_expires_once(self) -> None:
        async with self.two_nodes() as (dead, alive):
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await opened(dead, "sid", self.clock.now)
            await self.pass_time(LEASE, alive)
            assert await self.expired_sids(alive) == []
            await self.pass_time(TTL, alive)
            assert await self.expired_sids(alive, dead, alive) == ["sid"]
            assert await alive.sessions.take("sid", "next") is None

    async def test_session_is_live_while_its_node_renews_the_lease(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            await opened(one, "sid", self.clock.now)
            await self.pass_time(10 * (LEASE + TTL), one)
            assert await self.expired_sids(one, two) == []
            assert await two.sessions.take("sid", "next") == SNAPSHOT

    async def test_expired_lease_is_replaced_and_rewritten_sessions_stay_live(self) -> None:
        async with self.two_nodes() as (slow, alive):
            first = (await slow.leases.renew(LEASE, ())).lease
            assert (await slow.leases.renew(LEASE, ())).lease == first
            await opened(slow, "sid", self.clock.now)
            await self.pass_time(LEASE + 1, alive)
            assert (await slow.leases.renew(LEASE, ())).lease != first
            assert await slow.leases.write([SessionWrite("sid", SNAPSHOT, 2, TTL)]) == []
            await self.pass_time(2 * TTL, slow, alive)
            assert await self.expired_sids(slow, alive) == []

    async def test_node_cannot_write_a_session_that_expired(self) -> None:
        async with self.two_nodes() as (slow, alive):
            await slow.leases.renew(LEASE, ())
            await opened(slow, "sid", self.clock.now)
            await self.pass_time(LEASE + TTL, alive)
            await slow.leases.renew(LEASE, ())
            assert await slow.leases.write([SessionWrite("sid", SNAPSHOT, 2, TTL)]) == [SessionTaken("sid")]

    async def test_disconnected_session_is_kept_for_its_ttl(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            await opened(one, "away", self.clock.now)
            await opened(one, "ended", self.clock.now)
            gone = [SessionWrite("away", SNAPSHOT, 2, TTL, live=False), SessionWrite("ended", SNAPSHOT, 3, 0.0, live=False)]
            assert await one.leases.write(gone) == []
            assert await self.expired_sids(two, one) == ["ended"]
            await self.pass_time(TTL - 1, one, two)
            assert await two.sessions.peek("away") == SNAPSHOT
            await self.pass_time(1, one, two)
            assert await self.expired_sids(two, one) == ["away"]

    async def test_session_without_ttl_expires_with_its_node(self) -> None:
        async with self.two_nodes() as (dead, alive):
            await dead.leases.renew(LEASE, ())
            await opened(dead, "sid", self.clock.now, ttl=0.0)
            assert await alive.sessions.take("sid", "next") is None
            assert await self.expired_sids(alive) == []
            await self.pass_time(LEASE, alive)
            assert await self.expired_sids(alive, alive) == ["sid"]

    async def test_oversized_session_does_not_block_other_writes(self) -> None:
        """It may not be resumable, but its expiry is reported."""
        async with self.two_nodes() as (old, new):
            await old.leases.renew(LEASE, ())
            sessions = {"huge": HUGE, "small": SNAPSHOT}
            writes = [SessionWrite(sid, snapshot, 1, TTL, began=self.clock.now) for sid, snapshot in sessions.items()]
            assert await old.leases.write(writes) == []
            assert await new.sessions.peek("small") == SNAPSHOT
            assert await old.leases.write([SessionWrite("huge", HUGE, 2, TTL, live=False)]) == []
            await self.pass_time(TTL + 1, old, new)
            assert await self.expired_sids(old, new) == ["huge"]

    async def test_revoke_ends_live_sessions_of_another_node(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            await opened(one, "sid", self.clock.now)
            await opened(one, "other", self.clock.now, replace(SNAPSHOT, ids="another"))
            assert await two.sessions.revoke(SNAPSHOT.ids, False) == [("sid", SNAPSHOT)]
            assert (await one.leases.renew(LEASE, ())).taken == (SessionTaken("sid", revoked=True, reconnect=False),)
            assert (await one.leases.renew(LEASE, ["sid"])).taken == ()
            assert await two.sessions.take("sid", "next") is None
            assert await two.sessions.peek("other") is not None

    async def test_write_of_a_revoked_session_returns_the_disconnect_request(self) -> None:
        """The node may not have received the request, and its lease may have ended."""
        async with self.two_nodes() as (one, two):
            for node in (one, two):
                await node.leases.renew(LEASE, ())
            for reconnect in (True, False):
                sid = f"sid {reconnect}"
                await opened(one, sid, self.clock.now)
                await self.pass_time(LEASE + 1, two)
                await two.sessions.revoke(SNAPSHOT.ids, reconnect)
                revoked = SessionTaken(sid, True, reconnect)
                for began in (None, self.clock.now - LEASE):
                    assert await one.leases.write([SessionWrite(sid, SNAPSHOT, 9, TTL, began=began)]) == [revoked]
                await one.leases.renew(LEASE, ())
                await self.advance(1)

    async def test_session_revoked_before_it_was_written_returns_the_disconnect_request(self) -> None:
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            for number, reconnect in enumerate((True, False, True)):
                sid, began = f"sid {number}", self.clock.now
                await self.advance(1)
                await two.sessions.revoke(SNAPSHOT.ids, reconnect)
                await self.advance(1)
                early = SessionWrite(sid, SNAPSHOT, 1, TTL, began=began)
                assert await one.leases.write([early]) == [SessionTaken(sid, True, reconnect, stored=False)]

    async def test_write_of_an_unknown_session_is_refused_until_it_says_when_it_began(self) -> None:
        """The store may have lost the session's record."""
        async with self.two_nodes() as (one, two):
            await one.leases.renew(LEASE, ())
            for live in (True, False):
                write = SessionWrite(f"sid {live}", SNAPSHOT, 1, TTL, live)
                assert await one.leases.write([write]) == [SessionTaken(write.sid, stored=False)]
                assert await one.leases.write([replace(write, version=2, began=self.clock.now)]) == []
                assert await two.sessions.peek(write.sid) == SNAPSHOT

    async def test_disconnect_request_arrives_before_the_revoked_sessions(self) -> None:
        """The request decides whether clients may reconnect."""
        async with self.two_nodes() as (old, new):
            here = await Process().start(old.backend)
            request = RemoteDisconnect(SNAPSHOT.ids, reconnect=False)

            async def disconnect(given: EndRequest) -> int:
                return len(await new.sessions.revoke(SNAPSHOT.ids, False)) if given == request else 0

            await new.backend.feed.start(lambda messages: None, disconnect)
            await old.leases.renew(LEASE, ())
            await opened(old, "sid", self.clock.now)
            await new.backend.feed.disconnect(request)
            await until(lambda: SessionTaken("sid", True, reconnect=False) in here.orders)
            assert here.orders[0] == request

    async def test_revoke_applies_to_sessions_that_began_before_it(self) -> None:
        async with self.two_nodes() as (one, two):
            began = self.clock.now
            await self.advance(1)
            await two.sessions.revoke(SNAPSHOT.ids, True)
            await self.advance(1)
            early = SessionWrite("early", SNAPSHOT, 1, TTL, began=began)
            assert await one.leases.write([early]) == [SessionTaken("early", revoked=True, stored=False)]
            await opened(one, "late", self.clock.now)
            assert [await two.sessions.peek(sid) is not None for sid in ("early", "late")] == [False, True]

    # --- presence -----------------------------------------------------------------------------------------------------

    async def test_members_of_a_dead_node_leave_once(self) -> None:
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

    async def test_adopted_member_outlives_its_former_node(self) -> None:
        async with self.two_nodes() as (dead, alive):
            for node in (dead, alive):
                await node.leases.renew(LEASE, ())
            await dead.presence.join("a", "old", BO)
            assert await alive.presence.adopt("old", "new") == {"a": BO}
            await self.pass_time(LEASE + 20, alive)
            assert await alive.presence.expire() == []
            assert await listed(alive, "a") == ["bo"]

    async def test_member_that_rejoins_after_the_lease_expired_stays(self) -> None:
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

    async def test_unavailable_store_changes_nothing(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            await two.presence.join("a", "sid", BO)
            for call in (
                lambda: one.backend.streams.append([Publication("a", b"1")]),
                lambda: one.leases.write([SessionWrite("sid", CHANGED, 2, TTL)]),
                lambda: one.sessions.take("sid", "next"),
                lambda: one.sessions.revoke(SNAPSHOT.ids, True),
                lambda: one.leases.renew(LEASE, ()),
                lambda: one.presence.leave("a", "sid"),
            ):
                await self.failing(one, StoreFault.UNAVAILABLE, call)
            assert (await two.backend.streams.tip("a")).offset == 0
            assert await two.sessions.peek("sid") == SNAPSHOT
            assert await listed(two, "a") == ["bo"]

    async def test_unanswered_calls_can_be_repeated(self) -> None:
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

    async def test_last_of_two_repeated_takeovers_gets_the_session(self) -> None:
        async with self.two_nodes() as (one, two):
            await opened(one, "sid", self.clock.now)
            await self.failing(one, StoreFault.UNANSWERED, lambda: one.sessions.take("sid", "first"))
            assert await two.sessions.take("sid", "second") == SNAPSHOT
            assert await one.sessions.take("sid", "first") is None
            assert await two.leases.write([SessionWrite("second", SNAPSHOT, 1, TTL)]) == []

    async def test_slow_store_does_not_delay_other_nodes(self) -> None:
        async with self.two_nodes() as (slow, fast):
            await opened(fast, "sid", self.clock.now)
            self.disturb(slow.backend, StoreFault.SLOW)
            waiting = asyncio.ensure_future(slow.sessions.peek("sid"))
            assert await fast.sessions.take("sid", "next") == SNAPSHOT
            assert await fast.leases.write([SessionWrite("next", SNAPSHOT, 1, TTL)]) == []
            self.disturb(slow.backend, StoreFault.NONE)
            assert await waiting is None
