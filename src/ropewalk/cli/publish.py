"""`ropewalk publish`: sends publications to a running server and prints their positions.

Publications have a uid, so that a retry after a lost response never registers them twice.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator

import msgspec
from msgspec import Raw

from ropewalk.app.keys import derive_keys
from ropewalk.app.settings import load
from ropewalk.cli.output import chunks, require_data
from ropewalk.cli.reaching import add_attempts, add_flags, add_misnamed_key, attempts_of, explained, key_help, url_of
from ropewalk.client import Draft, KeyRefused, PublicationRefused, Publisher, PublishError, Receipt
from ropewalk.model.errors import UserMistake
from ropewalk.model.nesting import TOO_DEEP, is_too_deep

SUMMARY = "send publications to a running server"

BATCH = 500
PROGRESS_EVERY = 1000


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args(argv)
    require_data(wanted.data, wanted.lines, "publish")
    key = wanted.key if wanted.key is not None else derive_keys(load([], os.environ)).api or ""
    try:
        with explained():
            asyncio.run(_publish(wanted, url_of(wanted.url), key))
    except KeyRefused as error:
        raise UserMistake(f"{error}; {key_help('--key', wanted.key)}") from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk publish", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("stream", metavar="STREAM", help="the stream's name")
    parser.add_argument("data", metavar="DATA", nargs="?", help="JSON, or any other text; - reads it from standard input")
    add_flags(parser)
    add_attempts(parser)
    parser.add_argument("--key", help="bearer key of the API; by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET")
    add_misnamed_key(parser, "--token", "--key")
    parser.add_argument("--uid", default="", help="idempotency key, for safe retries; with --lines, U:1 is line 1")
    parser.add_argument("--transient", action="store_true", help="deliver it without a position and do not keep it")
    parser.add_argument(
        "--partition_key", "--partition-key", default="", help="decides the shard of the stream; its name by default"
    )
    parser.add_argument("--lines", action="store_true", help="publish each line of standard input as it arrives")
    return parser


async def _publish(wanted: argparse.Namespace, url: str, key: str) -> None:
    async with Publisher(url, key, ca_file=wanted.ca_file, attempts=attempts_of(wanted)) as publisher:
        if not wanted.lines:
            text = _text(sys.stdin.buffer.read(), "standard input") if wanted.data == "-" else wanted.data
            try:
                receipts = await publisher.publish_batch([_draft(wanted, text, wanted.uid)])
            except PublicationRefused as error:
                raise PublishError(f"the message was refused: {error.reason}") from error
            _show(receipts)
            return
        sent = 0
        async for batch in _batches(wanted):
            _show(await publisher.publish_batch(batch))
            sent += len(batch)
            if sent // PROGRESS_EVERY > (sent - len(batch)) // PROGRESS_EVERY:
                print(f"{sent} published", file=sys.stderr)


async def _batches(wanted: argparse.Namespace) -> AsyncIterator[list[Draft]]:
    """Batches of a bounded size from the lines so far: a slow pipe is sent line by line, a fast one in batches."""
    number = 0
    rest = b""
    async for chunk in chunks(sys.stdin.fileno()):
        *lines, rest = (rest + chunk).split(b"\n") if chunk else (rest, b"")
        drafts = []
        for line in lines:
            number += 1
            if line.strip():
                text = _text(line, f"line {number} of standard input")
                drafts.append(_draft(wanted, text, f"{wanted.uid}:{number}" if wanted.uid else ""))
        for batch in _cut(drafts):
            yield batch


def _text(data: bytes, place: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UserMistake(f"{place} is not UTF-8 text: convert it with iconv or base64") from None


def _cut(drafts: list[Draft]) -> Iterator[list[Draft]]:
    for start in range(0, len(drafts), BATCH):
        yield drafts[start : start + BATCH]


def _draft(wanted: argparse.Namespace, text: str, uid: str) -> Draft:
    kept_uid = "" if wanted.transient else uid
    return Draft(wanted.stream, _json_or_text(text), kept_uid, wanted.transient, partition_key=wanted.partition_key)


def _json_or_text(text: str) -> Raw | str:
    """JSON is sent unchanged, so that numbers stay exact; any other text becomes a JSON string."""
    if is_too_deep(text):
        raise UserMistake(f"a message is {TOO_DEEP}, which the server refuses")
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if text.lstrip().startswith(("{", "[")):
            print(f"the message looks like JSON and is not ({error}); it is sent as text", file=sys.stderr)
        return text.rstrip("\r\n")
    return Raw(text.strip())


def _show(receipts: list[Receipt]) -> None:
    for receipt in receipts:
        position = f" epoch={receipt.epoch} offset={receipt.offset}" if receipt.offset else " transient"
        print(f"{receipt.stream}{position}{' duplicate' if receipt.duplicate else ''}")
    sys.stdout.flush()
