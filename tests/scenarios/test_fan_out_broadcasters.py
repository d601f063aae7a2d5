"""The broadcasters redis and nats over real servers: every node delivers each message, without a position."""

import asyncio
import json
from collections.abc import Iterator

import nats
import pytest
import redis

from ropewalk.adapters.apps.authenticators import issue_token
from tests.broadcasts import kept, numbers, publication
from tests.cable import cable
from tests.metrics import metrics_when
from tests.server import running_server
from tests.services import NatsServer, RedisServer, nats_server, redis_server
from tests.waiting import healthy, unhealthy

CHANNEL = "__anycable__"
JWT_SECRET = "for tokens, thirty-two bytes long"


class Engine:
    """Redis or NATS: the flags of a server that uses it, and publishing to it as an application does."""

    def __init__(self, name: str, service: RedisServer | NatsServer) -> None:
        self.service = service
        where = "--redis_url" if name == "redis" else "--nats_servers"
        self.flags = (f"--broadcast_adapter={name}", where, service.url)
        self._send = self._by_redis if name == "redis" else self._by_nats

    async def send(self, *payloads: str) -> None:
        await self._send(payloads)

    async def _by_redis(self, payloads: tuple[str, ...]) -> None:
        with redis.Redis(port=self.service.port) as client:
            for payload in payloads:
                client.publish(CHANNEL, payload)

    async def _by_nats(self, payloads: tuple[str, ...]) -> None:
        client = await nats.connect(self.service.url)
        for payload in payloads:
            await client.publish(CHANNEL, payload.encode())
        await client.flush()
        await client.close()


@pytest.fixture(scope="module", params=["redis", "nats"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with redis_server() if request.param == "redis" else nats_server() as server:
        yield Engine(request.param, server)


async def test_every_node_delivers_without_position_and_disconnects_its_sessions(engine: Engine) -> None:
    authenticated = ("--jwt_secret", JWT_SECRET, "--public_streams", *engine.flags)
    with running_server("--public", *engine.flags) as one, running_server(*authenticated) as other:
        await healthy(one)
        await healthy(other)
        async with cable(one) as near, cable(other, params={"jid": issue_token(JWT_SECRET, '{"user": 1}')}) as far:
            for reader in (near, far):
                await reader.subscribe("news", history={"since": 1})
            excluded = {"exclude_socket": far.sid, "broadcast_type": "note"}
            await engine.send("no JSON", publication(0), json.dumps([json.loads(publication(1))]))
            await engine.send(publication(2, meta=excluded), publication(3, offset=7, epoch="theirs"))
            received = [await near.next() for _ in range(4)]
            without = await far.messages(3)
            await engine.send(json.dumps({"command": "disconnect", "payload": {"identifier": '{"user":1}'}}))
            assert await far.next() == {"type": "disconnect", "reason": "remote", "reconnect": True}
            await near.quiet()
        await metrics_when(other, lambda counted: counted["remote_disconnects_total"] == 1)
        counted = await metrics_when(one, lambda counted: counted["publications_refused_total"] == 1)
        assert await kept(one) == []
        assert "have no position and no history" in one.log()

    assert numbers(received) == [0, 1, 2, 3]
    assert not any("offset" in frame or "epoch" in frame for frame in received)
    assert received[2]["type"] == "note"
    assert [message["n"] for message in without] == [0, 1, 3]
    assert counted["streams"] == 0


@pytest.mark.tier("all")
async def test_broadcaster_reconnects_after_every_outage(engine: Engine) -> None:
    engine.service.stop()
    with running_server("--public", *engine.flags) as server:
        await unhealthy(server, "broadcaster")
        engine.service.start()
        await healthy(server)
        async with cable(server) as reader:
            await reader.subscribe("news", history={"since": 1})
            await engine.send(publication(0))
            assert numbers([await reader.next()]) == [0]
            engine.service.kill()
            await unhealthy(server, "broadcaster")
            engine.service.start()
            await healthy(server)
            await engine.send(publication(1))
            assert numbers([await reader.next()]) == [1]
            engine.service.pause()
            await unhealthy(server, "broadcaster")
            engine.service.resume()
            await healthy(server)
            await engine.send(publication(2))
            assert numbers([await reader.next()]) == [2]
        assert await asyncio.to_thread(server.stop) == 0
