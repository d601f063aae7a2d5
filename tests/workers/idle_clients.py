"""Many clients that only stay connected, as a separate program: `python -m tests.workers.idle_clients URL COUNT SOURCE`.

Each subscribes once and resumes its session whenever its connection ends. The program writes a line of JSON whenever its counts
have changed, and ends at the end of its standard input. `SOURCE`: the local address of the connections.
"""

import asyncio
import json
import random
import sys
from contextlib import suppress
from typing import NamedTuple

from tests.cable import EXTENDED, Frame, identifier
from tests.server import Address
from tests.tcp import TEXT, client_frame, upgrade_request

MAX_CONNECTING = 200
WELCOME_SECONDS = 30.0
REPORT_SECONDS = 0.1

STREAM = "idle"
SUBSCRIBE = client_frame(json.dumps({"command": "subscribe", "identifier": identifier(STREAM)}).encode())


class Counts(NamedTuple):
    """`connected`: clients that are subscribed now. `resumed` and `lost`: reconnects with and without the former session.
    `failed`: connection attempts that failed and were repeated."""

    connected: int = 0
    resumed: int = 0
    lost: int = 0
    failed: int = 0


class Crowd:
    def __init__(self, server: Address, source: str) -> None:
        self.server = server
        self.source = source
        self.room = asyncio.Semaphore(MAX_CONNECTING)
        self.counts = Counts()

    def count(self, **changes: int) -> None:
        self.counts = self.counts._replace(**{name: getattr(self.counts, name) + change for name, change in changes.items()})


class IdleLink(asyncio.Protocol):
    """One connection, from the upgrade on. `subscribed` results in the sid."""

    def __init__(self, sid: str) -> None:
        loop = asyncio.get_running_loop()
        self._former = sid
        self._received = b""
        self._sid = ""
        self._upgraded = False
        self.restored = False
        self.subscribed: asyncio.Future[str] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        path = f"/cable?sid={self._former}" if self._former else "/cable"
        transport.write(upgrade_request(path, EXTENDED))

    def data_received(self, data: bytes) -> None:
        if self.subscribed.done():
            return  # pings
        self._received += data
        if not self._upgraded and not self._upgrade():
            return
        while not self.subscribed.done() and (frame := self._next()) is not None:
            self._take(frame)

    def _upgrade(self) -> bool:
        head, complete, rest = self._received.partition(b"\r\n\r\n")
        if complete and b" 101 " not in head:
            self._transport.abort()
        elif complete:
            self._upgraded, self._received = True, rest
        return self._upgraded

    def _next(self) -> Frame | None:
        """No frame is long enough for a size of eight bytes. A frame that is not text is returned as {}."""
        received = self._received
        if len(received) < 4:
            return None
        short = received[1] < 126
        begin, size = (2, received[1]) if short else (4, int.from_bytes(received[2:4]))
        if len(received) < begin + size:
            return None
        self._received = received[begin + size :]
        frame: Frame = json.loads(received[begin : begin + size]) if received[0] & 0xF == TEXT else {}
        return frame

    def _take(self, frame: Frame) -> None:
        match frame.get("type"):
            case "welcome":
                self._sid, self.restored = frame["sid"], identifier(STREAM) in frame.get("restored_ids", ())
                if self.restored:
                    self.subscribed.set_result(self._sid)
                else:
                    self._transport.write(SUBSCRIBE)
            case "confirm_subscription":
                self.subscribed.set_result(self._sid)

    def connection_lost(self, reason: Exception | None) -> None:
        if not self.subscribed.done():
            self.subscribed.set_exception(ConnectionResetError("ended before it was subscribed"))
            self.subscribed.exception()  # retrieved, for the caller may have timed out
        self.ended.set_result(None)


async def stay(crowd: Crowd) -> None:
    sid = ""
    while True:
        async with crowd.room:
            link = await _link(crowd, sid)
        if link is None:
            crowd.count(failed=1)
            await asyncio.sleep(0.1 + random.random() * 0.2)
            continue
        came_back, sid = bool(sid), link.subscribed.result()
        crowd.count(connected=1, resumed=came_back and link.restored, lost=came_back and not link.restored)
        await link.ended
        crowd.count(connected=-1)


async def _link(crowd: Crowd, sid: str) -> IdleLink | None:
    loop, transport = asyncio.get_running_loop(), None
    try:
        async with asyncio.timeout(WELCOME_SECONDS):
            transport, link = await loop.create_connection(
                lambda: IdleLink(sid), "127.0.0.1", crowd.server.port, local_addr=(crowd.source, 0)
            )
            await link.subscribed
        return link
    except (OSError, TimeoutError):
        if transport is not None:
            transport.abort()
        return None


async def main(url: str, count: int, source: str) -> None:
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(sys.stdin, over.set)
    crowd = Crowd(Address(url), source)
    clients = [loop.create_task(stay(crowd)) for _ in range(count)]
    last = Counts(-1)
    while not over.is_set():
        if crowd.counts != last:
            last = crowd.counts
            print(json.dumps(last._asdict()), flush=True)
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), REPORT_SECONDS)
    for client in clients:
        client.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
