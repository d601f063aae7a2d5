"""`ropewalk tail`: prints the messages of streams as they arrive, with their positions. Gaps go to standard error."""

import argparse
import asyncio
import select
import sys
import time
from typing import Never

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ropewalk.app.settings.declare import DURATION
from ropewalk.cli import output
from ropewalk.cli.reaching import add_flags, count, explained, token_help, url_of
from ropewalk.client import (
    AlreadySubscribed,
    BrokyMessage,
    Client,
    Disconnected,
    Format,
    Gap,
    Message,
    Position,
    Stream,
    SubscriptionRejected,
    TokenExpired,
    Unauthorized,
    connect,
)
from ropewalk.client.addresses import is_tcp
from ropewalk.core.signatures import unverified_name
from ropewalk.model.errors import UserMistake
from ropewalk.model.history import GapReason
from ropewalk.protocol.broky import codec
from ropewalk.protocol.broky.ksuid import ksuid_text
from ropewalk.protocol.stream_keys import decode_key

SUMMARY = "print the messages of streams as they arrive"

BEGINNING = Position("", 0)
MIN_UNIX_TIME = 1e8  # a bare number above this (1973) is a time, not a duration of three years
PIPE_CHECK_SECONDS = 0.5

NOT_SIGNED = "is the name signed with the secret of this server, and is --token a JWT, not a key for publishing?"
NOT_PUBLIC = "public streams need `--public` or `--public_streams` at the server, others --signed"
NO_PREFIXES = "start the server with `--public` or `--public_streams` to make its streams public"

FORBIDDEN = ("", codec.FORBIDDEN.text, codec.NOT_PUBLIC.text)
"""Reasons that need a hint. Over WebSocket there is none; over TCP other reasons include one."""


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    if wanted.prefix and wanted.signed:
        raise UserMistake("--prefix is for public streams: prefixes cannot be signed")
    url = url_of(wanted.url)
    if wanted.prefix and not is_tcp(url):
        raise UserMistake(f"--prefix needs TCP: use {_tcp_scheme(url)}:// in --url, not {url}")
    try:
        with explained():
            asyncio.run(_tail(wanted, url))
    except output.ReaderLeft:  # such as head
        output.abandon()
        return 0
    except SubscriptionRejected as error:
        raise UserMistake(_explain(error, wanted)) from error
    except Disconnected as error:
        if isinstance(error, Unauthorized | TokenExpired):
            raise UserMistake(f"{error}; {token_help(wanted.token)}") from error
        raise
    return 0


def _tcp_scheme(url: str) -> str:
    return "tls" if url.partition(":")[0] in ("https", "wss") else "tcp"


def _explain(error: SubscriptionRejected, wanted: argparse.Namespace) -> str:
    if error.reason not in FORBIDDEN:
        return str(error)
    return f"{error}: {NOT_SIGNED if wanted.signed else NO_PREFIXES if wanted.prefix else NOT_PUBLIC}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk tail", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("streams", metavar="STREAM", nargs="+", help="names of streams; signed names with --signed")
    add_flags(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--since", type=_moment, metavar="WHEN", help="start with messages since then: 10m or 600 ago, or a UNIX time"
    )
    start.add_argument("--from", type=count, metavar="OFFSET", dest="first", help="start at this offset; 1 is the oldest")
    start.add_argument(
        "--prefix", action="store_true", help="the names are prefixes: new messages of all such streams, over tcp:// only"
    )
    parser.add_argument("--token", default="", help="the JWT to connect with")
    parser.add_argument("--signed", action="store_true", help="the names are signed, by `ropewalk token stream`")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--count", type=count, metavar="N", help="stop after N messages")
    return parser


def _moment(text: str) -> float:
    try:
        seconds = DURATION.read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a duration, such as 90s, 10m, 1h or 90, or a UNIX time, not {text!r}"
        ) from None
    assert isinstance(seconds, float)
    return seconds if seconds > MIN_UNIX_TIME else time.time() - seconds


async def _tail(wanted: argparse.Namespace, url: str) -> None:
    async with connect(url, wanted.token, ca_file=wanted.ca_file) as client:
        page = Page(wanted.json, wanted.count)
        streams = {name: await _open(client, name, wanted) for name in dict.fromkeys(wanted.streams)}
        tasks = [
            asyncio.create_task(
                _follow(stream, page, wanted.first or 1, unverified_name(name) or "" if wanted.signed else name)
            )
            for name, stream in streams.items()
        ]
        tasks.append(asyncio.create_task(_watch_output()))
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in done:
            task.result()


