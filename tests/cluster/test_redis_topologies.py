"""The Redis backend on more than a single server: Sentinels that promote a replica, a cluster whose shards move, TLS."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot

from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Position, Publication, Receipt
from ropewalk.model.rules import StreamRules
from ropewalk.ports import NodeName
from ropewalk.testing.backend_feed import Process
from tests.cluster.redis_nodes import persist
from tests.services import RedisSentinel, RedisServer, free_port, redis_cluster, redis_server
from tests.waiting import until

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")
RULES = Rulebook(StreamRules(history_limit=1000, history_ttl=300.0))
WITHIN = 60.0


@asynccontextmanager
async def running(address: RedisAddress) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(RULES, address, NodeName("one", "one"))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


async def register(backend: RedisBackend, number: int, stream: str = "s") -> Receipt:
    publication = Publication(stream, b"%d" % number, uid=f"u{number}")
    return (await persist(lambda: backend.streams.append([publication])))[0]


# --- Sentinel --------------------------------------------------------------------------------------------------------


@pytest.fixture
def replicated() -> Iterator[tuple[RedisServer, RedisServer, RedisSentinel]]:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        master = stack.enter_context(redis_server("--appendonly", "yes", "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(
            redis_server("--appendonly", "yes", "--replicaof", "127.0.0.1", str(master.port), "--replica-priority", "1")
        )
        sentinel = RedisSentinel(home, master, "main")
        sentinel.start()
        stack.callback(sentinel.stop)
        yield master, replica, sentinel


async def replicating(sentinel: RedisSentinel, replica: RedisServer) -> None:
    def is_known() -> bool:
        return replica.ask("INFO", "replication")["master_link_status"] == "up" and bool(
            sentinel.ask("SENTINEL REPLICAS", "main")
        )

    await until(is_known)


async def test_promoted_replica_with_all_data_keeps_the_epoch(
    replicated: tuple[RedisServer, RedisServer, RedisSentinel],
) -> None:
    master, replica, sentinel = replicated
    await replicating(sentinel, replica)
    async with running(RedisAddress("redis://main", (f"127.0.0.1:{sentinel.port}",))) as backend:
        here = await Process().start(backend)
        await backend.feed.listen("s")
        before = [await register(backend, number) for number in range(1, 11)]
        await until(lambda: replica.ask("HGET", "rw:{0}:m:s", "o") == "10")
        master.kill()
        after = await register(backend, 11)
        assert (after.epoch, after.offset) == (before[0].epoch, 11)
        await persist(lambda: backend.feed.listen("s"))
        await register(backend, 12)
        await until(lambda: any(message.offset == 12 for message in here.messages))
    await until(lambda: len(sentinel.ask("CLIENT LIST")) == 1)  # the backend has closed its connections to the Sentinel


async def test_promoted_replica_without_the_tail_begins_new_epochs(
    replicated: tuple[RedisServer, RedisServer, RedisSentinel],
) -> None:
    master, replica, sentinel = replicated
    await replicating(sentinel, replica)
    async with running(RedisAddress("redis://main", (f"127.0.0.1:{sentinel.port}",))) as backend:
        before = [await register(backend, number) for number in range(1, 6)]
        await until(lambda: replica.ask("HGET", "rw:{0}:m:s", "o") == "5")
        replica.pause()
        master.ask("CLIENT KILL", "TYPE", "replica")
        before += [await register(backend, number) for number in range(6, 11)]
        master.kill()
        replica.resume()
        after = await register(backend, 10)
        assert after.epoch != before[0].epoch
        assert (after.offset, after.duplicate) == (1, False)


# --- Cluster ---------------------------------------------------------------------------------------------------------


def move_slot(slot: int, source: RedisServer, target: RedisServer, others: list[RedisServer]) -> None:
    """As an operator's tool does."""
    here, there = source.ask("CLUSTER MYID"), target.ask("CLUSTER MYID")
    target.ask("CLUSTER SETSLOT", slot, "IMPORTING", here)
    source.ask("CLUSTER SETSLOT", slot, "MIGRATING", there)
    while keys := source.ask("CLUSTER GETKEYSINSLOT", slot, 100):
        source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    for server in (target, source, *others):
        server.ask("CLUSTER SETSLOT", slot, "NODE", there)


async def test_shard_that_moves_to_another_server_keeps_its_epoch_and_listeners() -> None:
    with redis_cluster() as servers:
        async with running(RedisAddress(servers[0].url)) as backend:
            here = await Process().start(backend)
            stream = "s"
            slot = key_slot(str(backend.store.shard_index(stream)).encode())
            await backend.feed.listen(stream)
            before = [await register(backend, number, stream) for number in range(1, 11)]
            await until(lambda: len(here.messages) == 10)
            owner = servers[slot // -(-16384 // 3)]
            target, *others = (server for server in servers if server is not owner)
            move_slot(slot, owner, target, others)
            after = await register(backend, 11, stream)
            assert (after.epoch, after.offset) == (before[0].epoch, 11)
            assert (await register(backend, 5, stream)).duplicate
            await persist(lambda: backend.feed.listen(stream))

            async def delivered_again() -> None:
                number = 12
                while not any(message.offset > 11 for message in here.messages):
                    await register(backend, number, stream)
                    number += 1
                    await asyncio.sleep(0.05)

            async with asyncio.timeout(WITHIN):
                await delivered_again()


async def test_only_the_shards_of_a_cluster_server_that_is_down_fail() -> None:
    with redis_cluster() as servers:
        for server in servers:
            server.ask("CONFIG SET", "cluster-require-full-coverage", "no")
        async with running(RedisAddress(",".join(server.url for server in servers))) as backend:
            streams = [f"s{number}" for number in range(32)]
            for stream in streams:
                await register(backend, 1, stream)
            servers[0].kill()  # the first in the list
            await backend.store.close()  # closes all connections
            failed, registered = [], []
            for stream in streams:
                try:
                    await backend.streams.append([Publication(stream, b"2")])
                    registered.append(stream)
                except Unavailable:
                    failed.append(stream)
            assert failed
            assert registered
            assert "Redis" in backend.health()


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.mark.needs_redis_tls
async def test_redis_over_tls_verifies_the_certificate() -> None:
    port = free_port()
    files = ("--tls-cert-file", CERTIFICATE, "--tls-key-file", KEY)
    with redis_server("--appendonly", "yes", "--tls-port", str(port), *files, "--tls-auth-clients", "no"):
        async with running(RedisAddress(f"rediss://localhost:{port}", tls_ca=CERTIFICATE)) as backend:
            await backend.feed.start(lambda messages: None, _ignore)
            await backend.feed.listen("s")
            assert (await register(backend, 1)).offset == 1
            assert (await backend.streams.tip("s")).offset == 1
        async with running(RedisAddress(f"rediss://localhost:{port}")) as backend:
            assert "certificate verify failed" in backend.health()
        async with running(RedisAddress(f"rediss://localhost:{port}", tls_verify=False)) as backend:
            assert (await backend.streams.tip("s")) != Position("", 0)


async def _ignore(order: object) -> int:
    return 0
