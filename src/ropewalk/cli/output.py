"""Standard output whose errors have a type of their own, so that no command takes them for those of its files or its server."""

import io
import os
import sys


class OutputFailed(Exception):
    """Standard output cannot be written to. No OSError, for commands catch those of what they read."""


class ReaderLeft(OutputFailed):
    """Whoever read the output has gone (`ropewalk tail … | head`)."""


class _Output(io.FileIO):
    def write(self, data: "bytes | bytearray | memoryview", /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BrokenPipeError as error:
            raise ReaderLeft(f"standard output: {error}") from error
        except OSError as error:
            raise OutputFailed(f"standard output: {error}") from error


def watch() -> None:
    """From now on standard output fails with `OutputFailed`. Nothing is done to one that is closed or is not the process's."""
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
    """Lead what is buffered, and what may still come, nowhere: it must not fail once more when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
