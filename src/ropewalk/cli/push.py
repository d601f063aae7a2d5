"""`ropewalk push`: sends bytes to a key of a running server over TCP, and prints their positions.

Lines are pipelined; positions are printed in the order of the lines.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator

from ropewalk.app.keys import derive_keys
from ropewalk.app.settings import load
from ropewalk.cli.output import chunks, require_data
from ropewalk.cli.reaching import add_attempts, add_flags, add_misnamed_key, attempts_of, explained, key_help, url_of
from ropewalk.client import Format, KeyRefused, Position, PublicationRefused, PublishError, Pusher
from ropewalk.client.identifiers import parse_key
from ropewalk.model.errors import RopewalkError, UserMistake
from ropewalk.protocol.broky.texts import encode_text

SUMMARY = "send messages to a running server over TCP"

MAX_RUN_MESSAGES, MAX_RUN_BYTES = 500, 256 * 1024

MAX_PENDING_RUNS = 16
"""Unanswered runs at which reading pauses."""

NumberedLine = tuple[int, bytes]
"""A line with its number in the input."""

PendingRuns = asyncio.Queue[tuple[list[NumberedLine], asyncio.Task[Position]] | PublishError | None]
"""Ends with None after the last line, or with the error of a line that cannot be pushed."""


class PushProgress:
    """The numbers of the last registered line and of the last sent one."""

    def __init__(self) -> None:
        self.registered = self.sent = 0

    def __str__(self) -> str:
        done = f"lines 1 to {self.registered} are registered" if self.registered else "no line is known to be registered"
        more = f"; later ones up to {self.sent} were sent and may be registered" if self.sent > self.registered else ""
        return f"{done}{more}"


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    require_data(wanted.data, wanted.lines, "push")
    parse_key(wanted.key)  # before anything is read or sent
    parse_key(wanted.key_partition)
    token = wanted.token if wanted.token is not None else derive_keys(load([], os.environ)).api or ""
    progress = PushProgress()
    try:
        with explained():
            asyncio.run(_push(wanted, url_of(wanted.url), token, progress))
    except KeyRefused as error:
        raise UserMistake(f"{error}; {key_help('--token', wanted.token)}") from error
    except (RopewalkError, KeyboardInterrupt):
        if wanted.lines:
            print(progress, file=sys.stderr)
        raise
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk push", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("key", metavar="KEY", help="the key, by its stream name")
    parser.add_argument("data", metavar="DATA", nargs="?", help="the message; - reads it from standard input, as bytes")
    add_flags(parser)
    add_attempts(parser)
    parser.add_argument(
        "--token", help="the key for publishing; by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET"
    )
    add_misnamed_key(parser, "--key", "--token")
    parser.add_argument("--json", action="store_true", help="the messages are JSON; WebSocket clients receive them as JSON")
    parser.add_argument("--key_partition", "--key-partition", default="", help="decides the shard; the key by default")
    parser.add_argument("--lines", action="store_true", help="push each line of standard input as it arrives")
    return parser


async def _push(wanted: argparse.Namespace, url: str, token: str, progress: PushProgress) -> None:
    async with Pusher(url, token, ca_file=wanted.ca_file, attempts=attempts_of(wanted)) as pusher:
        if wanted.lines:
            await _push_lines(pusher, wanted, progress)
            return
        payload = sys.stdin.buffer.read() if wanted.data == "-" else wanted.data.encode()
        try:
            first = await _send(pusher, wanted, [payload])
        except PublicationRefused as error:
            raise PublishError(f"the message was refused: {error.reason}") from error
        _show(wanted.key, 1, first)


async def _push_lines(pusher: Pusher, wanted: argparse.Namespace, progress: PushProgress) -> None:
    """Stops at the first line that fails."""
    pending: PendingRuns = asyncio.Queue(MAX_PENDING_RUNS)
    reading = asyncio.create_task(_read_and_send(pusher, wanted, pending, progress))
    tasks = [reading, asyncio.create_task(_show_all(wanted.key, pending, progress))]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in rest:
        task.cancel()
    for task in done:
        task.result()


async def _read_and_send(pusher: Pusher, wanted: argparse.Namespace, pending: PendingRuns, progress: PushProgress) -> None:
    async for lines, mistake in _lines(wanted.json):
        for run in _runs(lines):
            payloads = [line for _, line in run]
            push = asyncio.create_task(_send(pusher, wanted, payloads))
            push.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # only the first failure is reported
            progress.sent = run[-1][0]
            await pending.put((run, push))
        if mistake is not None:
            await pending.put(mistake)
    await pending.put(None)


async def _lines(as_json: bool) -> AsyncIterator[tuple[list[NumberedLine], PublishError | None]]:
    """Yields lines with their numbers, and the error of the line after them, which ends the input.

    Lines are checked for JSON here: the server would refuse the whole run of an invalid line, after later runs were sent.
    """
    number = 0
    rest = b""
    async for chunk in chunks(sys.stdin.fileno()):
        *texts, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
        lines: list[NumberedLine] = []
        for text in texts:
            number += 1
            if not text.strip():
                continue
            try:
                if as_json:
                    encode_text(text, Format.JSON)
            except ValueError as error:
                yield lines, _refused(number, str(error))
                return
            lines.append((number, text))
        yield lines, None


async def _show_all(key: str, pending: PendingRuns, progress: PushProgress) -> None:
    while (item := await pending.get()) is not None:
        if isinstance(item, PublishError):
            raise item
        run, answer = item
        try:
            first = await answer
        except PublicationRefused as error:
            raise _refused(run[min(error.index, len(run) - 1)][0], error.reason) from error
        _show(key, len(run), first)
        progress.registered = run[-1][0]


def _refused(number: int, reason: str) -> PublishError:
    return PublishError(f"line {number} was refused: {reason}")


def _runs(lines: list[NumberedLine]) -> Iterator[list[NumberedLine]]:
    run: list[NumberedLine] = []
    size = 0
    for line in lines:
        length = len(line[1])
        if run and (len(run) == MAX_RUN_MESSAGES or size + length > MAX_RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(line)
        size += length
    if run:
        yield run


async def _send(pusher: Pusher, wanted: argparse.Namespace, payloads: list[bytes]) -> Position:
    format = Format.JSON if wanted.json else Format.BYTES
    return await pusher.push(wanted.key, payloads, format=format, key_partition=wanted.key_partition)


def _show(key: str, count: int, first: Position) -> None:
    for place in range(count):
        position = f" epoch={first.epoch} offset={first.offset + place}" if first.offset else " transient"
        print(f"{key}{position}")
    sys.stdout.flush()
