"""WebSocket by picows: one object per connection, which picows calls and the engine writes to.

The codec builds frames, which are written raw; picows parses the input. Closing waits briefly for the peer's close frame,
so that our last frames are not lost to a TCP reset. Nothing that arrives after our close is handled.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from msgspec import Struct
from multidict import CIMultiDict
from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSAutoPingStrategy, WSProtocol  # type: ignore[attr-defined]  # missing in picows' stubs only

from ropewalk.adapters.endpoints.head_timeouts import MESSAGE_SECONDS, HeadTimeouts
from ropewalk.adapters.endpoints.picows_transport import PicowsTransport, SwitchingProtocols
from ropewalk.adapters.endpoints.socket_writes import unsent_bytes
from ropewalk.adapters.endpoints.turns import LoopTurns, ReadPacing
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection, SessionHandle
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.handshake import (
    EXTENDED,
    HEAD_END,
    asks_positions,
    chosen_subprotocol,
    client_options,
    find_token,
    offered_subprotocols,
    query_params,
)
from ropewalk.protocol.proxies import FORWARDING_HEADERS, Peer, TrustedProxies, joined_headers
from ropewalk.protocol.websocket_frame import CableCodec, close_frame, pong_frame

logger = logging.getLogger("ropewalk.websocket")

CLOSE_TIMEOUT = 1.0
READ_BUFFER = 1024  # grows when needed; picows' default of 16 KiB is most of what an idle connection would cost
READ_CHUNK = 1024  # of one read: all its frames, 170 empty ones, are handled before anybody else's turn
KERNEL_BUFFER = 65536  # what the kernel may hold of what a client sends ahead
MAX_FRAGMENTS = 1024  # of one message

NO_HEADERS: CIMultiDict[str] = CIMultiDict()

# Looked up once and not with every frame.
CLOSE, CONTINUATION, PING, PONG = WSMsgType.CLOSE, WSMsgType.CONTINUATION, WSMsgType.PING, WSMsgType.PONG

Open = Callable[[ConnectRequest, Connection, SessionCodec], SessionHandle]


class PicowsSide:
    """Handles the callbacks of picows besides those of the listener, in one object, because there is one per connection.

    It is also picows's logger, whose messages are dropped, except errors. Picows reports an invalid frame only there, before it
    sends the close frame itself and disconnects a moment later.
    """

    __slots__ = ("_endpoint", "_peer", "connection")

    def __init__(self, endpoint: "WebSocketEndpoint", peer: Peer) -> None:
        self._endpoint = endpoint
        self._peer: Peer | None = peer
        self.connection: WebSocketConnection | None = None

    def __call__(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        """Called once by picows, for the response to the request."""
        assert self._peer is not None
        asked_by, self._peer = self._peer, None
        answer, self.connection = self._endpoint.upgrade(request, asked_by)
        return answer

    def isEnabledFor(self, level: int) -> bool:
        return False

    def error(self, message: str, detail: object = None) -> None:
        match detail:
            case (WSCloseCode() as code, str(reason)) if self.connection is not None:
                self.connection.unparsable(reason, code)
            case _:
                logger.error("picows: %s", message.replace("%s", str(detail)))

    def exception(self, message: str, *args: object) -> None:
        logger.exception("picows: %s", message)

    def log(self, *args: object) -> None:
        """Dropped."""

    debug = info = warning = log


class BoundedProtocol(WSProtocol):  # type: ignore[misc]  # unknown to the stubs, as above
    """Picows' own buffer doubles with each read that fills it, and never shrinks: a fast sender would occupy megabytes."""

    __slots__ = ()

    def get_buffer(self, size_hint: int) -> memoryview:
        whole: memoryview = WSProtocol.get_buffer(self, size_hint)
        return whole[:READ_CHUNK]

    def buffer_updated(self, count: int) -> None:
        connection = self.listener
        if connection is not None and not connection.begun:
            connection.begin_message()
        WSProtocol.buffer_updated(self, count)


