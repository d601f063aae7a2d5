"""Redis comes back without its newest writes while several nodes use it: which streams begin new epochs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.backends.redis import RedisBackend, shard
from ropewalk.model.history import Replay
from ropewalk.model.messages import Position, Receipt
from tests.cluster.redis_nodes import LEASE, OlderFiles, persist, position, register, running
from tests.services import RedisServer


@pytest.fixture(autouse=True)
def long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough for all nodes to notice the restart."""
    monkeypatch.setattr(shard, "GRACE_MS", 8000)


@asynccontextmanager
async def nodes_with_leases(redis: RedisServer, *names: str) -> AsyncIterator[list[RedisBackend]]:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(running(redis, name)) for name in names]
        for node in nodes:
            await node.leases.renew(LEASE, ())
        yield nodes


async def tips(nodes: list[RedisBackend], stream: str) -> list[Position]:
    """As all nodes read it, once Redis is confirmed."""
    return await asyncio.gather(*(persist(lambda node=node: node.streams.tip(stream)) for node in nodes))  # type: ignore[misc]


async def test_only_streams_with_lost_messages_begin_new_epochs(redis: RedisServer, tmp_path: Path) -> None:
    older = OlderFiles(redis, tmp_path)
    async with nodes_with_leases(redis, "one", "two", "idle") as nodes:
        one, two, _ = nodes
        before = {stream: (await register(one, 1, 9, stream))[-1] for stream in ("kept", "a", "b")}
        await older.save()
        lost = [*await register(one, 10, 12, "a"), *await register(two, 10, 10, "b"), *await register(two, 1, 1, "new")]
        older.restore()
        assert await tips(nodes, "kept") == [position(before["kept"])] * 3
        for stream in ("a", "b", "new"):
            assert await tips(nodes, stream) == [Position("", 0)] * 3
        kept = await two.streams.replay("kept", Position(before["kept"].epoch, 0))
        assert isinstance(kept, Replay)
        assert len(kept.messages) == 9
        after = [(await register(two, 20, 20, stream))[0] for stream in ("kept", "a", "b", "new")]
        assert position(after[0]) == Position(before["kept"].epoch, 10)
        assert_new_epochs(after[1:], lost)


def assert_new_epochs(after: list[Receipt], lost: list[Receipt]) -> None:
    assert {receipt.offset for receipt in after} == {1}
    assert {receipt.epoch for receipt in after}.isdisjoint({receipt.epoch for receipt in lost})


async def test_second_loss_is_noticed_after_the_first(redis: RedisServer, tmp_path: Path) -> None:
    older = OlderFiles(redis, tmp_path)
    async with nodes_with_leases(redis, "one", "two") as nodes:
        one, two = nodes
        kept = (await register(one, 1, 5, "kept"))[-1]
        await older.save()
        lost = await register(one, 1, 5, "a")
        older.restore()
        assert await tips(nodes, "kept") == [position(kept)] * 2
        lost += await register(two, 6, 6, "a")
        lost += await register(two, 1, 1, "b")
        older.restore()
        assert await tips(nodes, "kept") == [position(kept)] * 2
        assert_new_epochs([(await register(one, 20, 20, stream))[0] for stream in ("a", "b")], lost)


async def test_all_streams_begin_new_epochs_when_a_node_with_a_lease_does_not_return(
    redis: RedisServer, tmp_path: Path
) -> None:
    """It may have registered messages that no other node knows."""
    older = OlderFiles(redis, tmp_path)
    async with nodes_with_leases(redis, "one", "two") as nodes:
        async with nodes_with_leases(redis, "dead"):
            before = await register(nodes[0], 1, 5, "kept")
            await older.save()
            await register(nodes[0], 1, 1, "a")
        older.restore()
        assert await tips(nodes, "kept") == [Position("", 0)] * 2
        assert_new_epochs(await register(nodes[1], 6, 6, "kept"), before)


async def test_all_streams_begin_new_epochs_when_a_lost_message_is_of_an_unknown_stream(
    redis: RedisServer, tmp_path: Path
) -> None:
    """A node that began after the older files were made registered messages, and is gone."""
    older = OlderFiles(redis, tmp_path)
    async with nodes_with_leases(redis, "one", "two") as nodes:
        before = await register(nodes[0], 1, 5, "kept")
        await older.save()
        async with nodes_with_leases(redis, "short-lived") as [short_lived]:
            await register(short_lived, 1, 1, "a")
        await register(nodes[0], 1, 1, "b")
        older.restore()
        assert await tips(nodes, "kept") == [Position("", 0)] * 2
        assert_new_epochs(await register(nodes[1], 6, 6, "kept"), before)


async def test_restarted_node_does_not_testify_for_the_process_before_it(redis: RedisServer, tmp_path: Path) -> None:
    older = OlderFiles(redis, tmp_path)
    async with nodes_with_leases(redis, "one") as [one]:
        async with nodes_with_leases(redis, "two") as [first]:
            before = await register(one, 1, 5, "kept")
            await older.save()
            lost = await register(first, 1, 1, "a")
        async with nodes_with_leases(redis, "two") as [second]:
            await register(one, 1, 5, "b")
            older.restore()
            assert await tips([one, second], "kept") == [Position("", 0)] * 2
            assert_new_epochs([*await register(second, 6, 6, "kept"), *await register(second, 2, 2, "a")], before + lost)
