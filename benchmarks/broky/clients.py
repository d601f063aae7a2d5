"""Python clients at both ends: what a program gets that pushes to a key and subscribes to it, against nats-py and nats-server.

The two clients of a round share a process and its core; the server has the other core.
"""

import asyncio
import time
from contextlib import ExitStack
from functools import partial

import nats
import uvloop
from nats.aio.msg import Msg

from benchmarks.broky.end import payloads
from benchmarks.broky.flows import Rounds
from benchmarks.broky.load import Load
from benchmarks.broky.trips import CHECKED, EPHEMERAL
from benchmarks.cores import Cores, on_core
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.server import Server
from benchmarks.sizes import Sizes
from ropewalk.client import BrokyMessage, Stream, connect
from tests.services import nats_server

KEY = "bench"
TIMEOUT = 60.0
WINDOW = 10_000
"""Maximum messages in flight: the server closes subscribers that are further behind."""

RATE_BAR = Bar("value", ">=", 300_000.0)
NATS_BAR = Bar("ratio", ">=", 3.0)


class Clients:
    """Lives in a process of its own (see `benchmarks.remote`). Each call gives the seconds from the first push until the last
    message is there, and checks that all of them are."""

    def broky(self, url: str, count: int, batch: int, payload: int) -> float:
        return uvloop.run(_broky(url, count, batch, payload))

    def nats(self, url: str, count: int, payload: int) -> float:
        return uvloop.run(_nats(url, count, payload))


def measure_clients(sizes: Sizes, cores: Cores) -> list[Figure]:
    with on_core(cores.load), Remote(Clients) as clients, Remote(Load) as load, ExitStack() as servers:
        with on_core(cores.server):
            server, keeping = servers.enter_context(Server(*EPHEMERAL)), servers.enter_context(Server())
            other = servers.enter_context(nats_server())
        count, batch, payload = sizes.broky_client_messages, sizes.broky_batch, sizes.broky_payload
        load.call(Load.serve, "ready", server.address, 1, payload)
        load.call(Load.check, "ready", batch, CHECKED)
        ready, served, kept = Rounds(server), Rounds(server), Rounds(keeping)
        bare: list[float] = []
        for _ in range(sizes.broky_rounds):
            bare.append(count / clients.call(Clients.nats, other.url, count, payload))
            ready.take(count, partial(load.call, Load.flow, "ready", count, batch))
            served.take(count, partial(clients.call, Clients.broky, _url(server), count, batch, payload))
            kept.take(count, partial(clients.call, Clients.broky, _url(keeping), count, batch, payload))
    details = cores.details() | {"messages_a_round": count, "batch": batch, "payload": payload}
    title = f"push → deliver, Python clients, batches of {batch}"
    where = f"server on core {cores.server}"
    ours, history = details | served.details(), details | kept.details()
    return [
        figure("tc", f"{title}, {where}", "messages/s", served.rates, ready.rates, ours, RATE_BAR),
        figure("tch", f"{title}, with history, {where}", "messages/s", kept.rates, served.rates, history),
        figure("tcn", f"{title}, against nats-py, {where}", "messages/s", served.rates, bare, ours, NATS_BAR),
    ]


def _url(server: Server) -> str:
    return "tcp://{}:{}".format(*server.address)


async def _broky(url: str, count: int, batch: int, payload: int) -> float:
    messages = payloads(0, count, payload)
    async with asyncio.timeout(TIMEOUT), connect(url) as producer, connect(url, inbox_size=WINDOW) as subscriber:
        hearing = Hearing(await subscriber.subscribe(KEY), count)
        started = time.monotonic()
        reading = asyncio.create_task(hearing.run())
        for first in range(0, count, batch):
            await producer.send(KEY, messages[first : first + batch])
            await hearing.until(first - WINDOW)
        await reading
        seconds = time.monotonic() - started
    if hearing.heard != messages:
        raise AssertionError("a subscriber did not get every message once and in order")
    return seconds


class Hearing:
    """Receives up to `count` messages of a stream."""

    def __init__(self, stream: Stream, count: int) -> None:
        self._stream, self._count = stream, count
        self._more = asyncio.Event()
        self.heard: list[bytes] = []

    async def run(self) -> None:
        async for events in self._stream.batches():
            self.heard += [event.payload for event in events if isinstance(event, BrokyMessage)]
            self._more.set()
            if len(self.heard) >= self._count:
                break

    async def until(self, count: int) -> None:
        while len(self.heard) < count:
            self._more.clear()
            await self._more.wait()


async def _nats(url: str, count: int, payload: int) -> float:
    """nats-py publishes one message a call and joins what it writes."""
    messages = payloads(0, count, payload)
    heard: list[bytes] = []
    publisher, subscriber = await nats.connect(url), await nats.connect(url)
    done = asyncio.Event()

    async def receive(message: Msg) -> None:
        heard.append(message.data)
        if len(heard) == count:
            done.set()

    await subscriber.subscribe(KEY, cb=receive)
    await subscriber.flush()
    started = time.monotonic()
    for message in messages:
        await publisher.publish(KEY, message)
    await publisher.flush()
    async with asyncio.timeout(TIMEOUT):
        await done.wait()
    seconds = time.monotonic() - started
    await publisher.close()
    await subscriber.close()
    if heard != messages:
        raise AssertionError("nats-py did not bring every message once and in order")
    return seconds
