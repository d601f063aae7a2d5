"""`ropewalk push`: sends bytes to a key of a running server over TCP, and prints the positions they got."""

import argparse
import asyncio
import os
import sys

from ropewalk.app.keys import keys_of
from ropewalk.app.settings import load
from ropewalk.cli.reaching import add_flags, explained, url_of
from ropewalk.cli.standard_input import chunks, require_data
from ropewalk.client import Pusher
from ropewalk.protocol.broky.frames import Format

SUMMARY = "send messages to a running server over TCP"

MOST_MESSAGES, MOST_BYTES = 500, 256 * 1024
"""Of one run."""


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    require_data(wanted.data, wanted.lines, "push")
    token = wanted.token if wanted.token is not None else keys_of(load([], os.environ)).api or ""
    with explained():
        asyncio.run(_push(wanted, url_of(wanted.url), token))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk push", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("key", metavar="KEY", help="the key, which is the stream")
    parser.add_argument("data", metavar="DATA", nargs="?", help="the message; - reads it from standard input, as bytes")
    add_flags(parser)
    parser.add_argument(
        "--token", help="the key for publishing; by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET"
    )
    parser.add_argument("--json", action="store_true", help="the messages are JSON, and shown as such to other clients")
    parser.add_argument("--key_partition", "--key-partition", default="", help="what decides the shard; the key by default")
    parser.add_argument("--lines", action="store_true", help="push each line of standard input as it comes")
    return parser


async def _push(wanted: argparse.Namespace, url: str, token: str) -> None:
    async with Pusher(url, token, ca_file=wanted.ca_file) as pusher:
        if not wanted.lines:
            payload = sys.stdin.buffer.read() if wanted.data == "-" else wanted.data.encode()
            await _send(pusher, wanted, [payload])
            return
        rest = b""
        async for chunk in chunks(sys.stdin.fileno()):
            *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
            run: list[bytes] = []
            for line in lines:
                if line.strip():
                    if len(run) == MOST_MESSAGES or sum(map(len, run)) + len(line) > MOST_BYTES:
                        await _send(pusher, wanted, run)
                        run = []
                    run.append(line)
            if run:
                await _send(pusher, wanted, run)


async def _send(pusher: Pusher, wanted: argparse.Namespace, payloads: list[bytes]) -> None:
    format = Format.JSON if wanted.json else Format.BYTES
    first = await pusher.push(wanted.key.encode(), payloads, format=format, key_partition=wanted.key_partition.encode())
    for place in range(len(payloads)):
        position = f" epoch={first.epoch} offset={first.offset + place}" if first.offset else ""
        print(f"{wanted.key}{position}")
    sys.stdout.flush()
