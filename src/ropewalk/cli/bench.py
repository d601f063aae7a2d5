"""`ropewalk bench`: puts a small load on a running server and reports deliveries and latency.

Its subscribers share one process, so the figures are of client and server together; `make bench` measures the server alone.
"""

import argparse
import asyncio
import os
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from secrets import token_hex

import uvloop
from msgspec import Struct
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from yarl import URL

from ropewalk.app.keys import derive_keys
from ropewalk.app.settings import load
from ropewalk.cli.reaching import add_flags, explained, key_help, url_of
from ropewalk.client import (
    CableError,
    Client,
    Draft,
    Gap,
    KeyRefused,
    NoAnswer,
    Publisher,
    Pusher,
    Stream,
    SubscriptionRejected,
    TokenExpired,
    Unauthorized,
    connect,
)
from ropewalk.client.addresses import addresses, is_tcp, tcp_address
from ropewalk.client.errors import STREAM_MAY_BE_AWAY
from ropewalk.client.identifiers import public, signed
from ropewalk.client.tls import connection_error, tls_context
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import RopewalkError, Unavailable, UserMistake
from ropewalk.ports import Clock
from ropewalk.protocol.client_commands import SUBPROTOCOL, encode
from ropewalk.protocol.server_messages import Data, Goodbye, SubscriptionConfirmed, SubscriptionRefused, Welcome, decode

SUMMARY = "measure deliveries and latency of a running server"

TIMEOUT = 30.0
MAX_OPENING = 100
NOT_SENT = -1.0

SendBatch = Callable[[range], Awaitable[object]]
"""Publishes the messages of these numbers in one request, and returns when they are registered."""


class BenchPlan(Struct, frozen=True):
    """The validated arguments."""

    url: str
    ca_file: str
    token: str
    key: str
    stream: str
    signed_stream: str
    subscribers: int
    messages: int
    batch: int
    rate: float
    size: int
    tcp: bool = False
    in_flight: int = 1


