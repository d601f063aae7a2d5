"""Redis backends of nodes on a Redis server that tests kill, restart, and give back older files."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from redis.asyncio import Redis

from ropewalk.adapters.backends.redis import RedisBackend, RedisOptions
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication, Receipt
from ropewalk.model.rules import StreamRules
from ropewalk.ports import Clock, NodeName
from tests.services import RedisServer

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
RULES = Rulebook(StreamRules(history_limit=1000, history_ttl=300.0))
WITHIN = 60.0
LEASE = 6.0
PRESENCE = 2.0
TTL = 10.0

Answer = TypeVar("Answer")


@asynccontextmanager
async def running(
    redis: RedisServer, node: str = "one", restart_epochs: bool = False, clock: Clock | None = None
) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(
        RULES,
        RedisAddress(redis.url),
        NodeName(node, node),
        StoreLimits(presence_ttl=PRESENCE),
        RedisOptions(restart_epochs=restart_epochs),
        clock,
    )
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


async def persist(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call until Redis answers, as callers of the backend do."""
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                return await ask()
            except Unavailable:
                await asyncio.sleep(0.05)


async def register(backend: RedisBackend, first: int, last: int, stream: str = "s") -> list[Receipt]:
    batch = [Publication(stream, b"%d" % number, uid=f"u{number}") for number in range(first, last + 1)]
    return await persist(lambda: backend.streams.append(batch))


def position(receipt: Receipt) -> Position:
    return Position(receipt.epoch, receipt.offset)


async def written(redis: RedisServer) -> None:
    """Wait until the append-only file has every write. With `everysec` Redis may answer before it writes."""
    async with Redis.from_url(redis.url) as client:
        await client.config_set("appendfsync", "always")
        await client.set("written", 1)
        await client.config_set("appendfsync", "everysec")


class OlderFiles:
    """The files of Redis at one moment, to be restored later."""

    def __init__(self, redis: RedisServer, place: Path) -> None:
        self._redis = redis
        self._place = place

    async def save(self) -> None:
        await written(self._redis)
        _copy(self._redis.home, self._place)

    def restore(self) -> None:
        """Redis crashes, and starts with these files."""
        self._redis.kill()
        for path in _files(self._redis.home):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        _copy(self._place, self._redis.home)
        self._redis.start()


def _files(home: Path) -> list[Path]:
    return [path for path in home.iterdir() if path.name.startswith("appendonly")]


def _copy(source: Path, target: Path) -> None:
    for path in _files(source):
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copy(path, target / path.name)
