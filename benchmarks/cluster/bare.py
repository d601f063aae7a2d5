"""Bare clients: the same task with only the engine's client library."""

import asyncio
import contextlib
from collections import deque
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RePublish, StreamConfig
from redis.asyncio import Redis

from benchmarks.cluster.sides import Heard
from ropewalk.model.rules import StreamRules

KEPT = StreamRules().history_limit
AT_ONCE = 16
"""Calls of redis-py under way: with a connection for each of the publishers, or a pool that blocks, it is slower."""


class BareMemory:
    """A deque in this process, and a call."""

    def __init__(self) -> None:
        self._logs: dict[str, deque[bytes]] = {}
        self._heard: Heard | None = None

    async def publish(self, stream: str, payload: bytes, uid: str = "") -> None:
        log = self._logs.get(stream)
        if log is None:
            log = self._logs[stream] = deque(maxlen=KEPT)
        log.append(payload)
        if self._heard is not None:
            self._heard(payload)

    send = publish

    async def listen(self, stream: str, heard: Heard) -> None:
        self._heard = heard

    async def close(self) -> None:
        pass


class BareRedis:
    """XADD and PUBLISH in one round trip, which know nothing of uids; a round trip to a subscriber is PUBLISH alone."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._pubsub = Redis.from_url(url).pubsub()
        self._listening: asyncio.Task[None] | None = None

    async def publish(self, stream: str, payload: bytes, uid: str = "") -> None:
        both = self._client.pipeline(transaction=False)
        both.xadd(stream, {"data": payload}, maxlen=KEPT)
        both.publish(stream, payload)
        async with self._room:
            await both.execute()

    async def send(self, stream: str, payload: bytes) -> None:
        await self._client.publish(stream, payload)

    async def listen(self, stream: str, heard: Heard) -> None:
        ready = asyncio.get_running_loop().create_future()
        await self._pubsub.subscribe(stream)
        self._listening = asyncio.create_task(self._listen(heard, ready))
        await ready

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]
        await self._client.aclose()

    async def _listen(self, heard: Heard, ready: "asyncio.Future[None]") -> None:
        async for message in self._pubsub.listen():
            if message["type"] == "subscribe":
                ready.set_result(None)
            else:
                heard(message["data"])


class BareNats:
    """`js.publish` into one JetStream stream with one replica, whose messages NATS itself passes on to core subscribers."""

    def __init__(self, publisher: Client, subscriber: Client) -> None:
        self._publisher, self._subscriber = publisher, subscriber
        self._jetstream = publisher.jetstream()

    @classmethod
    async def open(cls, url: str) -> "BareNats":
        made = cls(await nats.connect(url), await nats.connect(url))
        await made._jetstream.add_stream(
            StreamConfig(
                name="BARE",
                subjects=["bare.in.>"],
                max_msgs_per_subject=KEPT,
                num_replicas=1,
                republish=RePublish(src="bare.in.>", dest="bare.out.>"),
            )
        )
        return made

    async def publish(self, stream: str, payload: bytes, uid: str = "") -> None:
        await self._jetstream.publish(f"bare.in.{stream}", payload, headers={"Nats-Msg-Id": uid} if uid else None)

    send = publish

    async def listen(self, stream: str, heard: Heard) -> None:
        async def receive(message: Msg) -> None:
            heard(message.data)

        callback: Any = receive
        await self._subscriber.subscribe(f"bare.out.{stream}", cb=callback)
        for _ in range(2):  # the first ping may overtake the subscription
            await self._subscriber.flush()

    async def close(self) -> None:
        await self._publisher.close()
        await self._subscriber.close()
