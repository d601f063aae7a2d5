"""The broadcaster redisx on a real Redis: outages of the store, restarts, and consumers that left."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from ropewalk.adapters.broadcasters import redis_streams
from ropewalk.adapters.broadcasters.redis_streams import ConsumerGroup, RedisStreamsBroadcaster
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.stats import Stats
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.protocol.publications import PublicationLimits
from tests.services import RedisServer, redis_server
from tests.waiting import until

pytestmark = pytest.mark.tier("standard")

KEY, GROUP = "intake", "bx"


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def at(store: RedisServer) -> Iterator[Any]:
    with redis.Redis(port=store.port) as client:
        client.flushall()
        yield client


class Ledger:
    """A publisher that records uids. While `down` is set, it is unavailable."""

    def __init__(self) -> None:
        self.down = asyncio.Event()
        self.asked = asyncio.Event()
        self.uids: list[str] = []
        self.largest = 0

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        self.asked.set()
        if self.down.is_set():
            raise Unavailable("the store is down")
        self.largest = max(self.largest, len(publications))
        self.uids += [publication.uid for publication in publications]
        return [Receipt(publication.stream, "e", 1) for publication in publications]

    async def disconnect(self, order: RemoteDisconnect) -> int:
        await self.publish([])
        self.uids.append(f"disconnect {order.identifier}")
        return 1


def broadcaster(store: RedisServer, ledger: Ledger, consumer: str = "me") -> RedisStreamsBroadcaster:
    address = RedisAddress(store.url)
    group = ConsumerGroup(KEY, GROUP, consumer, block=0.5)
    return RedisStreamsBroadcaster(ledger, PublicationLimits(), Stats(), address, group)


def payload(count: int = 1) -> str:
    one = {"stream": "s", "data": "1"}
    return json.dumps(one if count == 1 else [one] * count)


async def running(work: RedisStreamsBroadcaster, test: Callable[[], Awaitable[None]]) -> None:
    await work.start()
    try:
        await test()
    finally:
        await work.stop()


async def test_publications_have_a_uid_of_entry_and_index(store: RedisServer, at: Any) -> None:
    ledger = Ledger()
    single, batch = (at.xadd(KEY, {"payload": text}).decode() for text in (payload(), payload(2)))
    await running(broadcaster(store, ledger), lambda: until(lambda: at.xlen(KEY) == 0))

    assert ledger.uids == [f"x:{KEY}:{single}", f"x:{KEY}:{batch}:0", f"x:{KEY}:{batch}:1"]


async def test_entries_stay_pending_while_the_store_is_down_and_continue_in_order(store: RedisServer, at: Any) -> None:
    ledger = Ledger()
    ledger.down.set()
    order = {"command": "disconnect", "payload": {"identifier": "u"}}
    entries = [at.xadd(KEY, {"payload": text}).decode() for text in (payload(), json.dumps(order), payload())]
    work = broadcaster(store, ledger)

    async def test() -> None:
        await until(ledger.asked.is_set)
        assert at.xpending(KEY, GROUP)["pending"] == 3
        assert work.gauges() == {"redisx_unregistered_entries": 3}
        ledger.down.clear()
        await until(lambda: at.xlen(KEY) == 0)

    await running(work, test)

    assert ledger.uids == [f"x:{KEY}:{entries[0]}", "disconnect u", f"x:{KEY}:{entries[2]}"]
    assert work.gauges() == {"redisx_unregistered_entries": 0}


async def test_stopped_consumer_with_pending_entries_continues_with_them(store: RedisServer, at: Any) -> None:
    ledger = Ledger()
    ledger.down.set()
    entry = at.xadd(KEY, {"payload": payload()}).decode()
    await running(broadcaster(store, ledger), lambda: until(ledger.asked.is_set))

    assert [consumer["name"] for consumer in at.xinfo_consumers(KEY, GROUP)] == [b"me"]
    later = at.xadd(KEY, {"payload": payload()}).decode()
    ledger.down.clear()
    await running(broadcaster(store, ledger), lambda: until(lambda: at.xlen(KEY) == 0))
    assert ledger.uids == [f"x:{KEY}:{entry}", f"x:{KEY}:{later}"]
    assert at.xinfo_consumers(KEY, GROUP) == []


async def test_number_of_publications_registered_at_once_is_bounded(store: RedisServer, at: Any) -> None:
    ledger = Ledger()
    for _ in range(10):
        at.xadd(KEY, {"payload": payload(200)})
    await running(broadcaster(store, ledger), lambda: until(lambda: at.xlen(KEY) == 0))

    assert len(ledger.uids) == 2000
    assert ledger.largest <= redis_streams.MAX_RUN_PUBLICATIONS


async def test_bytes_registered_at_once_are_bounded(store: RedisServer, at: Any) -> None:
    ledger = Ledger()
    for _ in range(12):
        at.xadd(KEY, {"payload": json.dumps({"stream": "s", "data": "x" * 100_000})})
    await running(broadcaster(store, ledger), lambda: until(lambda: at.xlen(KEY) == 0))

    assert len(ledger.uids) == 12
    assert 1 < ledger.largest <= redis_streams.MAX_RUN_BYTES // 100_000


async def test_large_entries_are_read_in_smaller_batches(store: RedisServer, at: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_streams, "MAX_READ_BYTES", 20_000)
    ledger = Ledger()
    large = json.dumps({"stream": "s", "data": "x" * 10_000})
    work = broadcaster(store, ledger)

    async def test() -> None:
        at.xadd(KEY, {"payload": large})
        await until(lambda: len(ledger.uids) == 1)
        ledger.down.set()
        for _ in range(5):
            at.xadd(KEY, {"payload": large})
        ledger.asked.clear()
        await until(ledger.asked.is_set)
        assert at.xpending(KEY, GROUP)["pending"] <= 2
        ledger.down.clear()
        await until(lambda: at.xlen(KEY) == 0)

    await running(work, test)

    assert len(ledger.uids) == 6


async def test_idle_consumers_without_pending_entries_are_removed(
    store: RedisServer, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "MAX_IDLE_SECONDS", -1.0)
    at.xgroup_create(KEY, GROUP, "0", mkstream=True)
    at.xgroup_createconsumer(KEY, GROUP, "gone")
    at.xadd(KEY, {"payload": payload()})
    at.xreadgroup(GROUP, "busy", {KEY: ">"})

    def left() -> bool:
        return {consumer["name"] for consumer in at.xinfo_consumers(KEY, GROUP)} == {b"busy", b"me"}

    await running(broadcaster(store, Ledger()), lambda: until(left))