async def _open(client: Client, name: str, wanted: argparse.Namespace) -> Stream:
    if wanted.prefix:
        try:
            return await client.subscribe(name, prefix=True)
        except AlreadySubscribed as error:
            raise UserMistake(f"{name!r} and another of these prefixes match the same streams: run another tail") from error
    # The beginning of the current epoch: all kept messages follow, after a gap notice if older ones are missing.
    position = BEGINNING if wanted.first else None
    subscribe = client.subscribe_signed if wanted.signed else client.subscribe
    return await subscribe(name, since=wanted.since, position=position)


async def _follow(stream: Stream, page: "Page", first: int, name: str) -> None:
    """Print messages until the page is full.

    Args:
        first: the first offset to print, in the epoch of the first message. Later epochs are printed from their beginning.
        name: the stream of messages that do not carry their own.
    """
    found: str | None = None
    async for event in stream:
        if isinstance(event, Message) and event.offset:
            found = found or event.epoch
        match event:
            case Message() if event.epoch == found and 0 < event.offset < first:
                continue
            case Message():
                page.show(event if event.stream else replace(event, stream=name))
            case Gap(resumes_at=onward) if found is not None or onward is None or onward > first:
                if event.known == BEGINNING and event.epoch is not None:
                    event = replace(event, known=Position(event.epoch, first - 1))  # messages before it were not asked for
                page.warn(event if event.stream else replace(event, stream=name))
        if page.full:
            return


async def _watch_output() -> Never:
    """Detects an exited reader also while nothing is written."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    while True:
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            raise output.ReaderLeft
        await asyncio.sleep(PIPE_CHECK_SECONDS)


class Page:
    """Prints messages, up to a number of them."""

    def __init__(self, as_json: bool, count: int | None) -> None:
        self._as_json = as_json
        self._left = count

    @property
    def full(self) -> bool:
        return self._left == 0

    def show(self, message: Message) -> None:
        if self.full:
            return
        if isinstance(message, BrokyMessage):
            message = _as_text(message)
        print(msgspec.json.encode(message).decode() if self._as_json else _line(message), flush=True)
        self._left = None if self._left is None else self._left - 1

    def warn(self, gap: Gap) -> None:
        lost = "messages lost" if gap.missed is None else f"{gap.missed} messages lost"
        if gap.epoch is None and gap.resumes_at is None and gap.reason != GapReason.DROPPED:
            lost = "messages may be missing"  # a gap without a position does not show whether there were messages
        place = "" if gap.epoch is None else f"epoch={gap.epoch} "  # otherwise the next message has it
        onward = "" if gap.resumes_at is None else f"; continues at {place}offset={gap.resumes_at}"
        print(f"gap in {gap.stream}: {lost} ({gap.reason or 'no reason given'}){onward}", file=sys.stderr, flush=True)


class ShownMessage(Message, frozen=True):
    """The JSON form of a message that arrived over TCP: as over WebSocket, with the fields of TCP. Missing fields are left
    out."""

    uid: str | UnsetType = UNSET
    ts_producer: int | UnsetType = UNSET
    ts_broker: int | UnsetType = UNSET
    key_partition: str | UnsetType = UNSET


def _as_text(message: BrokyMessage) -> ShownMessage:
    """Converts bytes as for WebSocket clients: a payload to base64, a uid to the text of a KSUID, a key to a name."""
    return ShownMessage(
        message.data if message.format is Format.JSON else {"$bytes": message.payload},
        message.stream,
        message.epoch,
        message.offset,
        message.type,
        message.replayed,
        ksuid_text(message.uid) if message.uid else UNSET,
        message.ts_producer or UNSET,
        message.ts_broker or UNSET,
        decode_key(message.key_partition) if message.key_partition else UNSET,
    )


def _line(message: Message) -> str:
    position = f"epoch={message.epoch} offset={message.offset}" if message.offset else "transient"
    return f"{message.stream or '-'} {position} {msgspec.json.encode(message.data).decode()}"
