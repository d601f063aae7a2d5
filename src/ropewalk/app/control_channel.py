"""What a supervisor and its children say to each other: lines of JSON over one socket a child.

A child says `Ready` or `Failed` once, and `Alive` whenever it is asked. The supervisor says which `ProcessOrder` a child has to
follow. The end of the channel tells the child that the supervisor is gone, however that ended.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from enum import StrEnum

import msgspec

_READ_BYTES = 64 * 1024


class ProcessOrder(StrEnum):
    STOP = "stop"
    SERVER_ENDS = "server_ends"
    """Said before `STOP` where the server ends and not only this process."""
    STOP_LISTENING = "stop_listening"
    """Accept no more connections, and serve those that are there."""
    RELOAD = "reload"
    """Read the settings again, as on SIGHUP."""
    ANSWER = "answer"
    """Say `Alive`, from the event loop."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It serves."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot start, by a mistake of the user."""

    reason: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Its event loop turns."""


Word = Ready | Failed | Alive | ProcessOrder


class ControlChannel:
    """One end of it. `watch` in the event loop, then `close`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unread = b""
        self._heard: Callable[[Word], None] = lambda word: None
        self._ended: Callable[[], None] = lambda: None
        sock.setblocking(False)

    def say(self, word: Word) -> None:
        """Lost where nobody is at the other end any more, which is noticed by other means."""
        with contextlib.suppress(OSError):
            self._sock.send(msgspec.json.encode(word) + b"\n")

    def watch(self, heard: Callable[[Word], None], ended: Callable[[], None]) -> None:
        self._heard, self._ended = heard, ended
        asyncio.get_running_loop().add_reader(self._sock, self._read)

    def close(self) -> None:
        """What was said until now is heard."""
        asyncio.get_running_loop().remove_reader(self._sock)
        while self._take():
            pass
        self._sock.close()

    def _read(self) -> None:
        if self._take() is False:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._ended()

    def _take(self) -> bool | None:
        """False at the end of the channel, None when there is nothing now."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._heard(msgspec.json.decode(line, type=Word))
        return bool(data)
