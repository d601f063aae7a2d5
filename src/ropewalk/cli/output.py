"""Standard output with errors of its own type, so that commands do not confuse them with errors of files or the server."""

import io
import os
import sys


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
