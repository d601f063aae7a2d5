"""Standard input and output of commands. Errors of standard output have a type of their own, so that commands do not confuse
them with errors of files or the server."""

import asyncio
import io
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from threading import Semaphore, Thread

from ropewalk.model.errors import UserMistake

LINE_SECONDS = 30.0


class ProgressLine:
    """Progress of long work: on a terminal a line that is updated, elsewhere a line at intervals. Short work prints nothing.

    Call it with the work done and the total. `words` makes the line.
    """

    def __init__(self, words: Callable[[int, int], str]) -> None:
        self._words = words
        self._terminal = sys.stderr.isatty()
        self._every = 0.5 if self._terminal else LINE_SECONDS
        self._printed_at = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._printed_at < self._every:
            return
        self._printed_at = time.monotonic()
        self._shown = True
        text = self._words(done, total)
        self._print(f"\r{text}\033[K" if self._terminal else f"{text}\n")

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown:
            self._print("\r\033[K")

    @staticmethod
    def _print(text: str) -> None:
        with suppress(OSError):  # the work continues without its progress line
            print(text, end="", file=sys.stderr, flush=True)


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


class OutputFailed(Exception):
    """Standard output cannot be written to. Not an OSError: commands catch those of their files."""


class ReaderLeft(OutputFailed):
    """The reader of the output has exited (`ropewalk tail … | head`)."""


class _Output(io.FileIO):
    def write(self, data: "bytes | bytearray | memoryview", /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise ReaderLeft(f"standard output: {error}") from error
        except OSError as error:
            raise OutputFailed(f"standard output: {error}") from error


def watch() -> None:
    """Make standard output fail with `OutputFailed`. Without effect if it is closed or replaced."""
    given = sys.stdout
    if given is None or given is not sys.__stdout__ or not isinstance(given, io.TextIOWrapper):
        return
    given.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Output(given.fileno(), "w", closefd=False)),
        encoding=given.encoding,
        errors=given.errors,
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )


def finish() -> None:
    """Write out what is still buffered. Raises OutputFailed."""
    if sys.stdout is not None:
        sys.stdout.flush()


def abandon() -> None:
    """Discard buffered and further output, so that it does not fail again when Python exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