class WebSocketConnection(WSListener):
    """A `Connection`. `write` is the transport's own method, so that a delivery costs one call. `begun`: a message is
    incomplete, and its timeout runs."""

    __slots__ = (
        "_closing",
        "_endpoint",
        "_going_away",
        "_parts",
        "_paused",
        "_pong",
        "_reading",
        "_request",
        "_session",
        "_size",
        "_transport",
        "begun",
        "write",
    )

    direct = None

    def __init__(self, endpoint: "WebSocketEndpoint", request: ConnectRequest) -> None:
        self._endpoint = endpoint
        self._request: ConnectRequest | None = request
        self._session: SessionHandle | None = None
        self._parts: list[bytes] | None = None
        self._size = 0
        self._closing = False
        self.begun = False
        self._going_away = False
        self._paused = False
        self._pong: bytes | None = None
        self._reading: ReadPacing | None = None

    # --- picows calls -------------------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        underlying = cast(PicowsTransport, transport.underlying_transport)
        self._transport = underlying.transport
        assert self._request is not None
        # A session that opens at once has its welcome in the same write as the answer to the upgrade.
        response = cast(SwitchingProtocols, transport.response)
        answer = [response.head]
        self.write = answer.append
        self._session = self._endpoint.open_session(self._request, self, self._endpoint.codec(self._request))
        self.write = underlying.write
        self.write(b"".join(answer))
        self._endpoint.connections += 1
        self._request = None  # not needed once the session is opening
        # picows would keep both for the connection's life: a quarter of what an idle one costs.
        transport.request.headers = NO_HEADERS
        response.head = b""

    def begin_message(self) -> None:
        self.begun = True
        self._endpoint.message_timeouts.begin(self)

    def _finish_message(self) -> None:
        if self.begun:
            self.begun = False
            self._endpoint.message_timeouts.end(self)

    def time_out(self) -> None:
        """Not the client's fault while its socket is not read."""
        self.begun = False
        if self._reading is not None and self._reading.stopped:
            self.begin_message()
        elif self._session is not None:
            self._session.message_overdue()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        self._handle(frame)
        if self.begun and self._parts is None:
            self._finish_message()
        if frame.last_in_buffer and (frame.tail_size or self._parts is not None) and not (self.begun or self._closing):
            self.begin_message()

    def _handle(self, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is CLOSE:
            self._going_away = frame.get_close_code() is WSCloseCode.GOING_AWAY
            self.close(WSCloseCode.OK.value, "")
            self._transport.close()
        elif self._closing or self._session is None:
            self._read().count()
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._session.reject_frame("reserved bits are set", WSCloseCode.PROTOCOL_ERROR.value)
        elif kind is PING:
            self._read().count()
            self._pinged(frame.get_payload_as_bytes())
        elif kind is PONG:
            self._read().count()
            self._session.note_activity()
        elif frame.fin and self._parts is None and kind is not CONTINUATION:
            self._session.receive(frame.get_payload_as_bytes())
        else:
            self._read().count()
            self._assemble(self._session, kind is CONTINUATION, frame)

    def _assemble(self, session: SessionHandle, continues: bool, frame: WSFrame) -> None:
        if continues is (self._parts is None):
            session.reject_frame("fragments out of order", WSCloseCode.PROTOCOL_ERROR.value)
            return
        if self._parts is None:
            self._parts = []
        self._parts.append(frame.get_payload_as_bytes())
        self._size += frame.payload_size
        if self._size > self._endpoint.max_message_size:
            session.reject_frame("message too big", WSCloseCode.MESSAGE_TOO_BIG.value, Refusal.MESSAGE_TOO_BIG)
        elif len(self._parts) > MAX_FRAGMENTS:
            session.reject_frame("too many fragments", WSCloseCode.MESSAGE_TOO_BIG.value, Refusal.FRAGMENTS)
        elif frame.fin:
            message, self._parts, self._size = b"".join(self._parts), None, 0
            session.receive(message)

    def _pinged(self, payload: bytes) -> None:
        """Answers only the newest ping, after all input is handled and when the peer reads: a flood of pings causes at most one
        pending frame beyond the transport's buffer."""
        if self._pong is None:
            asyncio.get_running_loop().call_soon(self._answer_ping)
        self._pong = payload

    def _answer_ping(self) -> None:
        if self._pong is not None and not self._paused and not self._closing:
            self.write(pong_frame(self._pong))
            self._pong = None

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._closing = True
        self._finish_message()
        if self._session is not None:
            self._endpoint.connections -= 1
            self._session.connection_lost(self._going_away)
            self._session = None  # it knows this connection: nothing but the garbage collector would free the two

    def pause_writing(self) -> None:
        self._paused = True
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._answer_ping()
        if self._session is not None:
            self._session.resume_writing()

    def unparsable(self, reason: str, code: WSCloseCode) -> None:
        """Picows cannot continue. It sends the close frame, but would wait indefinitely for a peer that does not read it."""
        if self._closing:
            return
        self._end()
        if self._session is not None:
            too_big = code is WSCloseCode.MESSAGE_TOO_BIG
            self._session.reject_frame(reason, code.value, Refusal.MESSAGE_TOO_BIG if too_big else Refusal.BAD_FRAME)

    # --- the engine calls ---------------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        if not self._closing:
            self.write(close_frame(code, text))
            self._end()

    def _end(self) -> None:
        self._closing = True
        self._parts = None
        self._finish_message()
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self._finish)

    def _finish(self) -> None:
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # it does not read: flushing would wait indefinitely
        else:
            self._transport.close()

    def pending(self) -> int:
        return self._transport.get_write_buffer_size()

    async def wait_ready(self) -> None:
        pass  # every command is answered as it comes

    def unsent(self) -> int:
        return unsent_bytes(self._transport)

    def hold_reading(self, hold: bool) -> None:
        self._read().hold(hold)

    def _read(self) -> ReadPacing:
        if self._reading is None:
            self._reading = ReadPacing(self._transport, self._endpoint.turns)
            _bound_kernel_buffer(self._transport)
        return self._reading


