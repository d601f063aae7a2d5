"""The broker registers each publication once. Registered messages arrive through the feed, like those of other nodes.

Invariant: an unanswered append is retried only if the store would recognise it; otherwise `Unanswered` is raised. A store that
resolves unanswered appends itself is not retried. After `close` no publication is counted.

Streams whose rules keep no history are ephemeral if nothing else records messages either: all publications to them are
transient. Otherwise every such stream would take memory for positions that no client can request.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Container, Sequence

from msgspec.structs import replace

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.credentials import spellings
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.model.errors import PartitionNotInName, Unanswered, Unavailable
from ropewalk.model.messages import Publication, Receipt, Registered, RemoteDisconnect, TransientRun, build_transient
from ropewalk.model.report import SHUTTING_DOWN
from ropewalk.ports import Clock, DerivedPartitions, Feed, StreamStore


class LocalPublisher:
    """Implements `ports.Publisher` for publications that every node receives: delivers them to the sessions of this node,
    without a position. They are not registered: otherwise each client would receive a message once per node.

    Args:
        disconnect: ends the sessions of an identity on this node.
    """

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


ATTEMPTS = 5
BETWEEN_ATTEMPTS = Backoff(0.05, 1.0)


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


EVERYTHING = _Everything()


class Broker:
    """The `RunPublisher` port over a store and its feed.

    `listened_streams`: the streams with a listener, or all streams if other nodes may have listeners.

    Args:
        ephemeral_rules: streams without history in these rules are ephemeral; None if no stream is.
    """

    def __init__(
        self,
        store: StreamStore,
        feed: Feed,
        stats: Stats,
        clock: Clock,
        chance: Chance,
        ephemeral_rules: Rulebook | None = None,
    ) -> None:
        self._ephemeral_rules = ephemeral_rules
        self._derive_partition = store.derive_partition if isinstance(store, DerivedPartitions) else None
        self.listened_streams: Container[str] = EVERYTHING
        self._store = store
        self._feed = feed
        self._stats = stats
        self._clock = clock
        self._chance = chance
        self._pending = 0
        self._closed = False
        self._idle = asyncio.Event()

    @property
    def instant(self) -> bool:
        """Whether `publish` never suspends, so that it needs no task."""
        return self._store.instant and self._feed.exact

    def set_listened_streams(self, streams: Container[str]) -> None:
        """Called with the first prefix subscription and after the last one, not for each stream."""
        self.listened_streams = streams

    def is_ephemeral(self, stream: str) -> bool:
        return self._ephemeral_rules is not None and not self._ephemeral_rules.keeps_history(stream)

    @property
    def derives_partitions(self) -> bool:
        return self._derive_partition is not None

    def check_partition(self, stream: str, named: str) -> None:
        if named and self._derive_partition is not None and named != (kept := self._derive_partition(stream)):
            raise PartitionNotInName(stream, named, kept)

    async def close(self, seconds: float) -> None:
        """Reject new publications as `Unavailable` and wait until the pending ones are counted, at most `seconds`."""
        self._closed = True
        if self._pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        self._require_open()
        self._pending += 1
        try:
            return await self._publish(publications)
        finally:
            self._pending -= 1
            if self._closed and not self._pending:
                self._idle.set()

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable(SHUTTING_DOWN)

    async def _publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self._derive_partition is not None:
            for publication in publications:
                self.check_partition(publication.stream, publication.partition_key)
        if self._ephemeral_rules is not None and not self._ephemeral_rules.keeps_all:
            publications = [self._apply_rules(publication) for publication in publications]
        for publication in publications:
            if not publication.transient:
                receipts = await self._append(publications)
                break
        else:
            receipts = (
                await self._append(publications) if self._store.confirms_transient else self._publish_transient(publications)
            )
        duplicates = 0
        for receipt in receipts:
            if receipt.duplicate:
                duplicates += 1
        self._stats.publications += len(receipts) - duplicates
        self._stats.publications_duplicate += duplicates
        return receipts

    def _apply_rules(self, publication: Publication) -> Publication:
        if publication.transient or not self.is_ephemeral(publication.stream):
            return publication
        return replace(publication, transient=True)

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> Awaitable[None] | None:
        self._require_open()
        waits = self._feed.publish_runs(runs, confirm)
        for run in runs:
            self._stats.publications += run.count
        return waits

    def whisper(self, publication: Publication) -> None:
        """Publish a whisper, without waiting for its delivery."""
        self._publish_transient([publication])
        self._stats.publications += 1

    def _publish_transient(self, publications: Sequence[Publication]) -> list[Receipt]:
        now = self._clock()
        self._feed.publish([build_transient(publication, now) for publication in publications])
        return [Receipt(publication.stream, "", 0) for publication in publications]

    async def _append(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self._feed.exact:  # a store of this process never leaves anything unanswered
            return await self._store.append(publications)
        if self._store.resolves_unanswered and _is_one_stream(publications):  # a uid would have no use
            return await self._store.append(publications)
        recognisable = [each if each.uid or each.producer else _with_uid(each) for each in publications]
        for attempt in range(ATTEMPTS - 1):
            try:
                receipts = await self._store.append(recognisable)
                return receipts if attempt == 0 else _clear_duplicates(publications, receipts)
            except Unanswered:
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(attempt, self._chance))
        return _clear_duplicates(publications, await self._store.append(recognisable))

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """End the sessions of an identity. Its JSON may have other spaces in the token than in the request, so all spellings
        are tried."""
        ended = 0
        for identifier in spellings(request.identifier):
            ended += await self._feed.disconnect(replace(request, identifier=identifier))
        self._stats.remote_disconnects += ended
        return ended


def _is_one_stream(publications: Sequence[Publication]) -> bool:
    stream = publications[0].stream
    return len(publications) == 1 or all(publication.stream == stream for publication in publications)


def _with_uid(publication: Publication) -> Publication:
    """Add a uid, so that retries of the append register it once."""
    return publication if publication.transient else replace(publication, uid=secrets.token_urlsafe(16))


def _clear_duplicates(publications: Sequence[Publication], receipts: Sequence[Receipt]) -> list[Receipt]:
    """Clear `duplicate` for uids of the broker: only its own earlier attempt can have registered them."""
    pairs = zip(publications, receipts, strict=True)
    return [receipt if each.uid or each.producer else replace(receipt, duplicate=False) for each, receipt in pairs]
