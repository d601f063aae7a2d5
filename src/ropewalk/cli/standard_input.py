"""Standard input as it comes, for commands that pass it on."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from threading import Semaphore, Thread

from ropewalk.model.errors import UserMistake

CHUNK_BYTES = 65536  # of lines published in one request; JSON escapes make at most six times as much of it


def require_data(data: str | None, lines: bool, verb: str) -> None:
    """Raises UserMistake where it is not clear what to send: one message, or each line of standard input."""
    if lines and data not in ("-", None):
        raise UserMistake("--lines reads standard input: leave DATA away, or write - for it")
    if data is None and not lines:
        raise UserMistake(f"DATA is missing: write it, or - to read standard input, or --lines to {verb} each line of it")


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Bytes as they come, and b"" at the end. Read by a daemon thread, so that a silent pipe does not hold up the exit."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = Semaphore(2)  # no more than these are read ahead
    loop = asyncio.get_running_loop()

    def read() -> None:
        chunk = b"begin"
        with suppress(RuntimeError):  # nobody listens any more
            while chunk:
                wanted.acquire()
                chunk = os.read(descriptor, CHUNK_BYTES)
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)

    Thread(target=read, daemon=True).start()
    while chunk := await arrived.get():
        wanted.release()
        yield chunk
    yield b""