class WebSocketOptions(Struct, frozen=True):
    """Options of the WebSocket endpoint.

    Args:
        paths: where clients connect.
        token_param: name of the query parameter with the token.
        max_message_size: of a client's message, in bytes.
        native_pings: send pings of the WebSocket protocol besides those of the cable.
        secure: the port has TLS.
    """

    paths: Sequence[str] = ()
    token_param: str = "jid"
    max_message_size: int = 65536
    native_pings: bool = False
    secure: bool = False


class WebSocketEndpoint:
    """Checks upgrade requests, and creates picows' protocol objects for accepted connections."""

    def __init__(
        self,
        open_session: Open,
        origin_allowed: Callable[[str | None], bool],
        proxies: TrustedProxies,
        options: WebSocketOptions,
    ) -> None:
        self.open_session = open_session
        self.connections = 0
        self.turns = LoopTurns()
        self.message_timeouts = HeadTimeouts(MESSAGE_SECONDS)
        self._paths = frozenset(options.paths)
        self._origin_allowed = origin_allowed
        self._token_param = options.token_param
        self.max_message_size = options.max_message_size
        self._plain = CableCodec(options.native_pings)
        self._with_positions = CableCodec(options.native_pings, reports_positions=True)
        self._scheme = "https" if options.secure else "http"
        self._proxies = proxies

    def take_over(self, transport: asyncio.Transport, data: bytes, peer: Peer) -> WSProtocol:
        """Take over a connection with the input read so far: its upgrade request and perhaps more."""
        protocol = self._protocol(PicowsSide(self, peer))
        transport.set_protocol(protocol)
        protocol.connection_made(PicowsTransport(transport))
        end = data.find(HEAD_END) + len(HEAD_END)
        for rest in (memoryview(data)[:end], memoryview(data)[end:]):
            while rest:
                buffer = protocol.get_buffer(-1)
                taken = min(len(buffer), len(rest))
                buffer[:taken] = rest[:taken]
                rest = rest[taken:]
                protocol.buffer_updated(taken)
        return protocol

    def _protocol(self, side: PicowsSide) -> WSProtocol:
        return BoundedProtocol(
            None,
            None,
            False,
            side,
            side,
            True,
            None,
            False,
            0,
            0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # WebSocketConnection answers pings: it knows the pending bytes
            self.max_message_size,
            None,
            READ_BUFFER,
        )

    def codec(self, request: ConnectRequest) -> SessionCodec:
        return self._with_positions if asks_positions(request.params) else self._plain

    def upgrade(
        self, request: WSUpgradeRequest, peer: Peer
    ) -> tuple[WSUpgradeResponseWithListener, WebSocketConnection | None]:
        try:
            target = urlsplit(request.path.decode("latin-1"))
        except ValueError:
            return _refuse(HTTPStatus.BAD_REQUEST, b"not a URL")
        if target.path not in self._paths:
            return _refuse(HTTPStatus.NOT_FOUND, b"no WebSocket here")
        if not self._origin_allowed(request.headers.get("Origin")):
            return _refuse(HTTPStatus.FORBIDDEN, b"origin not allowed")
        offered = offered_subprotocols(request.headers.getall("Sec-WebSocket-Protocol", []))
        chosen = chosen_subprotocol(offered)
        headers = {name.lower(): value for name, value in request.headers.items()}
        params = query_params(target.query)
        remote, scheme = peer.address, self._scheme
        if self._proxies:
            forwarded = joined_headers(request.headers.getall, FORWARDING_HEADERS)
            remote, scheme = self._proxies.client(peer, scheme, forwarded)
        connect = ConnectRequest(
            url=f"{scheme}://{headers.get('host', '')}{request.path.decode('latin-1')}",
            path=target.path,
            headers=headers,
            params=params,
            remote=remote,
            token=find_token(self._token_param, headers, params, offered),
            extended=chosen == EXTENDED,
            options=client_options(headers, params),
        )
        connection = WebSocketConnection(self, connect)
        return WSUpgradeResponseWithListener(SwitchingProtocols(chosen), connection), connection


def _refuse(status: HTTPStatus, text: bytes) -> tuple[WSUpgradeResponseWithListener, None]:
    return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, text), None), None


def _bound_kernel_buffer(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER)
