"""`ropewalk bench`: puts a small load on a running server and says how fast messages come through.

Its subscribers share one process, so the figures are of client and server together; `make bench` measures the server alone.
"""

import argparse
import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from secrets import token_hex

import uvloop
from picows import WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect
from yarl import URL

from ropewalk.app.keys import keys_of
from ropewalk.app.settings import load
from ropewalk.cli import bench_tcp
from ropewalk.cli.bench_plan import OPENING_AT_ONCE, TIMEOUT, BenchPlan, BenchTally, SendBatch, drive, outcome, report
from ropewalk.cli.reaching import add_flags, explained, key_help, url_of
from ropewalk.client import Draft, KeyRefused, NoAnswer, Publisher
from ropewalk.client.addresses import addresses, is_tcp
from ropewalk.client.errors import STREAM_MAY_BE_AWAY
from ropewalk.client.identifiers import public, signed
from ropewalk.client.tls import connection_error, tls_context
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import RopewalkError, Unavailable, UserMistake
from ropewalk.ports import Clock
from ropewalk.protocol.client_commands import SUBPROTOCOL, encode
from ropewalk.protocol.server_messages import Data, Goodbye, SubscriptionConfirmed, SubscriptionRefused, Welcome, decode

SUMMARY = "measure deliveries and latency of a running server"


class Subscriber(WSListener):
    """One connection that subscribes and counts."""

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
        raise UserMistake("--rate must not be negative; 0 is as fast as the server answers")
    url = url_of(given.url)
    stream = given.stream or f"bench-{token_hex(4)}"
    if given.signed_stream and not given.stream:
        raise UserMistake("--signed-stream needs --stream too: that is where messages are published")
    tcp = given.tcp or is_tcp(url)
    if given.in_flight > 1 and not tcp:
        raise UserMistake("--in_flight is for --tcp: over HTTP the order of requests that are under way together is not kept")
    return BenchPlan(
        url=url,
        ca_file=given.ca_file,
        token=given.token,
        key=given.key if given.key is not None else keys_of(load([], os.environ)).api or "",
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
    parser.add_argument("--tcp", action="store_true", help="over TCP, publishing and subscribing; also by a tcp:// address")
    parser.add_argument("--subscribers", type=int, default=100, help="connections that subscribe; %(default)s by default")
    parser.add_argument("--messages", type=int, default=1000, help="messages to publish; %(default)s by default")
    parser.add_argument("--batch", type=int, default=1, help="messages in one request; %(default)s by default")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second; by default the next one follows the answer")
    parser.add_argument(
        "--in_flight", "--in-flight", type=int, default=1, help="with --tcp, requests that are under way at once; 1 by default"
    )
    parser.add_argument(
        "--size", type=int, default=100, help="length of a message's text, or of its bytes over TCP; %(default)s by default"
    )
    parser.add_argument("--stream", default="", help="a stream that nobody else publishes to; a new name by default")
    parser.add_argument(
        "--signed-stream", "--signed_stream", default="", help="the signed name of --stream, where streams are not public"
    )
    parser.add_argument("--token", default="", help="a JWT to connect with")
    parser.add_argument("--key", help="bearer key of the API; by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET")
    return parser


async def _measure(plan: BenchPlan, clock: Clock) -> BenchTally:
    tally = BenchTally(plan, clock)
    opened = bench_tcp.opened if plan.tcp else _opened
    async with opened(plan, tally) as send:
        await drive(plan, tally, clock, send)
    return tally


@asynccontextmanager
async def _opened(plan: BenchPlan, tally: BenchTally) -> AsyncIterator[SendBatch]:
    """With every subscriber there."""
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
    slots = asyncio.Semaphore(OPENING_AT_ONCE)
    tls = tls_context(plan.ca_file)
    place = addresses(plan.url).cable
    # pings would be counted by nobody and cost both sides
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
