"""An application asked over gRPC."""

import asyncio
import logging
import time

from grpc import StatusCode
from grpc.aio import AioRpcError, Channel

from ropewalk.adapters.apps.rpc.application import PROTOCOL, RpcApplication, UnknownMethod
from ropewalk.adapters.apps.rpc.calls import ApplicationUnreachable, Busy, Calls
from ropewalk.adapters.apps.rpc.channels import GrpcChannels, opener, targets
from ropewalk.adapters.apps.rpc.messages import M, Method, Q
from ropewalk.adapters.apps.rpc.protobuf import PACKAGE, decode, encode
from ropewalk.model.errors import ApplicationError, ServerError, Unanswered, Unavailable
from ropewalk.ports import Publisher

log = logging.getLogger("ropewalk.application")

_TOO_LARGE = "larger than max"


class GrpcApplication(RpcApplication):
    """`host` is `host:port`, a name that gRPC resolves (`dns:///host:port`: every address in turn), or a list
    (`grpc-list://a:1,b:2`): its members take turns, and where one is away the next is asked.

    `tls_root_ca` is the path of the certificates to believe; sizes are in bytes. Empty and 0 are what the library has.
    """

    def __init__(
        self,
        host: str,
        calls: Calls,
        *,
        restore: bool = False,
        tls: bool = False,
        tls_root_ca: str = "",
        max_recv: int = 0,
        max_send: int = 0,
    ) -> None:
        super().__init__(calls, restore)
        self._host = host
        self._targets = targets(host)
        self._open_channel = opener(tls, tls_root_ca, max_recv, max_send)
        self._tls = tls
        self._channels: GrpcChannels | None = None

    async def start(self, publisher: Publisher) -> None:
        self._channels = GrpcChannels(self._targets, self._open_channel)
        log.info("the application is asked over gRPC", extra={"host": self._host, "tls": self._tls})

    async def stop(self) -> None:
        channels, self._channels = self._channels, None
        if channels is not None:
            await channels.close()

    @property
    def _started(self) -> bool:
        return self._channels is not None

    async def _ask(self, method: Method[Q, M], sid: str, request: Q, seconds: float) -> M:
        if self._channels is None:
            raise Unavailable("the connection to the application is closed")
        body, deadline = encode(request), time.monotonic() + seconds
        away: ApplicationUnreachable | None = None
        for channel in self._channels.in_turn():
            try:
                return decode(await _send(channel, method.name, sid, body, deadline - time.monotonic()), method.response)
            except ApplicationUnreachable as error:
                away = error
        raise away or Unavailable("there is nobody to ask")


async def _send(channel: Channel, method: str, sid: str, body: bytes, seconds: float) -> bytes:
    ask = channel.unary_unary(f"/{PACKAGE}.RPC/{method}")
    try:
        answer: bytes = await ask(body, timeout=seconds, metadata=(("sid", sid), ("protov", PROTOCOL)))
    except AioRpcError as error:
        raise _translated(error) from None
    except asyncio.CancelledError:
        # A channel that is closed cancels its calls; their callers are not cancelled and have to be told.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unanswered("the connection to the application was closed") from None
    return answer


def _translated(error: AioRpcError) -> ServerError:
    code, details = error.code(), error.details() or ""
    text = f"{code.name}: {details}" if details else code.name
    match code:
        case StatusCode.UNAVAILABLE:
            return ApplicationUnreachable(text)
        # The library says the same of a message that is too large, and that will be so next time.
        case StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE not in details:
            return Busy(text)
        case StatusCode.DEADLINE_EXCEEDED | StatusCode.CANCELLED:
            return Unanswered(text)
        case StatusCode.UNIMPLEMENTED:
            return UnknownMethod(text)
        case _:
            return ApplicationError(text)
