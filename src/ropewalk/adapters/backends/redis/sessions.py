"""Sessions and presence members in Redis, and the leases of the nodes they live on. Each call is one script. All sessions are
in one shard. The members of a stream are in the shard of the stream, so that a change and its message are one script."""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from zlib import crc32

from msgspec.msgpack import Decoder, Encoder, encode

from ropewalk.adapters.backends.redis.entries import encode_body
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.core.server_publications import presence_publication
from ropewalk.model.errors import LimitReached
from ropewalk.model.limits import StoreLimits
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.redis")

ABANDONED_AT_ONCE = 10_000
CLOCK_SAMPLES = 5
"""Answers used to estimate the offset of the store's clock."""

WRITTEN, TAKEN, REVOKED, UNKNOWN = -1, 0, 1, 3
"""Results of the scripts for a session, as in `lua/records.lua` and `lua/sessions.lua`."""

EXPIRED_AT_ONCE = 500
"""Sids per shard and script."""

_KEYS = ("x", "s", "ss", "sg", "sr", "so", "su", "sl", "si", "sd", "nn", "nl")
_PRESENCE_KEYS = ("ph", "pd", "po", "pw")
_MEMBER_KEYS = ("x", "ps", "pi", "ph", "pd", "po", "pw", "nn", "nl")
_encode = Encoder().encode
_decode = Decoder(SessionSnapshot).decode


def session_keys(shard: Shard) -> list[bytes]:
    return [shard.key(name) for name in _KEYS]


def lease_keys(shard: Shard) -> list[bytes]:
    return [shard.key(name) for name in (*_KEYS, *_PRESENCE_KEYS)]


class RedisSessions:
    """Implements `ports.SessionStore` and `ports.Leases` for one node."""

    same_host = False

    def __init__(self, store: Store, node: str, clock: Clock, limits: StoreLimits) -> None:
        self._store = store
        self._node = node
        self._clock = clock
        self._max_size = limits.max_session_size
        self._ahead: deque[int] = deque(maxlen=CLOCK_SAMPLES)  # offset of the store's clock from this node's

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        data = _encode(snapshot)
        if len(data) > self._max_size:
            raise LimitReached(f"a session of {len(data)} bytes is too large to be kept")
        await self._ask("save", sid, snapshot.ids, _milliseconds(ttl), data)

    async def peek(self, sid: str) -> SessionSnapshot | None:
        return _snapshot(await self._ask("peek", sid))

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        return _snapshot(await self._ask("take", sid, self._node, successor))

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return list(_sessions(await self._ask("revoke", ids, int(reconnect))))

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return list(_sessions(await self._ask("expired", limit))) if limit > 0 else []

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return await self.take_expired(ABANDONED_AT_ONCE)

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        """Every shard has the lease, because members may be in any shard. The number of the renewal changes if the lease
        expired in a shard, or if the server of a shard restarted or was replaced: it may have lost sessions and members."""
        home, *others = self._store.shards
        mine = (self._node, _milliseconds(ttl))
        answers = await asyncio.gather(
            home.ask("leases", lease_keys(home), "renew", *mine, *received),
            *(shard.ask("leases", lease_keys(shard), "renew", *mine) for shard in others),
        )
        self._learn_time(answers[0][2])
        taken = tuple(map(_decode_taken, answers[0][3:]))
        runs = crc32(b" ".join(answer[1] for answer in answers))
        return Renewal(sum(answer[0] for answer in answers) << 32 | runs, taken)

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        if not self._ahead:
            self._learn_time(await self._ask("time"))
        snapshots = [_encode(write.snapshot) for write in sessions]
        described = [self._describe(*pair) for pair in zip(sessions, snapshots, strict=True)]
        answers = await self._ask("write", self._node, encode(described), *snapshots)
        pairs = zip(sessions, answers, strict=True)
        return [session_taken(write.sid, reason) for write, reason in pairs if reason != WRITTEN]

    def _learn_time(self, store_time: int) -> None:
        self._ahead.append(store_time - _milliseconds(self._clock()))

    def _describe(self, write: SessionWrite, snapshot: bytes) -> tuple[str, str, int, int, int, int]:
        """`began` is converted to the store's clock; the fastest answer gives the best offset. An age instead of a time would
        be wrong for a delayed write, and could restore a session that was revoked meanwhile."""
        began = -1 if write.began is None else _milliseconds(write.began) + max(self._ahead)
        ttl = _milliseconds(write.ttl)
        if len(snapshot) > self._max_size and ttl:
            logger.warning("a session is too large to be resumed", extra={"bytes": len(snapshot)})
            ttl = 0
        return write.sid, write.snapshot.ids, write.version, ttl, int(write.live), began

    async def _ask(self, what: str, *arguments: Any) -> Any:
        home = self._store.home
        return await home.ask("sessions", session_keys(home), what, *arguments)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _snapshot(data: bytes | None) -> SessionSnapshot | None:
    return None if data is None else _decode(data)


def _sessions(parts: Sequence[bytes]) -> Iterator[tuple[str, SessionSnapshot]]:
    for sid, data in zip(parts[::2], parts[1::2], strict=True):
        yield sid.decode(), _decode(data)


def _decode_taken(order: bytes) -> SessionTaken:
    sid, _, reason = order.decode().rpartition("\0")
    return session_taken(sid, int(reason))


def session_taken(sid: str, reason: int) -> SessionTaken:
    stored, reason = reason < UNKNOWN, reason % UNKNOWN
    return SessionTaken(sid, stored=stored) if reason == TAKEN else SessionTaken(sid, True, reason == REVOKED, stored)


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
        return await shard.ask("presence", [shard.key(name) for name in _MEMBER_KEYS], what, *arguments)

    async def _ask_all(self, what: str, *arguments: Any) -> list[Any]:
        """A sid may hold members in streams of any shard."""
        return await asyncio.gather(*(self._ask(shard, what, *arguments) for shard in self._store.shards))


def _events(parts: Sequence[bytes]) -> list[PresenceEvent]:
    kinds, streams, ids, infos = parts[::4], parts[1::4], parts[2::4], parts[3::4]
    return [
        PresenceEvent("join" if kind == b"join" else "leave", stream.decode(), Member(member_id.decode(), info))
        for kind, stream, member_id, info in zip(kinds, streams, ids, infos, strict=True)
    ]
