"""`ropewalk bench`: puts a small load on a running server and says how fast messages come through.

Its subscribers share one process, so the figures are of client and server together; `make bench` measures the server alone.
"""

import argparse
import asyncio
import os
import resource
import ssl
import statistics
import time
from secrets import token_hex

import uvloop
from msgspec import Struct
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from yarl import URL

from ropewalk.app.keys import keys_of
from ropewalk.app.settings import load
from ropewalk.cli.reaching import add_flags, explained, url_of
from ropewalk.client import CertificateUntrusted, Draft, Publisher, Unreachable
from ropewalk.client.addresses import addresses
from ropewalk.client.identifiers import public, signed
from ropewalk.client.trust import trust
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import RopewalkError, Unavailable, UserMistake
from ropewalk.ports import Clock
from ropewalk.protocol.client_commands import SUBPROTOCOL, encode
from ropewalk.protocol.server_messages import Data, Goodbye, SubscriptionConfirmed, SubscriptionRefused, Welcome, decode

SUMMARY = "measure deliveries and latency of a running server"
OPENING_AT_ONCE = 100
TIMEOUT = 30.0


class BenchPlan(Struct, frozen=True):
    """What was asked for, checked."""

    url: str
    ca_file: str
    cable: str
    stream: str
    identifier: str
    key: str
    subscribers: int
    messages: int
    batch: int
    rate: float
    size: int


