"""Standard input as it comes, for commands that pass it on."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from threading import Semaphore, Thread

CHUNK_BYTES = 65536  # of lines published in one request; JSON escapes make at most six times as much of it


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
