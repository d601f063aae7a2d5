"""Broky over TCP: pushes are registered here, everything else of a connection is its session's. Frames are handled in order.

A client whose token is a publishing key only pushes, as a publisher over HTTP does, and has no session. Every other client
has one, and may push as well where publishing needs no key.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.publish import completed
from ropewalk.adapters.endpoints.unsent import unsent_bytes
from ropewalk.adapters.endpoints.websocket import Open
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, MalformedFrame, MalformedPublication, PartitionChanged, RopewalkError
from ropewalk.model.messages import Publication, Receipt
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ClientOptions, ConnectRequest
from ropewalk.ports import Publisher, SessionHandle
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.codec import BrokyCodec, error, error_of, pong
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.pushes import publications_of
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import MAX_FRAME, FrameSplitter
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.proxies import Peer, TrustedProxies
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broky")

HELLO_SIZE = 16 * 1024
"""Bytes of a frame of somebody whom we do not know yet."""

HELLO_SECONDS = 5.0
CLOSE_TIMEOUT = 1.0
MAX_UNACKED = 1024 * 1024
"""Bytes of frames that wait behind a push that is under way before no more is read."""

AROUND_PAYLOADS = 64 * 1024
"""Bytes of a frame of pushes that are no payload: keys, sizes, times and uids."""

Push = tuple[frames.Run, list[Publication]]


class BrokyConnection(asyncio.Protocol):
    """A `Connection`, if it has a session. `write` is the transport's own method, so that a delivery costs one call."""

    def __init__(self, endpoint: "BrokyEndpoint", transport: asyncio.Transport, peer: Peer) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._peer = peer
        self.write = transport.write
        self._splitter = FrameSplitter(HELLO_SIZE)
        self._session: SessionHandle | None = None
        self._greeted = False
        self._may_push = False
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._mistake: MalformedFrame | None = None  # in what came after all that waits
        self._under_way: asyncio.Task[None] | None = None
        self._held = False
        self._paused = False
        self._reads = True
        self._draining = False
        self._closing = False

    # --- the transport calls ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._closing or self._mistake is not None:
            return
        try:
            for frame in self._splitter.feed(data):
                self._waiting.append(frame)
                self._waiting_bytes += len(frame)
        except MalformedFrame as mistake:
            self._mistake = mistake
        self._go_on()

    def pause_writing(self) -> None:
        self._paused = True
        self._pace()
        if self._session is not None:
            self._session.writing_paused()

    def resume_writing(self) -> None:
        self._paused = False
        self._pace()
        if self._session is not None:
            self._session.writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._waiting.clear()
        self._endpoint.left(self)
        if self._session is not None:
            self._session.lost()
            self._session = None  # it knows this connection: nothing but the garbage collector would free the two

    # --- the engine calls ---------------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        """The codec has said why. What still comes is read and thrown away, so that no reset takes our last frame with it."""
        if self._closing:
            return
        self._closing = True
        self._waiting.clear()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._pace()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self._transport.abort)

    def pending(self) -> int:
        return self._transport.get_write_buffer_size()

    async def ready(self) -> None:
        pass  # every subscription is answered as it comes

    def unsent(self) -> int:
        return unsent_bytes(self._transport)

    def hold_reading(self, hold: bool) -> None:
        self._held = hold
        self._pace()

    # --- frames, in order ---------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        try:
            while self._waiting and self._under_way is None and not self._closing:
                self._handle(self._take())
            if self._mistake is not None and not self._waiting and self._under_way is None:
                raise self._mistake
        except MalformedFrame as mistake:
            self._refuse_frame(mistake)
        if self._draining and self._under_way is None:
            self.drain()
        self._pace()

    def _take(self) -> bytes:
        frame = self._waiting.popleft()
        self._waiting_bytes -= len(frame)
        return frame

    def _handle(self, frame: bytes) -> None:
        match decode(frame):
            case frames.Hello() as hello if not self._greeted:
                self._greet(hello)
            case _ if not self._greeted:
                self._end(error(Reason.NOT_READY, "the first frame is a Hello"))
            case frames.Run() as run:
                self._push(run)
            case frames.Ping(ref) if self._session is None:
                self.write(pong(ref))
            case _ if self._session is not None:
                self._session.receive(frame)
            case frames.Subscribe(ref):
                self.write(encode(frames.Refused(ref, 0, Reason.FORBIDDEN, "a publishing key is for pushes only")))
            case body:
                raise MalformedFrame(f"{type(body).__name__} is not for a server, or not now", 1002)

    def _refuse_frame(self, mistake: MalformedFrame) -> None:
        if self._session is not None:
            self._session.malformed(mistake.reason, mistake.code, mistake.refusal or Refusal.BAD_FRAME)
        else:
            self._endpoint.stats.refusals[mistake.refusal or Refusal.BAD_FRAME] += 1
            self._end(error_of(mistake))

    def _end(self, last: bytes) -> None:
        """For a connection without a session."""
        if not self._closing:
            self.write(last)
            self.close(1000, "")

    def _pace(self) -> None:
        reads = self._closing or not (self._held or self._paused or self._waiting_bytes > MAX_UNACKED)
        if reads is not self._reads and not self._transport.is_closing():
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- Hello --------------------------------------------------------------------------------------------------------

    def _greet(self, hello: frames.Hello) -> None:
        self._greeted = True
        endpoint = self._endpoint
        endpoint.timeouts.end(self)
        if hello.version != frames.VERSION:
            self._end(error(Reason.UNKNOWN_VERSION, f"version {frames.VERSION} is spoken here"))
            return
        if hello.credit:
            self._end(error(Reason.MALFORMED, "credit is not counted here: leave it out"))
            return
        token = hello.token.decode("utf-8", "replace")
        publisher = endpoint.is_publisher(token)
        self._may_push = publisher or endpoint.open_to_all()
        self._splitter.limit = endpoint.max_frame if self._may_push else endpoint.max_command
        codec = BrokyCodec(endpoint.welcome(self._splitter.limit), endpoint.signed)
        if publisher:
            self.write(codec.welcome("", None))
            return
        self._session = endpoint.open_session(endpoint.request(token, self._peer), self, codec)
        self._under_way = asyncio.get_running_loop().create_task(self._opened(self._session))

    async def _opened(self, session: SessionHandle) -> None:
        """Nobody pushes before they are known."""
        await session.opened()
        self._finished()

    def time_out(self) -> None:
        self._endpoint.stats.refusals[Refusal.HEAD_TIMEOUT] += 1
        self._end(error(Reason.NOT_READY, "no Hello came"))

    def drain(self) -> None:
        """The server ends. A session is told by the engine."""
        self._draining = True
        if self._session is None and self._under_way is None:
            self._end(error(Reason.DRAINING, "the server restarts", reconnect=True))

    # --- pushes -------------------------------------------------------------------------------------------------------

    def _push(self, run: frames.Run) -> None:
        """With all runs that came right behind it."""
        pushes: list[Push] = []
        refusals: list[bytes] = []
        size = 0
        while True:
            if isinstance(push := self._endpoint.push_of(run, self._may_push), bytes):
                refusals.append(push)
            else:
                pushes.append((run, push))
                size += len(push)
            if size >= self._endpoint.limits.max_batch or not self._waiting:
                break
            try:
                following = decode(self._waiting[0])
            except MalformedFrame:
                break  # it is told when its turn comes
            if not isinstance(following, frames.Run):
                break
            self._take()
            run = following
        if refusals:
            self.write(b"".join(refusals))
        if not pushes:
            return
        if self._endpoint.instant:
            self.write(completed(self._endpoint.register(pushes)))
        else:
            self._under_way = asyncio.get_running_loop().create_task(self._register(pushes))

    async def _register(self, pushes: Sequence[Push]) -> None:
        answer = await self._endpoint.register(pushes)
        if not self._closing:
            self.write(answer)
        self._finished()

    def _finished(self) -> None:
        self._under_way = None
        self._go_on()


