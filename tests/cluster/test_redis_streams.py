"""redisx with several nodes over one Redis, and over a Redis Cluster."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from ropewalk.adapters.apps.authenticators import issue_token
from tests.broadcasts import kept, numbers, publication
from tests.cable import cable
from tests.metrics import metrics
from tests.server import running_server
from tests.services import RedisServer, free_cluster_port, free_port, redis_server
from tests.waiting import healthy, unhealthy, until, wait_until

KEY, GROUP = "__anycable__", "bx"
JWT_SECRET = "for tokens, thirty-two bytes long"
DEAD_MILLISECONDS = 60_000
FLOOD = 3000
SLOTS = 16384
WITHIN = 60.0


def client(store: RedisServer) -> Any:
    return redis.Redis(port=store.port)


async def test_nodes_register_each_entry_once_while_some_of_them_are_killed() -> None:
    with redis_server() as store, contextlib.ExitStack() as nodes:
        at = client(store)

        def node(name: str) -> Any:
            flags = ("--public", "--presets=broker", "--redis_url", store.url, "--node_id", name, "--history_limit=100000")
            return nodes.enter_context(running_server(*flags))

        first, second, third = (node(name) for name in ("first", "second", "third"))
        for each in (first, second, third):
            await healthy(each)
        assert "so --broadcast_adapter=http,redisx,redis --broker=redis" in first.log()

        async def flood(start: int, end: int) -> None:
            for number in range(start, end, 10):
                pipeline = at.pipeline(transaction=False)
                for each in range(number, number + 10):
                    pipeline.xadd(KEY, {"payload": publication(each)})
                pipeline.execute()
                await asyncio.sleep(0)

        async with cable(first) as reader:
            await reader.subscribe("news", history={"since": 1})
            flooding = asyncio.create_task(flood(0, FLOOD))
            live = [*await reader.messages_up_to(FLOOD // 10)]
            second.kill()
            third.kill()
            again = node("second")
            await flooding
            for pending in at.xpending_range(KEY, GROUP, "-", "+", FLOOD, consumername="third"):  # as if a minute had passed
                at.xclaim(KEY, GROUP, "third", 0, [pending["message_id"]], idle=DEAD_MILLISECONDS, justid=True)
            await until(lambda: at.xlen(KEY) == 0, "every entry is registered and deleted")
            live += await reader.messages_up_to(FLOOD)
            await reader.quiet()
        messages = await kept(again)
        duplicates = [(await metrics(each))["publications_duplicate_total"] for each in (first, again)]

    assert sorted(numbers(live)) == list(range(FLOOD)), duplicates
    assert [message["offset"] for message in live] == list(range(1, FLOOD + 1))
    assert numbers(messages) == numbers(live)


async def test_entries_channel_messages_and_disconnects_reach_clients_of_every_node_once() -> None:
    with redis_server() as store:
        at = client(store)
        flags = ("--jwt_secret", JWT_SECRET, "--public_streams", "--presets=broker", "--redis_url", store.url)
        token = {"jid": issue_token(JWT_SECRET, "user/1")}
        with running_server(*flags) as one, running_server(*flags) as other:
            await healthy(one)
            await healthy(other)
            async with cable(one, params=token) as near, cable(other, params=token) as far:
                for reader in (near, far):
                    await reader.subscribe("news", history={"since": 1})
                at.publish(KEY, publication(0))  # both nodes deliver it, and neither registers it
                for reader in (near, far):
                    assert await reader.messages(1) == [{"n": 0}]
                at.xadd(KEY, {"payload": publication(1)})  # one node reads it, and both deliver it
                for reader in (near, far):
                    [message] = await reader.messages_up_to(1)
                    assert message["message"] == {"n": 1}
                at.xadd(KEY, {"payload": json.dumps({"command": "disconnect", "payload": {"identifier": "user/1"}})})
                for reader in (near, far):
                    await reader.expect("disconnect", reason="remote")


async def test_broker_and_broadcaster_recover_together_after_redis_was_killed() -> None:
    with redis_server() as store:
        at = client(store)
        flags = ("--public", "--presets=broker", "--redis_url", store.url, "--history_limit=100000")
        with running_server(*flags) as server:
            await healthy(server)
            async with cable(server) as reader:
                await reader.subscribe("news", history={"since": 1})
                for start in range(0, 1500, 500):
                    pipeline = at.pipeline(transaction=True)
                    for number in range(start, start + 500):
                        pipeline.xadd(KEY, {"payload": publication(number)})
                    pipeline.execute()
                    store.kill()
                    await unhealthy(server, "Redis cannot be reached")
                    store.start()
                await until(lambda: at.xlen(KEY) == 0, "every entry is registered and deleted")
                live = await reader.messages_up_to(1500)
            await healthy(server)

    assert numbers(live) == list(range(1500))
    assert [message["offset"] for message in live] == list(range(1, 1501))


@contextlib.contextmanager
def two_masters() -> Iterator[list[RedisServer]]:
    """A Redis Cluster. The second server has the stream."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(2):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            port = free_cluster_port()
            server = RedisServer(home, ("--cluster-enabled", "yes", "--appendonly", "yes"), port)
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        one, other = map(client, servers)
        slot = one.execute_command("CLUSTER KEYSLOT", KEY)
        one.execute_command("CLUSTER ADDSLOTS", *(each for each in range(SLOTS) if each != slot))
        other.execute_command("CLUSTER ADDSLOTS", slot)
        other.execute_command("CLUSTER SET-CONFIG-EPOCH", 2)
        one.execute_command("CLUSTER MEET", "127.0.0.1", servers[1].port)
        wait_until(lambda: all(server.execute_command("CLUSTER INFO")["cluster_state"] == "ok" for server in (one, other)))
        yield servers


async def test_stream_is_found_in_a_redis_cluster_and_again_after_its_server_restarted() -> None:
    with two_masters() as (one, other):
        at = client(other)
        gone = f"redis://127.0.0.1:{free_port()}"  # no server listens there
        flags = ("--public", "--broadcaster=redisx,redis", "--redis_url", f"{gone},{one.url}")
        with running_server(*flags) as server:
            await healthy(server)
            async with cable(server) as reader:
                await reader.subscribe("news", history={"since": 1})
                at.xadd(KEY, {"payload": publication(0)})
                at.publish(KEY, publication(1))  # at another server than the one with the subscription
                assert sorted(message["n"] for message in await reader.messages(2)) == [0, 1]
                other.kill()
                other.start()
                await until(lambda: at.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "the cluster is whole")
                at.xadd(KEY, {"payload": publication(2)})
                assert await reader.messages(1) == [{"n": 2}]
