"""Streams of a ring: each is registered and read at the node that holds its shard.

Invariant: publications of one stream are registered together or not at all. A batch over the shards of several nodes is checked
at all of them first; where one of them fails nevertheless the batch counts as unanswered, and may be repeated.
"""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from ropewalk.adapters.backends.ring.links import NodeCalls
from ropewalk.adapters.backends.ring.router import HolderCaller, grouped
from ropewalk.core.ring import parse_partition
from ropewalk.model.errors import PartitionChanged, Unanswered, Unavailable
from ropewalk.model.history import StreamSummary
from ropewalk.model.messages import Publication, Receipt
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.ports import PresenceStore, StreamStore


class RingPresence(PresenceStore):
    """Each set is kept by the node that holds its stream's shard.

    Invariant: nodes that are unreachable when a sid leaves or is replaced receive the call later.
    """

    def __init__(self, caller: HolderCaller) -> None:
        self._caller = caller
        self._router = caller.router
        self._unsent_calls = caller.unsent_calls

    async def detach(self, sid: str, ttl: float) -> None:
        _, silent = await self._router.call_all("detach", sid, ttl)
        for node in silent:
            self._unsent_calls.add(node, ("presence", sid), "detach", sid, ttl)

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        answers, silent = await self._router.call_all("adopt", old_sid, new_sid)
        for node in silent:
            self._unsent_calls.add(node, ("presence", new_sid), "adopt", old_sid, new_sid)
        return {stream: member for held in answers.values() for stream, member in held.items()}

    async def expire(self) -> list[PresenceEvent]:
        answers = await self._router.ask_all("expire")
        return [event for events in answers.values() for event in events]


class RingStreams(StreamStore):
    confirms_transient = True
    resolves_unanswered = True
    """An append is unanswered only if a node dies or a link ends. Its outcome cannot be determined then."""

    instant = False

    def __init__(self, caller: HolderCaller) -> None:
        self._caller = caller
        self._router = caller.router
        self.derive_partition = parse_partition

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        publications = [_placed(publication) for publication in publications]
        first = publications[0].stream
        holder = self._router.holder(first)
        if len(publications) == 1 or self._are_all_at(holder, publications):
            receipts: list[Receipt] = await self._router.call_at(holder, first, "append", publications)
            self._router.went_to(holder, len(receipts))
            return receipts
        return await self._router.until_done(lambda: self._append_to_many(publications))

    def _are_all_at(self, node: str, publications: Sequence[Publication]) -> bool:
        holder = self._router.holder
        return all(holder(publication.stream) == node for publication in publications)

    async def _append_to_many(self, publications: Sequence[Publication]) -> list[Receipt]:
        places = grouped(publications, lambda publication: self._router.holder_calls(publication.stream))
        await self._check_partition_keys(publications)
        batches = {node: [publications[place] for place in some] for node, some in places.items()}
        answers = await asyncio.gather(*(node.call("append", batch) for node, batch in batches.items()), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            some_done = len(failures) < len(answers) and isinstance(failures[0], Unavailable)
            raise Unanswered(f"a part of the batch is not registered: {failures[0]}") if some_done else failures[0]
        receipts: dict[int, Receipt] = {}
        for some, answer in zip(places.values(), answers, strict=True):
            assert not isinstance(answer, BaseException)
            receipts.update(zip(some, answer, strict=True))
            self._router.went_to(self._router.holder(publications[some[0]].stream), len(some))
        return [receipts[place] for place in range(len(publications))]

    async def _check_partition_keys(self, publications: Sequence[Publication]) -> None:
        """So that none of them is registered where one of them is refused."""
        kept: dict[str, str] = {}
        for publication in publications:
            stream, named = publication.stream, publication.partition_key
            if not named or publication.transient:
                continue
            if stream not in kept:
                known = (await self.tip(stream)).offset > 0
                kept[stream] = await self.partition_key(stream) if known else named
            if named != kept[stream]:
                raise PartitionChanged(stream, named, kept[stream])

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        """Raises `Unavailable` where a node is not reached: a list that lacks its streams looks like a whole one."""
        nodes: list[NodeCalls] = []
        for shard in range(self._router.state.table.shards):
            holder = self._router.nodes.get(self._router.state.holder(shard))
            if holder is None or not holder.connected:
                raise Unavailable("not all nodes of the ring are reached")
            if holder not in nodes:
                nodes.append(holder)
        answers = await asyncio.gather(*(node.call("summaries", after, limit) for node in nodes))
        found: dict[str, StreamSummary] = {summary.stream: summary for answer in answers for summary in answer}
        return [found[name] for name in sorted(found)[:limit]]


def _placed(publication: Publication) -> Publication:
    """With the partition key that its stream has by its name, so that a journal has it in the shard of the ring."""
    if "{" not in publication.stream or publication.partition_key:
        return publication
    return replace(publication, partition_key=parse_partition(publication.stream))
