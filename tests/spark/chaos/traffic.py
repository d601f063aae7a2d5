"""Those who use the server meanwhile: publishers that note every receipt, and subscribers that check every message."""

import asyncio
import itertools
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Any, Self

from ropewalk.client import Backoff, Client, Draft, Message, Publisher, Stream, connect
from ropewalk.model.messages import Position

QUICK = Backoff(first=0.05, cap=0.5)
FOR_EVER = 1_000_000
DELIVERIES = ("transactional", "idempotent", "keyed")
INPUTS = tuple(f"in/{number}" for number in range(4))
OUTPUTS = tuple(f"out/{delivery}/{name.removeprefix('in/')}" for delivery in DELIVERIES for name in INPUTS)
ROADS = (INPUTS, *(tuple(name for name in OUTPUTS if f"/{delivery}/" in name) for delivery in DELIVERIES))
PUBLISHERS = 2
SUBSCRIBERS = 2
DRAFTS = 5  # of one request
PAUSE = 0.2  # seconds at most between two requests of a publisher


class Traffic:
    """`published` has the receipts by stream, epoch and offset; `newest` the last of them by stream; `seen`
    what each subscriber got, by stream, in order."""

    def __init__(self, url: str, chance: random.Random, subscribers: int = SUBSCRIBERS) -> None:
        self.published: dict[tuple[str, str, int], int] = {}
        self.newest: dict[str, Position] = {}
        self.seen: list[dict[str, list[Message]]] = [defaultdict(list) for _ in range(subscribers)]
        self._url = url
        self._chance = chance
        self._numbers = itertools.count()
        self._enough = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        clients = [await self._stack.enter_async_context(connect(self._url, backoff=QUICK)) for _ in self.seen]
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._publishers = [group.create_task(self._publish()) for _ in range(PUBLISHERS)]
        self._readers = [
            group.create_task(self._read(await self._follow(client, name), seen[name]))
            for client, seen in zip(clients, self.seen, strict=True)
            for name in (*INPUTS, *OUTPUTS)
        ]
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._enough.set()
        for reader in self._readers:
            reader.cancel()
        await self._stack.__aexit__(*exc_info)

    async def stop_publishing(self) -> None:
        self._enough.set()
        await asyncio.gather(*self._publishers)

    def calm(self) -> bool:
        """Whether all subscribers have got the same, and as many messages through each sink as were published."""
        counts = [{name: len(seen[name]) for name in (*INPUTS, *OUTPUTS)} for seen in self.seen]
        whole = all(sum(counts[0][name] for name in names) >= len(self.published) for names in ROADS)
        return whole and all(count == counts[0] for count in counts)

    async def _follow(self, client: Client, name: str) -> Stream:
        return await client.subscribe(name, position=Position("", 0))

    async def _publish(self) -> None:
        async with Publisher(self._url, attempts=FOR_EVER, backoff=QUICK) as publisher:
            while not self._enough.is_set():
                drafts = [Draft(self._chance.choice(INPUTS), next(self._numbers)) for _ in range(DRAFTS)]
                for draft, receipt in zip(drafts, await publisher.publish_batch(drafts), strict=True):
                    position = (receipt.stream, receipt.epoch, receipt.offset)
                    assert position not in self.published, f"{position} was given twice"
                    self.published[position] = draft.data
                    known = self.newest.get(receipt.stream)
                    self.newest[receipt.stream] = Position(receipt.epoch, max(receipt.offset, known.offset if known else 0))
                await asyncio.sleep(self._chance.random() * PAUSE)

    async def _read(self, stream: Stream, seen: list[Message]) -> None:
        async for event in stream:
            assert isinstance(event, Message), event
            assert event.offset == len(seen) + 1, f"{event} after {seen[-1:]}"
            assert event.epoch == (seen[0].epoch if seen else event.epoch), f"{event} after {seen[-1:]}"
            seen.append(event)
