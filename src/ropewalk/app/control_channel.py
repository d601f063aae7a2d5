"""The channel between a supervisor and each of its child processes: lines of JSON over a socket pair.

A child sends `Ready` or `Failed` once, and `Alive` for each `PING`. The supervisor sends `ProcessCommand`s. The channel closes
when the supervisor ends for any reason: then workers exit at once, and the store exits last, after it has sealed the journal.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from ropewalk.app.process_role import ProcessKind, Role

if TYPE_CHECKING:
    from ropewalk.app.server import Server

logger = logging.getLogger("ropewalk.server")

_READ_BYTES = 64 * 1024


class ProcessCommand(StrEnum):
    STOP = "stop"
    SERVER_ENDS = "server_ends"
    """Sent before `STOP` if the whole server ends, not only this process."""
    STOP_LISTENING = "stop_listening"
    """Accept no more connections, but serve the open ones."""
    RELOAD = "reload"
    """Read the settings again, as on SIGHUP."""
    PING = "ping"
    """Answer with `Alive`, from the event loop."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process serves."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The process cannot start because of a user mistake."""

    reason: str


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The event loop of the process runs."""


ControlMessage = Ready | Failed | Alive | ProcessCommand


class ControlChannel:
    """One end of the channel. Call `watch` in the event loop, then `close`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unread = b""
        self._received: Callable[[ControlMessage], None] = lambda message: None
        self._ended: Callable[[], None] = lambda: None
        sock.setblocking(False)

    def send(self, message: ControlMessage) -> None:
        """Discarded if the other end is closed, which is detected elsewhere."""
        with contextlib.suppress(OSError):
            self._sock.send(msgspec.json.encode(message) + b"\n")

    def watch(self, received: Callable[[ControlMessage], None], ended: Callable[[], None]) -> None:
        self._received, self._ended = received, ended
        asyncio.get_running_loop().add_reader(self._sock, self._read)

    def close(self) -> None:
        """Pending messages are still received."""
        asyncio.get_running_loop().remove_reader(self._sock)
        while self._take():
            pass
        self._sock.close()

    def _read(self) -> None:
        if self._take() is False:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._ended()

    def _take(self) -> bool | None:
        """False at the end of the channel, None without a message."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._received(msgspec.json.decode(line, type=ControlMessage))
        return bool(data)


# --- the child process -----------------------------------------------------------------------------------------------

ORPHAN_SECONDS = 5.0
"""How long an orphaned store waits for the workers to end."""


class Supervised:
    """Connects a child process to its supervisor: `attach`, then `ready` or `failed`, and finally `detach`."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._channel = ControlChannel(socket.socket(fileno=role.control))
        self._orphaned = False

    def attach(self, server: "Server") -> None:
        def received(message: ControlMessage) -> None:
            if message is ProcessCommand.STOP:
                server.leave()
            elif message is ProcessCommand.SERVER_ENDS:
                server.ends_for_good()
            elif message is ProcessCommand.STOP_LISTENING:
                server.stop_listening()
            elif message is ProcessCommand.RELOAD:
                server.reload()
            elif message is ProcessCommand.PING:
                self._channel.send(Alive())

        def orphaned() -> None:
            logger.error("the supervisor is gone; stopping")
            self._orphaned = True
            if self._role.kind is not ProcessKind.STORE:
                os._exit(1)
            self._outlive_workers(server)

        self._channel.watch(received, orphaned)

    def ready(self) -> None:
        self._channel.send(Ready())

    def failed(self, reason: str) -> None:
        self._channel.send(Failed(reason))

    def detach(self) -> None:
        if self._orphaned and self._role.kind is ProcessKind.STORE:
            shutil.rmtree(self._role.directory, ignore_errors=True)  # no other process is left to do it

    def _outlive_workers(self, server: "Server") -> None:
        loop, others = asyncio.get_running_loop(), self._role.others
        os.set_blocking(others, False)

        def alone() -> None:
            loop.remove_reader(others)
            server.leave()

        loop.add_reader(others, alone)  # never written to: readable once all its writers have ended
        loop.call_later(ORPHAN_SECONDS, server.leave)
