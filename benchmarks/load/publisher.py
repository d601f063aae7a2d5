"""One publisher: a kept-alive HTTP connection, the next request after the answer to the one before.

Its messages have all the same length, so that frames differ in length only by the digits of their offsets.
"""

import json
import socket
import threading
import time

Address = tuple[str, int]


class Publisher:
    """Publishes numbered messages to one stream."""

    def __init__(self, address: Address, stream: str, payload: int) -> None:
        self._socket = socket.create_connection(address, timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = f"{address[0]}:{address[1]}"
        self._stream = stream
        self._payload = payload
        self._prepared: list[bytes] = []
        self._heard = b""
        self.published = 0

    def close(self) -> None:
        self._socket.close()

    def publish(self, count: int, batch: int = 1) -> float:
        """Publish `count` messages in arrays of `batch`; the time at which the first request was sent."""
        requests = [self._request(min(batch, count - done)) for done in range(0, count, batch)]
        started = time.monotonic()
        for request in requests:
            self._exchange(request)
        return started

    def pace(self, count: int, rate: float) -> list[float]:
        """Publish one by one at a fixed rate; the times at which each one was due, which is where its latency starts."""
        requests = [self._request(1) for _ in range(count)]
        first = time.monotonic() + 0.01
        due = [first + index / rate for index in range(count)]
        for moment, request in zip(due, requests, strict=True):
            time.sleep(max(0.0, moment - time.monotonic()))
            self._exchange(request)
        return due

    def pace_until(self, ended: threading.Event, rate: float, batch: int = 1) -> None:
        """Send requests of `batch` messages at about this rate until told to end."""
        while not ended.wait(1 / rate):
            self.publish(batch, batch)

    def prepare(self, count: int, batch: int) -> int:
        """Make the requests for `advance`; the descriptor on which the answers come."""
        self._prepared = [self._request(min(batch, count - done)) for done in range(0, count, batch)][::-1]
        return self._socket.fileno()

    def advance(self) -> bool:
        """Send the next prepared request; False when there is none."""
        if not self._prepared:
            return False
        self._socket.sendall(self._prepared.pop())
        return True

    def receive(self) -> bool:
        """Read available bytes; True when the response is complete."""
        self._heard += self._receive()
        if _body(self._heard) is None:
            return False
        self._heard = b""
        return True

    def position(self) -> tuple[str, int]:
        """Publish one more, and where it was registered: epoch and offset."""
        answer = json.loads(self._exchange(self._request(1)))
        receipt = answer["publications"][0]
        return receipt["epoch"], receipt["offset"]

    def answer(self) -> bytes:
        """Publish one more, and the whole answer."""
        return self._answer_to(self._request(1))

    def _request(self, batch: int) -> bytes:
        items = [self._publication() for _ in range(batch)]
        body = json.dumps(items[0] if batch == 1 else items).encode()
        head = f"POST /_broadcast HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _publication(self) -> dict[str, str]:
        self.published += 1
        text = json.dumps({"n": f"{self.published:08d}", "text": ""}, separators=(",", ":"))
        return {"stream": self._stream, "data": text[:-2] + "x" * (self._payload - len(text)) + text[-2:]}

    def _exchange(self, request: bytes) -> bytes:
        return self._answer_to(request).partition(b"\r\n\r\n")[2]

    def _answer_to(self, request: bytes) -> bytes:
        self._socket.sendall(request)
        answer = b""
        while _body(answer) is None:
            answer += self._receive()
        return answer

    def _receive(self) -> bytes:
        piece = self._socket.recv(65536)
        if not piece:
            raise ConnectionError("the server ended the publisher's connection")
        return piece


def _body(answer: bytes) -> bytes | None:
    """The body of a whole answer; None while some of it is missing."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return None
    if not head.startswith(b"HTTP/1.1 201"):
        raise ConnectionError(f"the publication was refused: {head.splitlines()[0].decode()} {body[:200]!r}")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return body if len(body) >= length else None
