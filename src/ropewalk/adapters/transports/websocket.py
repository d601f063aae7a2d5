"""WebSocket by picows: one object a connection, which picows calls and the engine writes to.

Frames are built by the codec and written raw; picows parses what comes in. Closing waits a moment for the peer's own
close frame, so that our last words are not lost to a TCP reset.
"""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

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

from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection, Visitor
from ropewalk.protocol.codec import Codec
from ropewalk.protocol.handshake import EXTENDED, asks_positions, chosen_subprotocol, offered_subprotocols, token_of
from ropewalk.protocol.websocket_frame import CableCodec, close_frame

CLOSE_PATIENCE = 1.0
READ_BUFFER = 1024  # grows when needed; picows' default of 16 KiB is most of what an idle connection would cost

Open = Callable[[ConnectRequest, Connection, Codec], Visitor]


class _Silent:
    """picows makes a Logger a connection out of a real one; what it would say, our own log says."""

    def isEnabledFor(self, level: int) -> bool:
        return False

    def log(self, *args: object, **kwargs: object) -> None:
        pass

    debug = info = warning = error = exception = log


SILENT = _Silent()


class WebSocketConnection(WSListener):
    """A `Connection`. `write` is the transport's own method, so that a delivery costs one call."""

    __slots__ = ("_closing", "_door", "_going_away", "_parts", "_request", "_size", "_transport", "_visitor", "write")

    def __init__(self, door: "WebSocketDoor", request: ConnectRequest) -> None:
        self._door = door
        self._request: ConnectRequest | None = request
        self._parts: list[bytes] | None = None
        self._size = 0
        self._closing = False
        self._going_away = False

    # --- picows calls -------------------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport.underlying_transport
        self.write = self._transport.write
        self._door.connections += 1
        assert self._request is not None
        self._visitor = self._door.open_session(self._request, self, self._door.codec(self._request))
        self._request = None  # nobody needs it once the session is opening
        # picows would keep both for the connection's life: a quarter of what an idle one costs.
        transport.request.headers.clear()
        transport.response.headers.clear()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        match frame.msg_type:
            case WSMsgType.CLOSE:
                self._going_away = frame.get_close_code() is WSCloseCode.GOING_AWAY
                self.close(WSCloseCode.OK.value, "")
                self._transport.close()
            case WSMsgType.PONG:
                self._visitor.heard()
            case WSMsgType.PING:
                pass  # answered by picows
            case _ if frame.payload_size > self._door.max_message_size:
                pass  # picows has said 1009, but still hands over what arrived before it hung up
            case _ if frame.rsv1 or frame.rsv2 or frame.rsv3:
                self._visitor.malformed("reserved bits are set", WSCloseCode.PROTOCOL_ERROR.value)
            case kind if frame.fin and self._parts is None and kind is not WSMsgType.CONTINUATION:
                self._visitor.receive(frame.get_payload_as_bytes())
            case kind:
                self._assemble(kind is WSMsgType.CONTINUATION, frame)

    def _assemble(self, continues: bool, frame: WSFrame) -> None:
        if continues is (self._parts is None):
            self._visitor.malformed("fragments out of order", WSCloseCode.PROTOCOL_ERROR.value)
            return
        self._parts = [*(self._parts or ()), frame.get_payload_as_bytes()]
        self._size += frame.payload_size
        if self._size > self._door.max_message_size:
            self._visitor.malformed("message too big", WSCloseCode.MESSAGE_TOO_BIG.value)
        elif frame.fin:
            message, self._parts, self._size = b"".join(self._parts), None, 0
            self._visitor.receive(message)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._closing = True
        self._door.connections -= 1
        self._visitor.lost(self._going_away)

    def pause_writing(self) -> None:
        self._visitor.writing_paused()

    def resume_writing(self) -> None:
        self._visitor.writing_resumed()

    # --- the engine calls ---------------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        if self._closing:
            return
        self._closing = True
        self.write(close_frame(code, text))
        asyncio.get_running_loop().call_later(CLOSE_PATIENCE, self._finish)

    def _finish(self) -> None:
        if self._transport.get_write_buffer_size():
            self._transport.abort()  # it does not read: flushing would wait for ever
        else:
            self._transport.close()

    def pending(self) -> int:
        return self._transport.get_write_buffer_size()

    def hold_reading(self, hold: bool) -> None:
        if self._transport.is_closing():
            return
        if hold:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()


class WebSocketDoor:
    """Decides on upgrade requests and makes picows' protocol objects for the connections that may come in."""

    def __init__(
        self,
        open_session: Open,
        paths: Sequence[str],
        origin_allowed: Callable[[str | None], bool],
        token_param: str,
        max_message_size: int,
        native_pings: bool,
        secure: bool,
    ) -> None:
        self.open_session = open_session
        self.connections = 0
        self._paths = frozenset(paths)
        self._origin_allowed = origin_allowed
        self._token_param = token_param
        self.max_message_size = max_message_size
        self._plain, self._telling = CableCodec(native_pings), CableCodec(native_pings, tells_positions=True)
        self._scheme = "https" if secure else "http"

    def protocol(self, remote: str) -> WSProtocol:
        return WSProtocol(
            None,
            None,
            False,
            lambda request: self._upgrade(request, remote),
            SILENT,
            True,
            None,
            False,
            0,
            0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            True,
            self.max_message_size,
            None,
            READ_BUFFER,
        )

    def codec(self, request: ConnectRequest) -> Codec:
        return self._telling if asks_positions(request.params) else self._plain

    def _upgrade(self, request: WSUpgradeRequest, remote: str) -> WSUpgradeResponseWithListener:
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
        params = dict(parse_qsl(target.query, keep_blank_values=True))
        connect = ConnectRequest(
            url=f"{self._scheme}://{headers.get('host', '')}{request.path.decode('latin-1')}",
            path=target.path,
            headers=headers,
            params=params,
            remote=remote,
            token=token_of(self._token_param, headers, params, offered),
            extended=chosen == EXTENDED,
        )
        listener = WebSocketConnection(self, connect)
        extra = {"Sec-WebSocket-Protocol": chosen} if chosen else None
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(extra), listener)


def _refuse(status: HTTPStatus, text: bytes) -> WSUpgradeResponseWithListener:
    return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, text), None)
