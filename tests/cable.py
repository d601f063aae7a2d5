"""A client of the cable for tests of the outside: one connection, what it received, and the positions it knows.

It decides nothing by itself: no reconnecting, no resubscribing, no dropping of doubles. Whatever the server does, a test sees.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from tests.server import Address

BASE, EXTENDED = "actioncable-v1-json", "actioncable-v1-ext-json"
TIMEOUT = 60.0  # matters only where a test fails
MESSAGE = "message"  # the kind of a frame without a type: data of a stream

Frame = dict[str, Any]


class Unexpected(AssertionError):
    """Something else came, or nothing; the text holds everything that was received."""


class Closed(Unexpected):
    """The connection ended while more was expected."""


def identifier(stream: str) -> str:
    return json.dumps({"channel": "$pubsub", "stream_name": stream})


def kind(frame: Frame) -> str:
    return str(frame.get("type") or MESSAGE)


def _socket(address: aiohttp.AddrInfoType, receive_buffer: int) -> socket.socket:
    made = socket.socket(*address[:3])
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    return made


class Cable:
    """`positions` holds, by stream, the last position received; `received` every frame, pings too."""

    def __init__(self, http: aiohttp.ClientSession, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.received: list[Frame] = []
        self.positions: dict[str, Frame] = {}
        self.sid = ""
        self._http = http
        self._ws = ws

    @classmethod
    async def connect(
        cls,
        url: str,
        sid: str = "",
        protocol: str = EXTENDED,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        ssl: Any = True,
        receive_buffer: int = 0,
    ) -> "Cable":
        """Raises aiohttp's WSServerHandshakeError where the server refuses the upgrade.

        `receive_buffer`: bytes that the kernel takes for a client that does not read; left to itself it takes ever more.
        """
        query = {**(params or {}), **({"sid": sid} if sid else {})}
        connector = aiohttp.TCPConnector(socket_factory=lambda address: _socket(address, receive_buffer))
        http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT))
        try:
            ws = await http.ws_connect(
                url,
                protocols=(protocol,),
                params=query,
                headers=headers,
                max_msg_size=0,
                ssl=ssl,
                timeout=aiohttp.ClientWSTimeout(ws_close=TIMEOUT),
            )
        except BaseException:
            await http.close()
            raise
        return cls(http, ws)

    @property
    def port(self) -> int:
        """Of this end of the connection."""
        return int(self._ws.get_extra_info("sockname")[1])

    # --- saying -------------------------------------------------------------------------------------------------------

    async def send(self, **command: Any) -> None:
        await self._ws.send_str(json.dumps(command))

    async def send_raw(self, data: str | bytes) -> None:
        await (self._ws.send_str(data) if isinstance(data, str) else self._ws.send_bytes(data))

    async def subscribe(self, stream: str, history: Frame | None = None, presence: Frame | None = None) -> list[Frame]:
        """Subscribe and wait for the answer to all of it; returns the history that came with it."""
        extra = {name: value for name, value in (("history", history), ("presence", presence)) if value is not None}
        await self.send(command="subscribe", identifier=identifier(stream), **extra)
        await self.expect("confirm_subscription", identifier=identifier(stream))
        return await self.messages_until("confirm_history") if history is not None else []

    async def ask_history(self, stream: str, position: Frame | None = None) -> list[Frame]:
        """What came after `position`, by default the last one known; returns the history."""
        await self.send(command="history", identifier=identifier(stream), history=self.known(stream, position))
        return await self.messages_until("confirm_history")

    def known(self, stream: str, position: Frame | None = None) -> Frame:
        """The `history` field that a client which may know nothing yet would send."""
        position = position or self.positions.get(stream)
        return {"since": 1, "streams": {stream: position} if position else {}}

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def welcomed(self, restored: bool = False) -> Frame:
        frame = await self.expect("welcome")
        assert frame.get("restored", False) is restored, frame
        self.sid = frame["sid"]
        return frame

    async def any(self, seconds: float) -> Frame:
        """The next frame, pings too. Raises TimeoutError when nothing came: then nobody is at the other end any more."""
        async with asyncio.timeout(seconds):
            return await self._receive()

    async def next(self) -> Frame:
        """The next frame that is no ping."""
        return await self._first(lambda frame: kind(frame) != "ping", "more")

    async def expect(self, wanted: str, **fields: Any) -> Frame:
        """The very next frame, which must be of this kind and have these fields."""
        frame = await self.next()
        if kind(frame) != wanted or any(frame.get(name) != value for name, value in fields.items()):
            raise Unexpected(f"expected {wanted} {fields}, received {self._story()}")
        return frame

    async def until(self, wanted: str, fits: Callable[[Frame], bool] = lambda frame: True) -> Frame:
        """The first frame of this kind that fits; what comes before it is passed over."""
        return await self._first(lambda frame: kind(frame) == wanted and fits(frame), f"such {wanted}")

    async def messages_until(self, wanted: str) -> list[Frame]:
        """The messages before the next frame of this kind; nothing else may be among them."""
        found: list[Frame] = []
        while kind(frame := await self.next()) != wanted:
            if kind(frame) != MESSAGE:
                raise Unexpected(f"expected messages and {wanted}, received {self._story()}")
            found.append(frame)
        return found

    async def messages_up_to(self, offset: int) -> list[Frame]:
        """The messages up to and with the one at this offset; nothing else may be among them."""
        found = [await self.expect(MESSAGE)]
        while found[-1]["offset"] < offset:
            found.append(await self.expect(MESSAGE))
        return found

    async def messages(self, count: int) -> list[Any]:
        """The next frames, which must be `count` messages; returns what was published."""
        return [(await self.expect(MESSAGE))["message"] for _ in range(count)]

    async def quiet(self) -> None:
        """Nothing was sent to us that we have not looked at: the answer to a ping is the next frame."""
        await self.send(command="ping")
        await self.expect("pong")

    async def closed(self) -> tuple[int, str]:
        """Wait for the end; returns the close code and its text. Frames on the way are received."""
        with contextlib.suppress(Closed):
            while True:
                await self._receive()
        return self._close_code, self._close_text

    async def _first(self, fits: Callable[[Frame], bool], what: str) -> Frame:
        """All its waiting is bounded: pings do not keep it going."""
        try:
            async with asyncio.timeout(TIMEOUT):
                while not fits(frame := await self._receive()):
                    pass
        except TimeoutError:
            raise Unexpected(f"no {what} came in {TIMEOUT} s, received {self._story()}") from None
        return frame

    async def _receive(self) -> Frame:
        message = await self._ws.receive(TIMEOUT)
        if message.type is not aiohttp.WSMsgType.TEXT:
            # The frame's own code: what the client makes of the end depends on whose FIN comes first.
            said = message.type is aiohttp.WSMsgType.CLOSE
            self._close_code = int(message.data) if said else self._ws.close_code or 0
            self._close_text = str(message.extra or "")
            raise Closed(f"closed with {self._close_code} {self._close_text}, received {self._story()}")
        frame: Frame = json.loads(message.data)
        self.received.append(frame)
        if frame.get("offset"):
            self.positions[frame["stream_id"]] = {"epoch": frame["epoch"], "offset": frame["offset"]}
        return frame

    _close_code = 0
    _close_text = ""

    def _story(self) -> str:
        last = [json.dumps(frame)[:300] for frame in self.received if kind(frame) != "ping"][-20:]
        return "\n  ".join([f"{len(self.received)} frames, ending with:", *last])

    # --- leaving ------------------------------------------------------------------------------------------------------

    async def cut(self) -> None:
        """As a lost network would: no close frame, what was under way is lost."""
        sock: socket.socket | None = self._ws.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)
        await self._http.close()

    async def close(self) -> None:
        await self._ws.close()
        await self._http.close()


@contextlib.asynccontextmanager
async def cable(server: Address, welcome: bool = True, **options: Any) -> AsyncIterator[Cable]:
    """A connection for the length of a block, welcomed unless the test wants to see that itself."""
    client = await Cable.connect(server.cable, **options)
    try:
        if welcome:
            await client.welcomed(restored=bool(options.get("sid")))
        yield client
    finally:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(TIMEOUT):
                await client.close()
