"""Links and crowds over TCP: they greet, subscribe, and then are read as those over WebSocket are."""

import socket

from benchmarks.load.crowd import Address, Crowd
from benchmarks.load.link import Link, Stage
from ropewalk.protocol.broky.frames import Hello, Subscribe, Subscribed, Welcome
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode


class TcpLink(Link):
    """Subscribes to one key. Deliveries are read by `drain`."""

    def __init__(self, sock: socket.socket, stream: str) -> None:
        super().__init__(sock, stream, "")
        self._splitter = FrameSplitter()

    def request(self) -> None:
        self.sock.send(encode(Hello()) + encode(Subscribe(1, self.stream.encode())))

    def receive(self) -> None:
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError(f"the server ended a connection at stage {self.stage.name}")
        for frame in self._splitter.feed(piece):
            match decode(frame):
                case Welcome():
                    self.stage = Stage.WELCOMED
                case Subscribed():
                    self.stage = Stage.SUBSCRIBED
                case body:
                    raise ConnectionError(f"the server said {body}")


class TcpCrowd(Crowd):
    def __init__(self, address: Address, stream: str) -> None:
        super().__init__(address, "", stream)

    def _link(self, sock: socket.socket, sid: str, epoch: str, offset: int) -> Link:
        return TcpLink(sock, self._stream)
