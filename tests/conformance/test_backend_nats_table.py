"""Each node's copy of the records of the cluster: when its consumer is replaced, and when the consumer's server lags."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.model.sessions import SessionSnapshot
from tests.conformance.nats_nodes import node_of, running, until
from tests.services import NatsServer, nats_server

pytestmark = pytest.mark.tier("standard")

prefixes = (f"t{number}" for number in count(1))


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


@pytest.fixture
def prefix() -> str:
    return next(prefixes)


class TableConsumers:
    """Intercepts the consumers of a node's table: their callbacks are recorded, and messages wait while `open` is not set."""

    def __init__(self, node: NatsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.callbacks: list[Callable[[Msg], Awaitable[None]]] = []
        self.open = asyncio.Event()
        self.open.set()
        subscribe = node.link.subscribe

        async def record(subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Any:
            if not subject.startswith("_INBOX."):
                return await subscribe(subject, callback)

            async def receive(message: Msg) -> None:
                await self.open.wait()
                await callback(message)

            self.callbacks.append(callback)
            return await subscribe(subject, receive)

        monkeypatch.setattr(node.link, "subscribe", record)

    async def count(self, number: int) -> None:
        assert len(self.callbacks) == number


async def test_record_of_the_former_consumer_does_not_count_as_lost_records(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that was paused reads what came meanwhile while it asks for a new consumer."""
    one = node_of([server.url], prefix, "one")
    consumers = TableConsumers(one, monkeypatch)
    async with running(one):
        await one.sessions.save("sid", SessionSnapshot("ids", {}), 100.0)
        ask, publish = one.link.api, one.link.publish

        async def answer_as_before_the_pause(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == f"STREAM.INFO.{prefix.upper()}_STATE":
                found["state"]["last_seq"] -= 1
            return found

        async def publish_and_receive(subject: str, payload: bytes, headers: Any) -> int:
            sequence = await publish(subject, payload, headers)
            reply = f"$JS.ACK.{prefix.upper()}_STATE.consumer.1.{sequence}.{one._table._consumed + 1}.0.0"
            await consumers.callbacks[0](Msg(_client=None, subject=subject, reply=reply, data=payload))  # type: ignore[arg-type]
            return sequence

        monkeypatch.setattr(one.link, "api", answer_as_before_the_pause)
        monkeypatch.setattr(one.link, "publish", publish_and_receive)
        one._table.resubscribe()
        await until(lambda: consumers.count(2))
        monkeypatch.undo()
        assert await one.sessions.peek("sid") == SessionSnapshot("ids", {})
        assert "lost" not in caplog.text


async def test_records_that_a_lagging_server_does_not_have_yet_are_waited_for(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer may be on a server that has just returned and has fewer records than the leader."""
    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    consumers = TableConsumers(one, monkeypatch)
    async with running(one, two):
        ask, found, asked = one.link.api, SessionSnapshot("ids", {}), asyncio.Event()

        async def answer_of_a_lagging_server(subject: str, question: object = None) -> Any:
            made = await ask(subject, question)
            if subject.startswith("CONSUMER.CREATE."):
                made["num_pending"] = 0
            elif isinstance(question, dict) and "next_by_subj" in question:
                asked.set()
            return made

        monkeypatch.setattr(one.link, "api", answer_of_a_lagging_server)
        consumers.open.clear()
        await two.sessions.save("sid", found, 100.0)
        one._table.resubscribe()
        await until(lambda: consumers.count(2))
        asking = asyncio.ensure_future(one.sessions.peek("sid"))
        leader = asyncio.ensure_future(asked.wait())
        await asyncio.wait([asking, leader], return_when=asyncio.FIRST_COMPLETED)
        leader.cancel()
        consumers.open.set()
        assert await asking == found
