"""The broker registers each publication once. What it registers comes back through the feed, like publications of other nodes.

Invariant: an unanswered append is retried only if the store would recognise it; otherwise the caller is told that it is
unanswered. A store that resolves what was unanswered by itself is not asked again.
"""

import asyncio
import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.identities import spellings
from ropewalk.core.stats import Stats
from ropewalk.model.errors import Unanswered
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect, transient
from ropewalk.ports import Clock, Feed, StreamStore

ATTEMPTS = 5
BETWEEN_ATTEMPTS = Backoff(0.05, 1.0)


class Broker:
    """The `Publisher` port over a store and its feed."""

    def __init__(self, store: StreamStore, feed: Feed, stats: Stats, clock: Clock, chance: Chance) -> None:
        self._store = store
        self._feed = feed
        self._stats = stats
        self._clock = clock
        self._chance = chance

    @property
    def instant(self) -> bool:
        """`publish` never suspends: run to its end in one step, it needs no task."""
        return self._store.instant and self._feed.exact

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        for publication in publications:
            if not publication.transient:
                receipts = await self._append(publications)
                break
        else:
            receipts = self._pass_on(publications)
        duplicates = 0
        for receipt in receipts:
            if receipt.duplicate:
                duplicates += 1
        self._stats.publications += len(receipts) - duplicates
        self._stats.publications_duplicate += duplicates
        return receipts

    def _pass_on(self, publications: Sequence[Publication]) -> list[Receipt]:
        now = self._clock()
        self._feed.publish([transient(publication, now) for publication in publications])
        return [Receipt(publication.stream, "", 0) for publication in publications]

    async def _append(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self._feed.exact:  # a store of this process never leaves anything unanswered
            return await self._store.append(publications)
        if self._store.resolves_unanswered and _of_one_stream(publications):  # a uid would cost something and serve nobody
            return await self._store.append(publications)
        recognisable = [each if each.uid or each.producer else _named(each) for each in publications]
        for attempt in range(ATTEMPTS - 1):
            try:
                return await self._store.append(recognisable)
            except Unanswered:
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(attempt, self._chance))
        return await self._store.append(recognisable)

    async def disconnect(self, order: RemoteDisconnect) -> int:
        """An identity is text that is written twice, in the token and in the order, and not always with the same spaces."""
        ended = 0
        for identifier in spellings(order.identifier):
            ended += await self._feed.command(replace(order, identifier=identifier))
        self._stats.remote_disconnects += ended
        return ended


def _of_one_stream(publications: Sequence[Publication]) -> bool:
    stream = publications[0].stream
    return len(publications) == 1 or all(publication.stream == stream for publication in publications)


def _named(publication: Publication) -> Publication:
    """Under a uid of ours, so that it is registered once however often it is sent to the store."""
    return publication if publication.transient else replace(publication, uid=secrets.token_urlsafe(16))
