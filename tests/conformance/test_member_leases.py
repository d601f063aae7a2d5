"""`ports.MemberLeases` on a real Redis, Redis Cluster and NATS: leases and the record of a ring."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from itertools import count

import nats
import pytest
from msgspec.structs import replace

from ropewalk.adapters.backends.nats.ring_leases import NatsMemberLeases
from ropewalk.adapters.backends.redis.ring_leases import RedisMemberLeases
from ropewalk.connections.nats import NatsAddress
from ropewalk.connections.redis import RedisAddress
from ropewalk.model.errors import Unavailable
from ropewalk.model.ring import MemberLease, RingRecord, SeenLeases
from ropewalk.ports import MemberLeases
from tests.services import NatsServer, RedisServer, nats_server, redis_cluster, redis_server

WAIT_SECONDS = 60.0
LASTING = 60.0
RECORD = RingRecord("R", 16, "a~1", {"a": False})
prefixes = (f"t{number}" for number in count(1))

pytestmark = pytest.mark.tier("standard")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


@pytest.fixture(scope="module")
def jetstream() -> Iterator[NatsServer]:
    with nats_server() as server:
        yield server


@pytest.fixture(params=["redis", pytest.param("redis cluster", marks=pytest.mark.tier("all")), "nats"])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[tuple[MemberLeases, MemberLeases]]:
    """Two nodes on one store."""
    prefix = next(prefixes)
    server = request.getfixturevalue({"redis cluster": "cluster", "nats": "jetstream"}.get(request.param, request.param))
    async with AsyncExitStack() as stack:
        yield tuple([await stack.enter_async_context(started(open_leases(server, prefix))) for _ in "ab"])  # type: ignore[misc]


def open_leases(server: RedisServer | list[RedisServer] | NatsServer, prefix: str) -> MemberLeases:
    if isinstance(server, NatsServer):
        return NatsMemberLeases(NatsAddress((server.url,)), prefix=prefix)
    urls = ",".join(each.url for each in server) if isinstance(server, list) else server.url
    return RedisMemberLeases(RedisAddress(urls), f"{prefix}:")


@asynccontextmanager
async def started(leases: MemberLeases) -> AsyncIterator[MemberLeases]:
    await leases.start()
    try:
        await renewed(leases)
        yield leases
    finally:
        await leases.stop()


def lease(name: str, number: int = 1) -> MemberLease:
    return MemberLease(name, f"{name}:8080", f"{name}~1", number, journal=False)


PROBE = MemberLease("probe", "probe:1", "probe~1", 1, journal=False)


async def renewed(leases: MemberLeases) -> SeenLeases:
    """Renew until the store responds."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await leases.renew(PROBE, LASTING)
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_renewed_lease_is_visible_to_all_nodes(
    two: tuple[MemberLeases, MemberLeases],
) -> None:
    one, other = two
    a, b = lease("a.example-1_x"), replace(lease("b"), journal=True, ring="R")
    await one.renew(a, LASTING)
    assert (await other.renew(b, LASTING)).leases == (a, b, PROBE)
    a = replace(a, number=2, ring="R", links=("b",))
    assert (await one.renew(a, LASTING)).leases == (a, b, PROBE)
    a = replace(a, number=3, links=(), ended=True)
    await one.renew(a, LASTING)
    assert (await other.renew(b, LASTING)).leases == (a, b, PROBE)


async def test_lease_without_renewal_expires(two: tuple[MemberLeases, MemberLeases]) -> None:
    one, other = two
    await one.renew(lease("a"), 1.0)
    deadline = time.monotonic() + WAIT_SECONDS
    while lease("a") in (await other.renew(lease("b"), LASTING)).leases:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert (await other.renew(lease("b"), LASTING)).leases == (lease("b"), PROBE)


async def test_one_of_two_concurrent_nodes_creates_the_record(two: tuple[MemberLeases, MemberLeases]) -> None:
    one, other = two
    seen = [await leases.renew(PROBE, LASTING) for leases in two]
    assert [each.record for each in seen] == [None, None]
    records = [RECORD, replace(RECORD, founder="b~1")]
    taken = await asyncio.gather(
        *(leases.replace_record(saw, record) for leases, saw, record in zip(two, seen, records, strict=True))
    )
    assert sorted(taken) == [False, True]
    kept = records[taken.index(True)]
    assert (await one.renew(PROBE, LASTING)).record == (await other.renew(PROBE, LASTING)).record == kept


async def test_record_is_replaced_only_by_a_node_that_read_it(two: tuple[MemberLeases, MemberLeases]) -> None:
    one, other = two
    assert await one.replace_record(await one.renew(PROBE, LASTING), RECORD)
    seen, same = await one.renew(PROBE, LASTING), await other.renew(PROBE, LASTING)
    second, third = replace(RECORD, members={"a": True}), replace(RECORD, members={"b": True})
    assert await one.replace_record(seen, second)
    assert not await other.replace_record(same, third)
    assert (await other.renew(PROBE, LASTING)).record == second
    assert await other.replace_record(await other.renew(PROBE, LASTING), third)


@pytest.mark.tier("all")
@pytest.mark.parametrize("kind", [redis_server, nats_server])
async def test_stopped_store_is_unavailable_until_it_restarts(
    kind: Callable[[], AbstractContextManager[RedisServer | NatsServer]],
) -> None:
    with kind() as server:
        async with started(open_leases(server, next(prefixes))) as leases:
            assert await leases.replace_record(await leases.renew(PROBE, LASTING), RECORD)
            server.stop()
            with pytest.raises(Unavailable):
                await leases.renew(PROBE, LASTING)
            server.start()
            assert (await renewed(leases)).record == RECORD


async def test_store_that_lost_its_data_is_used_again(redis: RedisServer, jetstream: NatsServer) -> None:
    prefix = next(prefixes)
    for server in (redis, jetstream):
        async with started(open_leases(server, prefix)) as leases:
            assert await leases.replace_record(await leases.renew(PROBE, LASTING), RECORD)
            if isinstance(server, RedisServer):
                server.ask("FLUSHALL")
            else:
                client = await nats.connect(server.url)
                await client.request(f"$JS.API.STREAM.DELETE.{prefix.upper()}_RING", b"", 5)
                await client.close()
            assert await renewed(leases) == SeenLeases((PROBE,))


async def test_malformed_record_is_reported(redis: RedisServer) -> None:
    prefix = next(prefixes)
    async with started(open_leases(redis, prefix)) as leases:
        redis.ask("SET", f"{prefix}:{{ring}}:record", "nonsense")
        with pytest.raises(Unavailable, match="cannot be read"):
            await leases.renew(PROBE, LASTING)
