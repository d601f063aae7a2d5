"""Presence in Redis. The set of a stream is in the shard of the stream, so that a change and its message are one script."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ropewalk.adapters.backends.redis.entries import encode_body
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.core.server_publications import presence_publication
from ropewalk.model.errors import LimitReached
from ropewalk.model.presence import Member, PresenceEvent, PresencePage

EXPIRED_AT_ONCE = 500
"""Sids per shard and script."""

_KEYS = ("x", "ps", "pi", "ph", "pd", "po", "pw", "nn", "nl")


class RedisPresence:
    """Implements `ports.PresenceStore` for one node."""

    def __init__(self, store: Store, node: str, max_members: int) -> None:
        self._store = store
        self._node = node
        self._max_members = max_members

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        joined, left = (presence_publication(PresenceEvent(kind, stream, member)) for kind in ("join", "leave"))
        answer = await self._ask(
            self._store.shard_for(stream),
            "join",
            self._node,
            stream,
            sid,
            member.id,
            member.info,
            encode_body(joined),
            len(joined.payload),
            encode_body(left),
            len(left.payload),
            self._max_members,
        )
        if answer is None:
            raise LimitReached(f"presence of stream {stream!r} is full: {self._max_members} members")
        return _events(answer)

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return _events(await self._ask(self._store.shard_for(stream), "leave", stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        await self._ask_all("detach", sid, round(ttl * 1000))

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        held: dict[str, Member] = {}
        for answer in await self._ask_all("adopt", self._node, old_sid, new_sid):
            for stream, member_id, info in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
                held[stream.decode()] = Member(member_id.decode(), info)
        return held

    async def expire(self) -> list[PresenceEvent]:
        expired = await asyncio.gather(*(self._expire(shard) for shard in self._store.shards))
        return [event for events in expired for event in events]

    async def _expire(self, shard: Shard) -> list[PresenceEvent]:
        while True:
            due, *events = await self._ask(shard, "expire", EXPIRED_AT_ONCE)
            if events or due < EXPIRED_AT_ONCE:
                return _events(events)

    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        total, *found = await self._ask(self._store.shard_for(stream), "page", stream, after, limit + 1)
        members = [Member(member_id.decode(), info) for member_id, info in zip(found[::2], found[1::2], strict=True)]
        next_id = members[limit - 1].id if len(members) > limit else None
        return PresencePage(stream, total, tuple(members[:limit]), next_id)

    async def _ask(self, shard: Shard, what: str, *arguments: Any) -> Any:
        return await shard.ask("presence", [shard.key(name) for name in _KEYS], what, *arguments)

    async def _ask_all(self, what: str, *arguments: Any) -> list[Any]:
        """A sid may hold members in streams of any shard."""
        return await asyncio.gather(*(self._ask(shard, what, *arguments) for shard in self._store.shards))


def _events(parts: Sequence[bytes]) -> list[PresenceEvent]:
    kinds, streams, ids, infos = parts[::4], parts[1::4], parts[2::4], parts[3::4]
    return [
        PresenceEvent("join" if kind == b"join" else "leave", stream.decode(), Member(member_id.decode(), info))
        for kind, stream, member_id, info in zip(kinds, streams, ids, infos, strict=True)
    ]
