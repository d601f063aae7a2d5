"""One client connection of the load, and what it does with each thing that arrives while it opens.

A link only reacts: the crowd owns the polling.
"""

import json
import socket
from enum import IntEnum

from benchmarks.load import wire


class Stage(IntEnum):
    """How far a link has come; a crowd waits until all its links have reached one of these."""

    UPGRADING = 0
    UPGRADED = 1
    WELCOMED = 2
    SUBSCRIBED = 3


class Link:
    """A WebSocket that subscribes to one stream, and after a resume keeps account of every offset."""

    def __init__(self, sock: socket.socket, stream: str, path: str, epoch: str = "", offset: int = 0) -> None:
        """With an epoch it asks for history, or resumes: it counts as subscribed only when all that follows its position
        has come."""
        self.sock = sock
        self.stream = stream
        self.path = path
        self.epoch = epoch
        self.offset = offset
        self.stage = Stage.UPGRADING
        self.buffer = b""
        self.last = b""
        self.sid = ""
        self.restored = False
        self.replayed = 0
        self.errors = 0

    def request(self) -> None:
        """The connection stands: ask for the upgrade. Raises what the connecting met, if it failed."""
        self.sock.send(wire.upgrade_request("bench", self.path))

    def receive(self) -> None:
        """Read the available frames and react to them."""
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError(f"the server ended a connection at stage {self.stage.name}")
        self.buffer += piece
        if self.stage is Stage.UPGRADING and not self._upgraded():
            return
        payloads, self.buffer = wire.cut_frames(self.buffer)
        for payload in payloads:
            self._react(payload)

    def _upgraded(self) -> bool:
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        if b" 101 " not in head[:16]:
            raise ConnectionError(f"the upgrade was refused: {head.splitlines()[0].decode()}")
        self.stage, self.buffer = Stage.UPGRADED, rest
        return True

    def _react(self, payload: bytes) -> None:
        if not payload.startswith(b'{"type":'):
            self.last = payload
            self._account(wire.read_offset(payload))
        elif payload.startswith(b'{"type":"welcome"'):
            self._welcomed(payload)
        elif payload.startswith(b'{"type":"confirm_history"' if self.epoch else b'{"type":"confirm_subscription"'):
            self.stage = Stage.SUBSCRIBED
        elif not payload.startswith((b'{"type":"ping"', b'{"type":"confirm_subscription"')):
            raise ConnectionError(f"the server said {payload[:200]!r}")

    def _welcomed(self, payload: bytes) -> None:
        self.stage = Stage.WELCOMED
        welcome = json.loads(payload)
        self.sid, self.restored = welcome["sid"], welcome.get("restored", False)
        after = (self.epoch, self.offset) if self.epoch else None
        if not self.restored:
            self.sock.send(wire.subscribe(self.stream, after))
        elif after is not None:
            self.sock.send(wire.history(self.stream, after))

    def _account(self, offset: int) -> None:
        if offset != self.offset + 1:
            self.errors += 1
        self.offset = offset
        if self.stage is Stage.WELCOMED:
            self.replayed += 1
