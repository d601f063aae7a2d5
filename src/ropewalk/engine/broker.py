"""The broker: registers each publication once and fans it out, in one step, so that N+1 never overtakes N."""

import asyncio
from collections.abc import Sequence

from ropewalk.core.stats import Stats
from ropewalk.model.messages import Publication, Receipt, Registered, RemoteDisconnect, transient
from ropewalk.ports import Clock, PubSub, StreamStore


class Broker:
    """The `Publisher` port over a store and a pubsub."""

    def __init__(self, store: StreamStore, pubsub: PubSub, stats: Stats, clock: Clock) -> None:
        self._store = store
        self._pubsub = pubsub
        self._stats = stats
        self._clock = clock
        self._order = asyncio.Lock()  # never contended where neither store nor pubsub suspends

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        async with self._order:
            lasting = [publication for publication in publications if not publication.transient]
            appended = iter(await self._store.append(lasting) if lasting else ())
            receipts: list[Receipt] = []
            fresh: list[Registered] = []
            for publication in publications:
                if publication.transient:
                    message, new = transient(publication, self._clock()), True
                else:
                    message, new = next(appended)
                if new:
                    fresh.append(message)
                receipts.append(Receipt(message.stream, message.epoch, message.offset, not new))
            self._stats.publications += len(fresh)
            self._stats.publications_duplicate += len(receipts) - len(fresh)
            if fresh:
                await self._pubsub.publish(fresh)
            return receipts

    async def disconnect(self, order: RemoteDisconnect) -> int:
        ended = await self._pubsub.command(order)
        self._stats.remote_disconnects += ended
        return ended