class BrokyEndpoint:
    """`guards`: whose keys are publishing keys; one with an empty key lets everybody push. `signed`: what tells the name in a
    signed one where subscriptions need them; None where streams are public. `instant`: the publisher never suspends."""

    def __init__(
        self,
        open_session: Open,
        publisher: Publisher,
        guards: Sequence[KeyGuard],
        limits: PublicationLimits,
        stats: Stats,
        proxies: TrustedProxies,
        max_command: int,
        shards: int,
        signed: Callable[[str], str | None] | None,
        instant: bool,
    ) -> None:
        self.open_session = open_session
        self.limits = limits
        self.stats = stats
        self.signed = signed
        self.instant = instant
        self.max_command = max_command
        self.max_frame = min(MAX_FRAME, limits.max_publish_size + AROUND_PAYLOADS)
        self.timeouts = HeadTimeouts(HELLO_SECONDS)
        self._publisher = publisher
        self._guards = guards
        self._proxies = proxies
        self._shards = shards
        self._connections: set[BrokyConnection] = set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def take_over(self, transport: asyncio.Transport, data: bytes, peer: Peer) -> None:
        """A connection becomes ours, with what was read of it."""
        sock = cast(socket.socket, transport.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for peers that are gone and to whom nothing is sent
        connection = BrokyConnection(self, transport, peer)
        transport.set_protocol(connection)
        self._connections.add(connection)
        self.timeouts.begin(connection)
        connection.data_received(data)

    def left(self, connection: BrokyConnection) -> None:
        self.timeouts.end(connection)
        self._connections.discard(connection)

    def drain(self) -> None:
        for connection in list(self._connections):
            connection.drain()

    # --- who it is ----------------------------------------------------------------------------------------------------

    def is_publisher(self, token: str) -> bool:
        return any(guard.key and guard.knows(f"Bearer {token}") for guard in self._guards)

    def open_to_all(self) -> bool:
        return any(not guard.key for guard in self._guards)

    def request(self, token: str, peer: Peer) -> ConnectRequest:
        remote, _ = self._proxies.client(peer, "tcp", {}) if self._proxies else (peer.address, "")
        options = ClientOptions(ping_interval=0.0, reconnect_in=True)
        return ConnectRequest(url="tcp:///", path="/", headers={}, params={}, remote=remote, token=token, options=options)

    def welcome(self, max_frame: int) -> frames.Welcome:
        return frames.Welcome(max_frame=max_frame, max_unacked=MAX_UNACKED, shards=self._shards)

    # --- pushes -------------------------------------------------------------------------------------------------------

    def push_of(self, run: frames.Run, may_push: bool) -> list[Publication] | bytes:
        """The publications of a run, or its refusal."""
        if not may_push:
            return self._refused(run, Reason.FORBIDDEN, "pushing needs a publishing key as the token")
        try:
            return publications_of(run, self.limits)
        except MalformedPublication as mistake:
            return self._refused(run, Reason.MALFORMED, mistake.reason, mistake.index)

    async def register(self, pushes: Sequence[Push]) -> bytes:
        """The answers to them. Never raises; does not suspend where the publisher is `instant`."""
        try:
            receipts = await self._publisher.publish([each for _, publications in pushes for each in publications])
        except ClientError as refusal:
            if len(pushes) > 1:  # nothing of them was registered, and it may be the fault of one
                return b"".join([await self.register([push]) for push in pushes])
            changed = isinstance(refusal, PartitionChanged)
            return self._refused(pushes[0][0], Reason.PARTITION_CHANGED if changed else Reason.FORBIDDEN, str(refusal))
        except RopewalkError as failure:
            return self._failed(pushes, str(failure))
        except Exception:
            logger.exception("a push failed")
            return self._failed(pushes, "the server failed")
        return _pushed(pushes, receipts)

    def _failed(self, pushes: Sequence[Push], text: str) -> bytes:
        return b"".join(self._refused(run, Reason.UNAVAILABLE, text) for run, _ in pushes)

    def _refused(self, run: frames.Run, reason: Reason, text: str, index: int = 0) -> bytes:
        """b"" where no answer is wanted: it is counted only."""
        if reason is not Reason.UNAVAILABLE:
            self.stats.publications_refused += 1
        return encode(frames.Refused(run.ref, index, reason, text)) if run.ref else b""


def _pushed(pushes: Sequence[Push], receipts: Sequence[Receipt]) -> bytes:
    refs: list[int] = []
    offsets: list[int] = []
    epochs: list[bytes] = []
    first = 0
    for run, publications in pushes:
        if run.ref:
            epoch = receipts[first].epoch.encode()
            refs.append(run.ref)
            offsets.append(receipts[first].offset)
            epochs.append(len(epoch).to_bytes() + epoch)
        first += len(publications)
    return encode(frames.Pushed(tuple(refs), tuple(offsets), b"".join(epochs))) if refs else b""
