"""Sessions of a ring: each is kept by the node that holds the shard of its sid.

Invariant: of several nodes that want a session one gets it, because one store gives it out. A session that goes on under
another sid stays where it was until it is written for the first time; then it passes to the store where its new sid belongs.
Until then, if the store of a sid does not know it, all other stores are asked.

Calls do not wait for an unreachable node: it receives them when it reconnects.
"""

import asyncio
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ropewalk.adapters.backends.ring.links import ActiveDisconnects, NodeCalls, OwnStore
from ropewalk.adapters.backends.ring.router import HolderCaller, gathered
from ropewalk.adapters.backends.workers.backend import ENDED_AT_ONCE
from ropewalk.model.errors import Moved, Unavailable
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Clock

RENEW_SECONDS = 1.5
"""For how long the renewals of leases wait for the slowest node."""

MAX_PASSING = 10_000
"""Sessions that were taken and not written yet. Of some nothing is ever written: their clients were gone again."""

_Ended = list[tuple[str, SessionSnapshot]]


class _Passing:
    """A session that was taken and is still in the store of `node`, where its former sid belongs."""

    __slots__ = ("began", "node")

    def __init__(self, node: str, began: float) -> None:
        self.node = node
        self.began = began


class RingSessions:
    """Implements `ports.SessionStore` and `ports.Leases`. `own` is the store of this node."""

    same_host = True

    def __init__(self, caller: HolderCaller, clock: Clock, own: OwnStore, active: ActiveDisconnects) -> None:
        self._router = caller.router
        self._me = caller.router.state.me
        self._unsent_calls = caller.unsent_calls
        self._clock = clock
        self._own = own
        self._active_disconnects = active
        self._passing: dict[str, _Passing] = {}
        self._leases: dict[str, int] = {}  # by node
        self._lease = 1

    # --- where it is --------------------------------------------------------------------------------------------------

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        await self._router.call(sid, "save", sid, snapshot, ttl)

    async def peek(self, sid: str) -> SessionSnapshot | None:
        return (await self._find(sid, "peek"))[1]

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        node, snapshot = await self._find(sid, "take", successor)
        if snapshot is not None and successor and node != self._router.holder(successor):
            self._passing[successor] = _Passing(node, self._clock())
            if len(self._passing) > MAX_PASSING:
                del self._passing[next(iter(self._passing))]
        return snapshot

    async def _find(self, sid: str, method: str, *arguments: object) -> tuple[str, SessionSnapshot | None]:
        """First where it belongs, then everywhere. Raises `Unavailable` where it belongs to a node that is not reached."""

        async def at_home() -> tuple[str, SessionSnapshot | None]:
            node = self._router.holder(sid)
            return node, await self._router.holder_calls(sid).call(method, sid, *arguments)

        node, snapshot = await self._router.until_done(at_home)
        if snapshot is not None:
            return node, snapshot
        others = {name: calls for name, calls in self._router.reached().items() if name != node}
        answers = await gathered({name: calls.call(method, sid, *arguments) for name, calls in others.items()})
        return next(((name, found) for name, found in answers.items() if found is not None), ("", None))

    # --- those that end -----------------------------------------------------------------------------------------------

    async def revoke(self, ids: str, reconnect: bool) -> _Ended:
        answers = await self._router.ask_all("revoke_own" if ids in self._active_disconnects else "revoke", ids, reconnect)
        return [each for ended in answers.values() for each in ended]

    async def take_expired(self, limit: int) -> _Ended:
        """Of this node first: those of others mostly see to their own."""
        ended: _Ended = await self._own.call("take_expired", limit)
        for node, calls in self._router.reached().items():
            if node != self._me and limit > len(ended):
                answers = await gathered({node: calls.call("take_expired", limit - len(ended))})
                ended += answers.get(node, [])
        return ended

    async def take_abandoned(self) -> _Ended:
        """Other nodes handle the ended sessions in their stores."""
        ended: _Ended = []
        while some := await self._own.call("abandoned", ENDED_AT_ONCE, self._own.server_ends):
            ended += some
        return ended

    # --- leases -------------------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """What this node has written may be lost: the next renewal has another number."""
        self._lease += 1

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        answers: dict[str, Renewal] = await self._router.ask_all("renew", ttl, list(received), timeout=RENEW_SECONDS)
        for node, renewal in answers.items():
            if self._leases.get(node, renewal.lease) != renewal.lease:
                self._lease += 1
            self._leases[node] = renewal.lease
        taken = {order.sid: order for renewal in answers.values() for order in renewal.taken}
        return Renewal(self._lease, tuple(taken.values()))

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        passing = [write for write in sessions if write.sid in self._passing]
        taken = [order for write in passing for order in await self._write_passing(write)]
        settled = [write for write in sessions if write.sid not in self._passing and write not in passing]
        return taken + await self._write_home(settled)

    async def _write_home(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        by_node: dict[str, list[SessionWrite]] = {}
        for write in sessions:
            by_node.setdefault(self._router.holder(write.sid), []).append(write)
        answers = await asyncio.gather(*(self._write_at(node, some) for node, some in by_node.items()))
        return [order for taken in answers for order in taken]

    async def _write_at(self, node: str, sessions: list[SessionWrite]) -> list[SessionTaken]:
        """An unreachable node receives the call later."""
        calls = self._router.nodes.get(node)
        try:
            if calls is not None and calls.connected:
                for write in sessions:
                    self._unsent_calls.discard(node, ("write", write.sid))
                taken: list[SessionTaken] = await calls.call("write", sessions)
                return taken
        except Moved:
            return await self._router.until_done(lambda: self._write_moved(sessions))
        except Unavailable:
            if calls is not None and calls.connected:
                raise  # the caller writes it again
        for write in sessions:
            self._unsent_calls.add(node, ("write", write.sid), "write", [write])
        return []

    async def _write_moved(self, sessions: list[SessionWrite]) -> list[SessionTaken]:
        """One by one: they may have gone to several nodes. To write one twice does no harm."""
        taken: list[SessionTaken] = []
        for write in sessions:
            taken += await self._router.holder_calls(write.sid).call("write", [write])
        return taken

    async def _write_passing(self, write: SessionWrite) -> list[SessionTaken]:
        passing = self._passing[write.sid]
        source = self._router.nodes.get(passing.node)
        if source is not None and source.connected:
            taken: list[SessionTaken] = await source.call("write_passing", [write])
            if taken or not write.live:
                del self._passing[write.sid]
                return taken
        if self._reach(write.sid) is None:
            return []  # it stays where it is until its next write
        del self._passing[write.sid]
        taken = await self._write_home([replace(write, began=passing.began if write.began is None else write.began)])
        await self._forget_at(passing.node, write.sid)
        return taken

    def _reach(self, sid: str) -> NodeCalls | None:
        calls = self._router.nodes.get(self._router.holder(sid))
        return calls if calls is not None and calls.connected else None

    async def _forget_at(self, node: str, sid: str) -> None:
        calls = self._router.nodes.get(node)
        try:
            if calls is not None and calls.connected:
                await calls.call("forget", [sid])
                return
        except Unavailable:
            pass
        self._unsent_calls.add(node, ("forget", sid), "forget", [sid])
