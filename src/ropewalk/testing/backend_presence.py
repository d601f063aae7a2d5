"""Conformance of `ports.PresenceStore`: a member joins with its first session and leaves with its last, one event each."""

from collections.abc import Sequence

import pytest

from ropewalk.model.errors import LimitReached
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.ports import Backend
from ropewalk.testing.backend_rig import BackendRig

BO = Member("bo", b'{"name":"Bo"}')
CY = Member("cy")


class PresenceConformance(BackendRig):
    async def test_first_session_joins_and_last_session_leaves(self) -> None:
        async with self.running() as backend:
            empty = await backend.presence.members("a", "", 10)
            assert (empty.total, empty.members, empty.next_id) == (0, (), None)
            assert await backend.presence.join("a", "one", BO) == [PresenceEvent("join", "a", BO)]
            page = await backend.presence.members("a", "", 10)
            assert (page.total, page.members, page.next_id) == (1, (BO,), None)
            assert await backend.presence.join("a", "two", BO) == []
            assert await backend.presence.leave("a", "one") == []
            assert changes(await backend.presence.leave("a", "two")) == [("leave", "a", "bo")]
            assert await members(backend, "a") == []

    async def test_joining_again_replaces_the_info_or_the_member(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "sid", BO)
            changed = Member("bo", b'{"name":"Bob"}')
            assert await backend.presence.join("a", "sid", changed) == []
            assert (await backend.presence.members("a", "", 10)).members == (changed,)
            events = await backend.presence.join("a", "sid", CY)
            assert changes(events) == [("leave", "a", "bo"), ("join", "a", "cy")]
            assert await members(backend, "a") == ["cy"]

    async def test_info_of_a_session_goes_with_it(self) -> None:
        forged = Member("bo", b'{"name":"Mallory"}')
        async with self.running() as backend:
            await backend.presence.join("a", "real", BO)
            await backend.presence.join("a", "forger", forged)
            assert (await backend.presence.members("a", "", 10)).members == (forged,)
            await backend.presence.leave("a", "forger")
            assert (await backend.presence.members("a", "", 10)).members == (BO,)
            await backend.presence.join("a", "forger", forged)
            assert await backend.presence.adopt("forger", "forger again") == {"a": forged}
            await backend.presence.detach("forger again", 15)
            await self.advance(15)
            assert await backend.presence.expire() == []
            assert (await backend.presence.members("a", "", 10)).members == (BO,)
            await backend.presence.join("a", "forger", forged)
            assert await backend.presence.adopt("real", "real again") == {"a": BO}
            await backend.presence.leave("a", "real again")
            assert (await backend.presence.members("a", "", 10)).members == (forged,)

    async def test_info_is_shown_right_after_many_sessions_have_left(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "real", BO)
            for number in range(20):
                await backend.presence.join("a", f"sid{number}", Member("bo", b"%d" % number))
            assert (await backend.presence.members("a", "", 10)).members == (Member("bo", b"19"),)
            for number in range(20):
                await backend.presence.leave("a", f"sid{number}")
            assert (await backend.presence.members("a", "", 10)).members == (BO,)

    async def test_leave_or_detach_without_a_member_does_nothing(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "sid", BO)
            assert await backend.presence.leave("b", "sid") == []
            assert await backend.presence.leave("a", "stranger") == []
            await backend.presence.detach("stranger", 0)
            assert await backend.presence.expire() == []
            assert await members(backend, "a") == ["bo"]

    async def test_detached_session_leaves_after_the_grace_period(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "sid", BO)
            await backend.presence.join("b", "sid", BO)
            await backend.presence.detach("sid", 15)
            await self.advance(14)
            assert await backend.presence.expire() == []
            assert await members(backend, "a") == ["bo"]
            await self.advance(1)
            assert sorted(changes(await backend.presence.expire())) == [("leave", "a", "bo"), ("leave", "b", "bo")]
            assert await backend.presence.expire() == []
            assert await members(backend, "a") == []

    async def test_member_stays_while_another_session_is_connected(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "gone", BO)
            await backend.presence.join("a", "here", BO)
            await backend.presence.detach("gone", 15)
            await self.advance(15)
            assert await backend.presence.expire() == []
            assert await members(backend, "a") == ["bo"]

    async def test_adopted_membership_continues_without_events(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "old", BO)
            await backend.presence.detach("old", 15)
            await backend.presence.adopt("old", "new")
            await self.advance(15)
            assert await backend.presence.expire() == []
            assert await members(backend, "a") == ["bo"]
            assert changes(await backend.presence.leave("a", "new")) == [("leave", "a", "bo")]

    async def test_expired_membership_cannot_be_adopted(self) -> None:
        async with self.running() as backend:
            await backend.presence.join("a", "old", BO)
            await backend.presence.detach("old", 15)
            await self.advance(15)
            await backend.presence.expire()
            await backend.presence.adopt("old", "new")
            assert await members(backend, "a") == []
            assert await backend.presence.leave("a", "new") == []

    async def test_members_are_paged_by_id(self) -> None:
        async with self.running() as backend:
            for number, member_id in enumerate(["d", "b", "e", "a", "c"]):
                await backend.presence.join("a", f"sid{number}", Member(member_id))
            first = await backend.presence.members("a", "", 2)
            assert ([member.id for member in first.members], first.next_id, first.total) == (["a", "b"], "b", 5)
            last = await backend.presence.members("a", "c", 2)
            assert ([member.id for member in last.members], last.next_id, last.total) == (["d", "e"], None, 5)

    async def test_full_stream_rejects_another_member(self) -> None:
        async with self.running(max_members=1) as backend:
            await backend.presence.join("a", "one", BO)
            with pytest.raises(LimitReached):
                await backend.presence.join("a", "two", CY)
            assert await members(backend, "a") == ["bo"]
            assert await backend.presence.join("a", "two", BO) == []


def changes(events: Sequence[PresenceEvent]) -> list[tuple[str, str, str]]:
    return [(event.type, event.stream, event.member.id) for event in events]


async def members(backend: Backend, stream: str) -> list[str]:
    return [member.id for member in (await backend.presence.members(stream, "", 100)).members]
