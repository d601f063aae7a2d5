"""The two Python clients, over WebSocket ("cable") and over Broky ("tcp"), for scenarios that both fulfil alike."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ropewalk.client import Backoff, BrokyMessage, Client, Draft, Event, Message, Publisher, Pusher, Stream, connect
from ropewalk.core.signatures import API_PHRASE, derive
from tests.clients.credentials import SECRET
from tests.scenarios.relay import Relay
from tests.server import Address

SECONDS = 60
QUICK = Backoff(first=0.02, cap=0.2)
API_KEY = derive(SECRET, API_PHRASE)
BATCH = 500
PATIENT: dict[str, Any] = {"connect_timeout": SECONDS, "answer_timeout": SECONDS}


class Wire:
    """How one of the clients reaches a server, and how the messages for it are published."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def url(self, address: Address | Relay) -> str:
        return address.url.replace("http", self.scheme)

    def client(self, address: Address | Relay, token: str = "", **options: Any) -> AbstractAsyncContextManager[Client]:
        """It reconnects quickly, and gives the server of a busy machine time to answer."""
        return connect(self.url(address), token, backoff=QUICK, **(PATIENT | options))

    async def publish(self, address: Address | Relay, stream: str, count: int, size: int = 0) -> None:
        """Numbered messages, or zeros of this size, over the client's own protocol."""
        if self.scheme == "tcp":
            async with Pusher(self.url(address), backoff=QUICK, timeout=SECONDS) as pusher:
                for first in range(0, count, BATCH):
                    numbers = range(first, min(count, first + BATCH))
                    await pusher.push(stream, [bytes(size) or b"%d" % number for number in numbers])
        else:
            async with Publisher(self.url(address), backoff=QUICK) as publisher:
                for first in range(0, count, BATCH):
                    numbers = range(first, min(count, first + BATCH))
                    await publisher.publish_batch([Draft(stream, "0" * size or number) for number in numbers])


CABLE, TCP = Wire("http"), Wire("tcp")


@asynccontextmanager
async def pusher_to(address: Address | Relay, key: str | None = None) -> AsyncIterator[Pusher]:
    async with Pusher(TCP.url(address), key, backoff=QUICK, timeout=SECONDS) as pusher:
        yield pusher


async def take_event(stream: Stream) -> Event:
    return await asyncio.wait_for(anext(stream), SECONDS)


async def take(stream: Stream) -> Message:
    event = await take_event(stream)
    assert isinstance(event, Message), event
    return event


async def take_broky(stream: Stream) -> BrokyMessage:
    event = await take_event(stream)
    assert isinstance(event, BrokyMessage), event
    return event


async def take_offsets(stream: Stream, count: int) -> list[int]:
    return [(await take(stream)).offset for _ in range(count)]
