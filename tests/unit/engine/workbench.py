"""A node for unit tests: real engine, real memory backend, recording connections, manual clock."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

from ropewalk.adapters.apps.authenticators import NoAuth
from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.credentials import Forwarding
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.context import Access, EngineContext
from ropewalk.engine.inspection import NodeInspector
from ropewalk.engine.node import Node
from ropewalk.engine.session import Session
from ropewalk.engine.session_log import SessionLog
from ropewalk.engine.timeouts import TICK
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Publication, Receipt
from ropewalk.model.report import NodeReport
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Application, Authenticator, Backend, DirectWrites
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.handshake import asks_positions, client_options
from ropewalk.protocol.websocket_frame import CableCodec

CODEC = CableCodec()
POSITIONS_CODEC = CableCodec(reports_positions=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class RecordingConnection:
    """A `Connection` that records all writes."""

    direct: DirectWrites | None = None

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.reading = True
        self.untaken = 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self, code: int, text: str) -> None:
        self.closed = (code, text)

    def pending(self) -> int:
        return 0

    async def wait_ready(self) -> None:
        pass

    def unsent(self) -> int:
        return self.untaken

    def hold_reading(self, hold: bool) -> None:
        self.reading = not hold

    def replies(self) -> list[dict[str, Any]]:
        """All text frames written so far, parsed."""
        return [json.loads(text) for text in self.texts()]

    def texts(self) -> list[bytes]:
        return [payload for blob in self.written for payload in _payloads(blob)]


def _payloads(blob: bytes) -> list[bytes]:
    answer = []
    while blob:
        size, start = blob[1], 2
        if size == 126:
            size, start = int.from_bytes(blob[2:4]), 4
        elif size == 127:
            size, start = int.from_bytes(blob[2:10]), 10
        answer.append(blob[start : start + size])
        blob = blob[start + size :]
    return answer


class Client:
    """A session and the replies its client received."""

    def __init__(self, session: Session, connection: RecordingConnection) -> None:
        self.session = session
        self.connection = connection

    @property
    def sid(self) -> str:
        return self.session.sid

    def seen(self) -> list[str | int]:
        """Types of the replies and offsets of the messages, in order."""
        return [reply.get("type") or reply.get("offset", 0) for reply in self.connection.replies()]

    async def send(self, **command: object) -> None:
        self.session.receive(json.dumps(command).encode())
        await settle()


class SlowReader:
    """Pauses a client's connection at each write, and resumes it with `read`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._write = client.connection.write
        client.connection.write = self._take  # type: ignore[method-assign]

    def _take(self, data: bytes) -> None:
        self._write(data)
        self.client.session.pause_writing()

    async def read(self) -> None:
        self.client.session.resume_writing()
        await settle()


class Workbench:
    def __init__(
        self,
        limits: Limits | None = None,
        rules: Sequence[StreamRule] = (),
        authenticators: Sequence[Authenticator] = (NoAuth(),),
        backend: Backend | None = None,
        session_log: SessionLog = SessionLog(),  # noqa: B008 - it has no state
        clock: Clock | None = None,
        application: Application | None = None,
        keeps_ephemeral: bool = True,
    ) -> None:
        self.clock = clock or Clock()
        self.codec: SessionCodec = CODEC
        self.stats = Stats()
        self.rules = rulebook = Rulebook(StreamRules(), rules)
        self.backend = backend or MemoryBackend(rulebook, self.clock)
        self.node = Node(
            EngineContext(limits or Limits(ping_interval=0), rulebook, self.stats, self.clock),
            self.backend,
            Access(
                authenticators,
                [PubSubChannel(public=True, secret="", whisper=False, presence=True)],
                application,
                Forwarding(("cookie",)),
            ),
            session_log,
            keeps_ephemeral=keeps_ephemeral,
        )

    async def __aenter__(self) -> Self:
        await self.node.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.node.stop()

    async def connect(self, sid: str = "", **options: Any) -> Client:
        client = self.open_connection(sid, **options)
        await client.session.wait_opened()
        return client

    async def subscribed(self, *streams: str) -> Client:
        client = await self.connect()
        for stream in streams:
            await client.send(command="subscribe", identifier=public(stream))
        return client

    def open_connection(
        self,
        sid: str = "",
        extended: bool = True,
        token: str = "",
        cookie: str = "",
        connection: RecordingConnection | None = None,
        tcp: bool = False,
        **params: str,
    ) -> Client:
        """A connection before its welcome."""
        connection = connection or RecordingConnection()
        params = {"sid": sid, **params}
        options = client_options({}, params)
        request = ConnectRequest(
            *("http://x/cable", "/cable", {"cookie": cookie}, params),
            token=token,
            extended=extended,
            options=options,
            tcp=tcp,
        )
        codec = POSITIONS_CODEC if asks_positions(request.params) and self.codec is CODEC else self.codec
        return Client(self.node.open(request, connection, codec), connection)

    async def publish(self, stream: str, *payloads: str, **extra: Any) -> list[Receipt]:
        receipts = await self.node.broker.publish([Publication(stream, payload.encode(), **extra) for payload in payloads])
        await settle()
        return receipts

    def report(self) -> NodeReport:
        return NodeInspector(self.node).report()

    def pass_time(self, seconds: float) -> None:
        """Advance the timeouts, which count ticks."""
        for _ in range(round(seconds / TICK)):
            self.node.timeouts.tick()


def public(stream: str) -> str:
    return json.dumps({"channel": "$pubsub", "stream_name": stream})


async def settle() -> None:
    """Run all ready tasks, without waiting for time to pass."""
    for _ in range(12):
        await asyncio.sleep(0)