def outcome() -> asyncio.Future[None]:
    """A future whose failure need not be retrieved: the first failure ends the run, and the others have the same reason."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
    return outcome


class BenchTally:
    """When each message was sent, and when the last subscriber received it."""

    def __init__(self, plan: BenchPlan, clock: Clock) -> None:
        self._clock = clock
        self._missing = [plan.subscribers] * plan.messages
        self.sent = [NOT_SENT] * plan.messages
        self.complete = [0.0] * plan.messages
        self.deliveries = 0
        self.ended = outcome()

    def deliver(self, message: int) -> None:
        if message >= len(self._missing) or self.sent[message] == NOT_SENT:
            self.fail("another client publishes to this stream; choose another one with --stream")
            return
        self.deliveries += 1
        self._missing[message] -= 1
        if not self._missing[message]:
            self.complete[message] = self._clock()
            # each subscriber receives them in order, so the last message is also the last to be complete
            if message == len(self._missing) - 1 and not self.ended.done():
                self.ended.set_result(None)

    def fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(Unavailable(why))


async def drive(plan: BenchPlan, tally: BenchTally, clock: Clock, send: SendBatch) -> None:
    """Publish, and wait until every subscriber has every message. Raises Unavailable after a timeout."""
    requests = enumerate(range(0, plan.messages, plan.batch))
    started = clock()

    async def send_in_turn() -> None:
        for request, first in requests:
            if plan.rate:
                await asyncio.sleep(max(0.0, started + request / plan.rate - clock()))
            numbers = range(first, min(first + plan.batch, plan.messages))
            tally.sent[first : numbers.stop] = [clock()] * len(numbers)
            await send(numbers)

    await asyncio.gather(*(send_in_turn() for _ in range(plan.in_flight)))
    try:
        await asyncio.wait_for(tally.ended, TIMEOUT)
    except TimeoutError:
        missing = plan.subscribers * plan.messages - tally.deliveries
        raise Unavailable(f"{missing} deliveries did not come within {TIMEOUT:g} seconds") from None


def report(plan: BenchPlan, tally: BenchTally) -> str:
    seconds = tally.complete[-1] - tally.sent[0]
    latencies = sorted((end - start) * 1000 for start, end in zip(tally.sent, tally.complete, strict=True))
    lines = (
        f"{plan.messages} messages to {plan.subscribers} subscribers in {seconds:.2f} s, every one delivered",
        f"deliveries/s   {tally.deliveries / seconds:,.0f}",
        f"latency p50    {statistics.median(latencies):.2f} ms   (publish to last subscriber)",
        f"latency p99    {latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)]:.2f} ms",
    )
    return "\n".join(lines)


def run(argv: list[str], clock: Clock = time.monotonic) -> int:
    given = _parser().parse_args(argv)
    plan = _plan(given)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and plan.subscribers + 100 > hard:
        raise UserMistake(f"{plan.subscribers} subscribers need more open files than the limit of {hard}; raise `ulimit -n`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        print(report(plan, uvloop.run(_measure(plan, clock))))
    except KeyRefused as error:
        raise UserMistake(f"{error}; {key_help('--key', given.key)}") from error
    return 0


def _plan(given: argparse.Namespace) -> BenchPlan:
    for name in ("subscribers", "messages", "batch", "size", "in_flight"):
        if getattr(given, name) < 1:
            raise UserMistake(f"--{name} must be at least 1")
    if given.rate < 0:
        raise UserMistake("--rate must not be negative; 0 is as fast as the server responds")
    url = url_of(given.url)
    stream = given.stream or f"bench-{token_hex(4)}"
    if given.signed_stream and not given.stream:
        raise UserMistake("--signed-stream needs --stream too, which messages are published to")
    tcp = given.tcp or is_tcp(url)
    if given.in_flight > 1 and not tcp:
        raise UserMistake("--in_flight is for --tcp: over HTTP concurrent requests may be reordered")
    return BenchPlan(
        url=url,
        ca_file=given.ca_file,
        token=given.token,
        key=given.key if given.key is not None else derive_keys(load([], os.environ)).api or "",
        stream=stream,
        signed_stream=given.signed_stream,
        subscribers=given.subscribers,
        messages=given.messages,
        batch=given.batch,
        rate=given.rate,
        size=given.size,
        tcp=tcp,
        in_flight=given.in_flight,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk bench", description=SUMMARY, allow_abbrev=False)
    add_flags(parser)
    parser.add_argument("--tcp", action="store_true", help="publish and subscribe over TCP; the default with a tcp:// address")
    parser.add_argument("--subscribers", type=int, default=100, help="connections that subscribe; %(default)s by default")
    parser.add_argument("--messages", type=int, default=1000, help="messages to publish; %(default)s by default")
    parser.add_argument("--batch", type=int, default=1, help="messages in one request; %(default)s by default")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests per second; as fast as the server responds by default"
    )
    parser.add_argument(
        "--in_flight", "--in-flight", type=int, default=1, help="with --tcp, requests in flight at once; 1 by default"
    )
    parser.add_argument(
        "--size", type=int, default=100, help="length of a message's text, over TCP of its bytes; %(default)s by default"
    )
    parser.add_argument("--stream", default="", help="a stream without other publishers; a new name by default")
    parser.add_argument(
        "--signed-stream", "--signed_stream", default="", help="the signed name of --stream, if streams are not public"
    )
    parser.add_argument("--token", default="", help="a JWT to connect with")
    parser.add_argument("--key", help="bearer key of the API; by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET")
    return parser


async def _measure(plan: BenchPlan, clock: Clock) -> BenchTally:
    tally = BenchTally(plan, clock)
    opened = _opened_over_tcp if plan.tcp else _opened
    async with opened(plan, tally) as send:
        await drive(plan, tally, clock, send)
    return tally


# --- over WebSocket -----------------------------------------------------------------------------------------------------


class Subscriber(WSListener):
    """A WebSocket connection that subscribes and counts messages."""

    def __init__(self, plan: BenchPlan, tally: BenchTally) -> None:
        super().__init__()
        self._identifier = signed(plan.signed_stream) if plan.signed_stream else public(plan.stream)
        self._tally = tally
        self._received = 0
        self.ready = outcome()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is not WSMsgType.TEXT:
            return
        match decode(frame.get_payload_as_bytes()):
            case Data():
                self._tally.deliver(self._received)
                self._received += 1
            case Welcome():
                transport.send(WSMsgType.TEXT, encode(Subscribe(self._identifier)))
            case SubscriptionConfirmed() if not self.ready.done():
                self.ready.set_result(None)
            case SubscriptionRefused():
                self._refuse(
                    "the server refused the subscription: is the stream public, or its signed name right?", UserMistake
                )
            case Goodbye("unauthorized" | "token_expired" as reason):
                self._refuse(f"the server closed a connection: {reason}; pass a valid token with --token", UserMistake)
            case Goodbye(reason):
                self._refuse(f"the server closed a connection: {reason}")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._refuse("the server closed a connection")

    def _refuse(self, why: str, kind: type[RopewalkError] = Unavailable) -> None:
        if not self.ready.done():
            self.ready.set_exception(kind(why))
        self._tally.fail(why)


@asynccontextmanager
async def _opened(plan: BenchPlan, tally: BenchTally) -> AsyncIterator[SendBatch]:
    """Returns when all subscribers are connected."""
    with explained():
        links = await _open(plan, tally)
    try:
        async with Publisher(plan.url, plan.key, ca_file=plan.ca_file) as publisher:
            text = "x" * plan.size
            yield lambda numbers: publisher.publish_batch([Draft(plan.stream, {"n": n, "text": text}) for n in numbers])
    finally:
        for link in links:
            link.disconnect()


async def _open(plan: BenchPlan, tally: BenchTally) -> list[WSTransport]:
    slots = asyncio.Semaphore(MAX_OPENING)
    tls = tls_context(plan.ca_file)
    place = addresses(plan.url).cable
    # without pings, which cost both sides and are not counted
    cable = str(URL(place).update_query({"pi": "0"} | ({"jid": plan.token} if plan.token else {})))
    links: list[WSTransport] = []

    async def one() -> None:
        async with slots:
            transport, subscriber = await ws_connect(
                lambda: Subscriber(plan, tally),
                cable,
                ssl_context=tls,
                extra_headers={"Sec-WebSocket-Protocol": SUBPROTOCOL},
            )
            links.append(transport)
            assert isinstance(subscriber, Subscriber)
            await asyncio.wait_for(subscriber.ready, TIMEOUT)

    try:
        await _all_or_none([one() for _ in range(plan.subscribers)], links)
        return links
    except TimeoutError:
        raise NoAnswer(TIMEOUT, STREAM_MAY_BE_AWAY) from None
    except (OSError, WSError) as error:
        raise connection_error(place, error) from error


async def _all_or_none(opening: list[Coroutine[None, None, None]], links: list[WSTransport]) -> None:
    """If one of the connections fails, the others are closed."""
    tasks = [asyncio.ensure_future(each) for each in opening]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in links:
            link.disconnect()
        raise


# --- over TCP -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened_over_tcp(plan: BenchPlan, tally: BenchTally) -> AsyncIterator[SendBatch]:
    """Returns when all subscribers are connected."""
    async with AsyncExitStack() as stack:
        with explained():
            streams = await _subscribe_over_tcp(plan, stack)
        reading = [asyncio.create_task(_count(stream, tally)) for stream in streams]
        pusher = await stack.enter_async_context(Pusher(plan.url, plan.key, ca_file=plan.ca_file))
        payload = b"x" * plan.size
        try:
            yield lambda numbers: pusher.push(plan.stream, [payload] * len(numbers))
        finally:
            for task in reading:
                task.cancel()


async def _subscribe_over_tcp(plan: BenchPlan, stack: AsyncExitStack) -> list[Stream]:
    slots = asyncio.Semaphore(MAX_OPENING)
    address = tcp_address(plan.url)
    url = f"{'tls' if address.secure else 'tcp'}://{address.netloc}"

    async def one() -> Stream:
        async with slots:
            connecting = connect(url, plan.token, ca_file=plan.ca_file, ping_interval=None, answer_timeout=TIMEOUT)
            return await _follow(await stack.enter_async_context(connecting), plan)

    try:
        return await asyncio.gather(*(one() for _ in range(plan.subscribers)))
    except SubscriptionRejected as error:
        raise UserMistake(f"{error}: is the stream public, or its signed name right?") from error
    except (Unauthorized, TokenExpired) as error:
        raise UserMistake(f"{error}; pass a valid token with --token") from error


async def _follow(client: Client, plan: BenchPlan) -> Stream:
    return await (client.subscribe_signed(plan.signed_stream) if plan.signed_stream else client.subscribe(plan.stream))


async def _count(stream: Stream, tally: BenchTally) -> None:
    received = 0
    try:
        async for batch in stream.batches():
            for event in batch:
                if isinstance(event, Gap):
                    tally.fail(f"messages were lost: {event.reason or 'no reason given'}")
                    return
                tally.deliver(received)
                received += 1
    except CableError as error:
        tally.fail(str(error))
