"""Conformance of `ports.SessionStore`: a session can be resumed once, within its TTL."""

from msgspec.structs import replace

from ropewalk.model.presence import Member
from ropewalk.model.sessions import AppSide, SessionSnapshot, Subscribed
from ropewalk.testing.backend_rig import BackendRig

SNAPSHOT = SessionSnapshot(
    '{"user":"1"}',
    {'{"channel":"Chat"}': Subscribed(("chat/1", "chat/2"), whisper="chat/1", presence="chat/2")},
    expires_at=2_000_000.5,
    members={"chat/2": Member("1", b'{"name":"Bo"}')},
)
KNOWN = replace(SNAPSHOT, app=AppSide("http://x/cable", {"cookie": "a=1"}, {"user": "7"}, known=True))


class SessionConformance(BackendRig):
    async def test_saved_session_is_returned_complete_and_once(self) -> None:
        async with self.running() as backend:
            assert await backend.sessions.peek("sid") is None
            assert await backend.sessions.take("sid") is None
            await backend.sessions.save("sid", SNAPSHOT, 10)
            assert [await backend.sessions.peek("sid") for _ in range(2)] == [SNAPSHOT, SNAPSHOT]
            assert await backend.sessions.peek("another") is None
            assert await backend.sessions.take("sid") == SNAPSHOT
            assert await backend.sessions.take("sid") is None
            assert await backend.sessions.peek("sid") is None
            await self.advance(10)
            await backend.sweep()
            assert backend.gauges()["sessions_kept"] == 0

    async def test_revoke_removes_all_sessions_of_one_identity(self) -> None:
        async with self.running() as backend:
            other = replace(SNAPSHOT, ids="another")
            await backend.sessions.save("one", SNAPSHOT, 10)
            await backend.sessions.save("other", other, 10)
            await backend.sessions.save("two", KNOWN, 10)
            await backend.sessions.save("taken", KNOWN, 10)
            await backend.sessions.take("taken")
            assert sorted(await backend.sessions.revoke(SNAPSHOT.ids, True), key=lambda each: each[0]) == [
                ("one", SNAPSHOT),
                ("two", KNOWN),
            ]
            assert await backend.sessions.revoke(SNAPSHOT.ids, True) == []
            assert [await backend.sessions.take(sid) for sid in ("one", "two", "taken")] == [None] * 3
            await self.advance(9)
            assert await backend.sessions.take("other") == other
            await self.advance(1)
            await backend.sweep()
            assert await backend.sessions.take_expired(10) == []

    async def test_session_expires_after_its_ttl(self) -> None:
        async with self.running() as backend:
            await backend.sessions.save("soon", SNAPSHOT, 10)
            await backend.sessions.save("late", SNAPSHOT, 11)
            await self.advance(10)
            assert await backend.sessions.peek("soon") is None
            assert await backend.sessions.take("soon") is None
            assert await backend.sessions.take("late") == SNAPSHOT

    async def test_session_saved_again_gets_a_new_ttl(self) -> None:
        async with self.running() as backend:
            await backend.sessions.save("sid", SessionSnapshot("old", {}), 10)
            await self.advance(5)
            await backend.sessions.save("sid", SNAPSHOT, 10)
            await self.advance(5)
            await backend.sweep()
            assert await backend.sessions.take("sid") == SNAPSHOT
            await backend.sessions.save("sid", SNAPSHOT, 10)
            await self.advance(10)
            assert await backend.sessions.peek("sid") is None

    async def test_expired_session_is_reported_once(self) -> None:
        async with self.running() as backend:
            await backend.sessions.save("known", KNOWN, 10)
            await backend.sessions.save("resumed", KNOWN, 10)
            await backend.sessions.save("unknown", SNAPSHOT, 10)
            assert await backend.sessions.take("resumed") == KNOWN
            await backend.sweep()
            assert await backend.sessions.take_expired(10) == []
            await self.advance(10)
            await backend.sweep()
            assert sorted(sid for sid, _ in await backend.sessions.take_expired(10)) == ["known", "unknown"]
            assert await backend.sessions.take_expired(10) == []
            assert await backend.sessions.take("known") is None

    async def test_session_that_began_after_a_revocation_is_reported_as_expired(self) -> None:
        async with self.running() as backend:
            await backend.sessions.revoke(SNAPSHOT.ids, True)
            await backend.sessions.save("sid", SNAPSHOT, 10)
            await self.advance(10)
            await backend.sweep()
            assert await backend.sessions.take_expired(10) == [("sid", SNAPSHOT)]

    async def test_session_that_was_requested_too_late_is_reported_as_expired(self) -> None:
        async with self.running() as backend:
            await backend.sessions.save("sid", KNOWN, 10)
            await self.advance(10)
            assert await backend.sessions.take("sid") is None
            await backend.sweep()
            assert await backend.sessions.take_expired(10) == [("sid", KNOWN)]

    async def test_expired_sessions_are_reported_in_portions(self) -> None:
        async with self.running() as backend:
            for sid in "abc":
                await backend.sessions.save(sid, KNOWN, 10)
            await self.advance(10)
            await backend.sweep()
            portions = [await backend.sessions.take_expired(2) for _ in range(3)]
            assert [len(portion) for portion in portions] == [2, 1, 0]

    async def test_abandoned_returns_the_sessions_that_end_with_the_process(self) -> None:
        async with self.running() as backend:
            await backend.sessions.save("sid", KNOWN, 10)
            given = await backend.sessions.take_abandoned()
            left = await backend.sessions.take("sid")
            assert (given, left) in (([("sid", KNOWN)], None), ([], KNOWN))
