"""Nodes on a real NATS server for tests of failures, and a proxy that can cut or garble their connections."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec
import nats

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.nats.names import NatsOptions
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Replay
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication, Receipt, Registered
from ropewalk.model.rules import StreamRules
from ropewalk.ports import NodeName
from tests.services import NatsServer, free_port, nats_cluster

T = TypeVar("T")
WAIT_SECONDS = 60.0


async def until(ask: Callable[[], Awaitable[T]], failure: type[Exception] = AssertionError) -> T:
    """Call until it succeeds; returns the result."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return await ask()
        except (AssertionError, failure):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def node_of(
    servers: Sequence[str],
    prefix: str,
    name: str,
    replicas: int = 1,
    timeout: float = 5.0,
    clock: Callable[[], float] = time.time,
    presence_ttl: float = 15.0,
) -> NatsBackend:
    rules = Rulebook(StreamRules(history_limit=1000, history_ttl=300.0))
    return NatsBackend(
        NatsAddress(tuple(servers)),
        NodeName(name, name),
        rules,
        clock,
        StoreLimits(presence_ttl=presence_ttl),
        NatsOptions(prefix, shards=2, replicas=replicas, timeout=timeout),
    )


@contextmanager
def ready_cluster() -> Iterator[list[NatsServer]]:
    """Three servers whose JetStream has a leader."""

    async def ask() -> None:
        client = await nats.connect([server.url for server in servers])
        try:
            answer = msgspec.json.decode((await client.request("$JS.API.INFO", b"", 1)).data)
        finally:
            await client.close()
        assert "error" not in answer, answer

    with nats_cluster() as servers:
        asyncio.run(until(ask, Exception))
        yield servers


@asynccontextmanager
async def running(*backends: NatsBackend) -> AsyncIterator[None]:
    for backend in backends:
        await backend.start()
    try:
        yield
    finally:
        for backend in backends:
            await backend.stop()


async def published(backend: NatsBackend, stream: str, payload: bytes, uid: str = "") -> Receipt:
    """Publish, and repeat until it is registered, as a publisher would."""
    return (await until(lambda: backend.streams.append([Publication(stream, payload, uid=uid)]), Unavailable))[0]


async def history(backend: NatsBackend, stream: str) -> list[bytes]:
    """All payloads up to the tip. One answer of a store is bounded."""
    messages: list[Registered] = []
    position, tip = Position("", 0), None
    while tip is None or position.offset < tip:
        answer = await until(partial(backend.streams.replay, stream, position), Unavailable)
        assert isinstance(answer, Replay)
        messages += answer.messages
        assert answer.messages or answer.tip == len(messages)
        position, tip = Position(answer.epoch, len(messages)), answer.tip
    assert [message.offset for message in messages] == list(range(1, len(messages) + 1))
    return [message.payload for message in messages]


async def unhealthy(backend: NatsBackend) -> str:
    assert backend.health()
    return backend.health()


async def healthy(backend: NatsBackend) -> bool:
    assert backend.health() == ""
    return True


async def health_with(backend: NatsBackend, part: str) -> str:
    assert part in backend.health(), backend.health()
    return backend.health()


class Proxy:
    """Between a node and NATS. `deaf`: responses are lost. `cut`: connections are refused. `silent`: new connections are
    accepted and get no data; `abandoned` counts those that the node closed. `sent`: all bytes of the node."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = free_port()
        self.deaf = self.cut = self.silent = False
        self.abandoned = 0
        self.sent = b""
        self._links: set[asyncio.StreamWriter] = set()
        self._to_nats: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut_links()
        for task in list(self._tasks):
            task.cancel()

    def cut_links(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()

    def send_garbage(self) -> None:
        """Send a protocol error; NATS closes the connections."""
        for link in self._to_nats:
            link.write(b"\r\nGARBAGE\r\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut or self.deaf:
            writer.close()
            return
        if self.silent:
            await reader.read()
            self.abandoned += 1
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._links |= {writer, back}
        self._to_nats.add(back)
        for source, target, answers in ((reader, back, False), (there, writer, True)):
            task = asyncio.ensure_future(self._pass(source, target, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if not answers:
                    self.sent += data
                if not (answers and self.deaf):
                    target.write(data)
        target.close()
