"""Delivers publications that every node hears of by itself: to the sessions of this node only, without a position.

Invariant: nothing of them is registered. With each node registering what all of them hear, every message would come once for
each node.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from ropewalk.core.identities import spellings
from ropewalk.core.stats import Stats
from ropewalk.model.messages import Publication, Receipt, Registered, RemoteDisconnect, build_transient
from ropewalk.ports import Clock


class LocalPublisher:
    """The `Publisher` port without a store. `disconnect` ends the sessions of an identity on this node."""

    def __init__(
        self,
        deliver: Callable[[Sequence[Registered]], None],
        disconnect: Callable[[RemoteDisconnect], Awaitable[int]],
        stats: Stats,
        clock: Clock,
    ) -> None:
        self._deliver = deliver
        self._disconnect = disconnect
        self._stats = stats
        self._clock = clock

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        now = self._clock()
        self._deliver([build_transient(publication, now) for publication in publications])
        self._stats.publications += len(publications)
        return [Receipt(publication.stream, "", 0) for publication in publications]

    async def disconnect(self, request: RemoteDisconnect) -> int:
        ended = 0
        for identifier in spellings(request.identifier):
            ended += await self._disconnect(replace(request, identifier=identifier))
        self._stats.remote_disconnects += ended
        return ended
