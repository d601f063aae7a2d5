"""The broker: registers each publication once and fans it out, in one step, so that N+1 never overtakes N."""

from collections.abc import Sequence

from msgspec.structs import replace

from ropewalk.core.identities import spellings
from ropewalk.core.stats import Stats
from ropewalk.model.messages import Publication, Receipt, Registered, RemoteDisconnect, transient
from ropewalk.ports import Appended, Clock, PubSub, StreamStore


class Broker:
    """The `Publisher` port over a store and a pubsub."""

    def __init__(self, store: StreamStore, pubsub: PubSub, stats: Stats, clock: Clock) -> None:
        self._store = store
        self._pubsub = pubsub
        self._stats = stats
        self._clock = clock

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        lasting = [publication for publication in publications if not publication.transient]
        receipts: list[Receipt] = []

        def fan_out(appended: Appended) -> None:
            known = iter(appended)
            pairs = [self._transient(each) if each.transient else next(known) for each in publications]
            receipts.extend(Receipt(message.stream, message.epoch, message.offset, not new) for message, new in pairs)
            self._hand_on([message for message, new in pairs if new])

        if lasting:
            await self._store.append(lasting, fan_out)
        else:
            fan_out([])
        self._stats.publications_duplicate += sum(receipt.duplicate for receipt in receipts)
        return receipts

    def _transient(self, publication: Publication) -> tuple[Registered, bool]:
        return transient(publication, self._clock()), True

    def _hand_on(self, fresh: Sequence[Registered]) -> None:
        self._stats.publications += len(fresh)
        if fresh:
            self._pubsub.publish(fresh)

    async def disconnect(self, order: RemoteDisconnect) -> int:
        """An identity is text that is written twice, in the token and in the order, and not always with the same spaces."""
        ended = 0
        for identifier in spellings(order.identifier):
            ended += await self._pubsub.command(replace(order, identifier=identifier))
        self._stats.remote_disconnects += ended
        return ended