def _outcome() -> asyncio.Future[None]:
    """A future that may fail unseen: the first failure ends the run, and the others say the same."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
    return outcome


class BenchTally:
    """When each message was sent, and when the last subscriber had it."""

    def __init__(self, plan: BenchPlan, clock: Clock) -> None:
        self._clock = clock
        self._missing = [plan.subscribers] * plan.messages
        self.sent = [0.0] * plan.messages
        self.complete = [0.0] * plan.messages
        self.deliveries = 0
        self.ended = _outcome()

    def deliver(self, message: int) -> None:
        if message >= len(self._missing):
            self.fail("somebody else publishes to this stream; choose another with --stream")
            return
        self.deliveries += 1
        self._missing[message] -= 1
        if not self._missing[message]:
            self.complete[message] = self._clock()
            # each subscriber gets them in order, so the last message is also the last to be complete
            if message == len(self._missing) - 1 and not self.ended.done():
                self.ended.set_result(None)

    def fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(Unavailable(why))


class Subscriber(WSListener):
    """One connection that subscribes and counts."""

    def __init__(self, plan: BenchPlan, tally: BenchTally) -> None:
        super().__init__()
        self._identifier = plan.identifier
        self._tally = tally
        self._received = 0
        self.ready = _outcome()

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
                self._refuse(f"the server ended a connection: {reason}; --token brings a token that it knows", UserMistake)
            case Goodbye(reason):
                self._refuse(f"the server ended a connection: {reason}")

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._refuse("the server ended a connection")

    def _refuse(self, why: str, kind: type[RopewalkError] = Unavailable) -> None:
        if not self.ready.done():
            self.ready.set_exception(kind(why))
        self._tally.fail(why)


def run(argv: list[str], clock: Clock = time.monotonic) -> int:
    plan = _plan(argv)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and plan.subscribers + 100 > hard:
        raise UserMistake(f"{plan.subscribers} subscribers need more open files than the limit of {hard}; raise `ulimit -n`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(_report(plan, uvloop.run(_measure(plan, clock))))
    return 0


def _plan(argv: list[str]) -> BenchPlan:
    given = _parser().parse_args(argv)
    for name in ("subscribers", "messages", "batch", "size"):
        if getattr(given, name) < 1:
            raise UserMistake(f"--{name} must be at least 1")
    if given.rate < 0:
        raise UserMistake("--rate must not be negative; 0 is as fast as the server answers")
    url = url_of(given.url)
    cable = URL(addresses(url).cable)
    stream = given.stream or f"bench-{token_hex(4)}"
    if given.signed_stream and not given.stream:
        raise UserMistake("--signed-stream needs --stream too: that is where messages are published")
    return BenchPlan(
        url=url,
        ca_file=given.ca_file,
        # pings would be counted by nobody and cost both sides
        cable=str(cable.update_query({"pi": "0"} | ({"jid": given.token} if given.token else {}))),
        stream=stream,
        identifier=signed(given.signed_stream) if given.signed_stream else public(stream),
        key=given.key if given.key is not None else keys_of(load([], os.environ)).api or "",
        subscribers=given.subscribers,
        messages=given.messages,
        batch=given.batch,
        rate=given.rate,
        size=given.size,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk bench", description=SUMMARY, allow_abbrev=False)
    add_flags(parser)
    parser.add_argument("--subscribers", type=int, default=100, help="connections that subscribe; %(default)s by default")
    parser.add_argument("--messages", type=int, default=1000, help="messages to publish; %(default)s by default")
    parser.add_argument("--batch", type=int, default=1, help="messages in one request; %(default)s by default")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; by default the next one follows the answer")
    parser.add_argument("--size", type=int, default=100, help="length of a message's text; %(default)s by default")
    parser.add_argument("--stream", default="", help="a stream that nobody else publishes to; a new name by default")
    parser.add_argument(
        "--signed-stream", "--signed_stream", default="", help="the signed name of --stream, where streams are not public"
    )
    parser.add_argument("--token", default="", help="a JWT to connect with")
    parser.add_argument("--key", help="bearer key of the API; by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET")
    return parser


async def _measure(plan: BenchPlan, clock: Clock) -> BenchTally:
    tally = BenchTally(plan, clock)
    with explained():
        links = await _open(plan, tally)
    try:
        async with Publisher(plan.url, plan.key, ca_file=plan.ca_file) as publisher:
            await _publish(plan, tally, publisher, clock)
        await asyncio.wait_for(tally.ended, TIMEOUT)
    except TimeoutError:
        missing = plan.subscribers * plan.messages - tally.deliveries
        raise Unavailable(f"{missing} deliveries did not come within {TIMEOUT:g} seconds") from None
    finally:
        for link in links:
            link.disconnect()
    return tally


async def _open(plan: BenchPlan, tally: BenchTally) -> list[WSTransport]:
    slots = asyncio.Semaphore(OPENING_AT_ONCE)
    tls = trust(plan.ca_file)
    place = str(URL(plan.cable).with_query(None))

    async def one() -> WSTransport:
        async with slots:
            transport, subscriber = await ws_connect(
                lambda: Subscriber(plan, tally),
                plan.cable,
                ssl_context=tls,
                extra_headers={"Sec-WebSocket-Protocol": SUBPROTOCOL},
            )
            assert isinstance(subscriber, Subscriber)
            await asyncio.wait_for(subscriber.ready, TIMEOUT)
            return transport

    try:
        return await asyncio.gather(*(one() for _ in range(plan.subscribers)))
    except ssl.SSLCertVerificationError as error:
        raise CertificateUntrusted(place, error) from error
    except (OSError, WSError) as error:
        raise Unreachable(f"{place} cannot be reached: {error}") from error
    except TimeoutError:
        raise Unavailable(f"the server did not answer within {TIMEOUT:g} seconds") from None


async def _publish(plan: BenchPlan, tally: BenchTally, publisher: Publisher, clock: Clock) -> None:
    started = clock()
    for request, first in enumerate(range(0, plan.messages, plan.batch)):
        if plan.rate:
            await asyncio.sleep(max(0.0, started + request / plan.rate - clock()))
        numbers = range(first, min(first + plan.batch, plan.messages))
        drafts = [Draft(plan.stream, {"n": number, "text": "x" * plan.size}) for number in numbers]
        tally.sent[first : first + len(numbers)] = [clock()] * len(numbers)
        await publisher.publish_batch(drafts)


def _report(plan: BenchPlan, tally: BenchTally) -> str:
    seconds = tally.complete[-1] - tally.sent[0]
    latencies = sorted((end - start) * 1000 for start, end in zip(tally.sent, tally.complete, strict=True))
    lines = (
        f"{plan.messages} messages to {plan.subscribers} subscribers in {seconds:.2f} s, every one delivered",
        f"deliveries/s   {tally.deliveries / seconds:,.0f}",
        f"latency p50    {statistics.median(latencies):.2f} ms   (publish to last subscriber)",
        f"latency p99    {latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)]:.2f} ms",
    )
    return "\n".join(lines)
