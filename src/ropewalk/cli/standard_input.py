"""Standard input as a stream of chunks, for commands that send it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from threading import Semaphore, Thread

from ropewalk.model.errors import UserMistake

CHUNK_BYTES = 65536  # of lines published in one request; JSON escapes take at most six times as much


def require_data(data: str | None, lines: bool, verb: str) -> None:
    """Raises UserMistake unless exactly one source is given: one message, or the lines of standard input."""
    if lines and data not in ("-", None):
        raise UserMistake("--lines reads standard input: omit DATA, or pass - for it")
    if data is None and not lines:
        raise UserMistake(f"DATA is missing: pass it, or - to read standard input, or --lines to {verb} each line of it")


async def chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yields bytes as they arrive, and b"" at the end. A daemon thread reads them, so that an idle pipe does not delay exit."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue()
    wanted = Semaphore(2)  # chunks that are read ahead
    loop = asyncio.get_running_loop()

    def read() -> None:
        chunk = b"begin"
        with suppress(RuntimeError):  # the event loop is closed
            while chunk:
                wanted.acquire()
                chunk = os.read(descriptor, CHUNK_BYTES)
                loop.call_soon_threadsafe(arrived.put_nowait, chunk)

    Thread(target=read, daemon=True).start()
    while chunk := await arrived.get():
        wanted.release()
        yield chunk
    yield b""
