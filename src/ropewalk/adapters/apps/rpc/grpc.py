"""An application behind gRPC: a target, or a list of targets that take turns.

Channels reconnect in the background within a second or two.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from grpc import ChannelConnectivity, StatusCode
from grpc.aio import AioRpcError, Channel
from msgspec import Struct, inspect

from ropewalk.adapters.apps.rpc.application import PROTOCOL, RpcApplication, UnknownMethod
from ropewalk.adapters.apps.rpc.calls import ApplicationUnreachable, Busy, Calls
from ropewalk.adapters.apps.rpc.messages import (
    COMMAND,
    CONNECT,
    DISCONNECT,
    RESTORE,
    Env,
    EnvResponse,
    M,
    Method,
    PresenceResponse,
    Q,
    RpcMessage,
    Status,
    from_plain,
)
from ropewalk.model.errors import ApplicationError, ServerError, Unanswered, Unavailable, UserMistake
from ropewalk.ports import Publisher

log = logging.getLogger("ropewalk.application")

_TOO_LARGE = "larger than max"

LIST = "grpc-list://"

_RESOLVED = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds")
_HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})", re.ASCII)

_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.lb_policy_name", "round_robin"),
    # More than ten seconds: common servers allow a ping every ten, and treat an earlier one as an attack.
    ("grpc.keepalive_time_ms", 12_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The default backoff is up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    # The application is in the same network; a proxy in the environment is for the internet.
    ("grpc.enable_http_proxy", 0),
    # Close connections with their channel.
    ("grpc.use_local_subchannel_pool", 1),
)

_BY_STATE = {ChannelConnectivity.READY: 0, ChannelConnectivity.IDLE: 1, ChannelConnectivity.CONNECTING: 2}
_LAST = 3


class GrpcOptions(Struct, frozen=True):
    """Options of the channels.

    Args:
        tls_root_ca: path of the certificates to trust; "" for those of the library.
        max_receive_bytes: 0 for the library's limit.
        max_send_bytes: 0 for the library's limit.
    """

    tls: bool = False
    tls_root_ca: str = ""
    max_receive_bytes: int = 0
    max_send_bytes: int = 0


_DEFAULT_OPTIONS = GrpcOptions()


class GrpcApplication(RpcApplication):
    """An application at `host`.

    Args:
        host: `host:port`, a name that gRPC resolves (`dns:///host:port`: its addresses take turns), or a list
            (`grpc-list://a:1,b:2`): its members take turns, and if one is unreachable the next is tried.
    """

    def __init__(self, host: str, calls: Calls, options: GrpcOptions = _DEFAULT_OPTIONS, *, restore: bool = False) -> None:
        super().__init__(calls, restore)
        self._host = host
        self._targets = _parse_targets(host)
        self._open_channel = _channel_opener(options)
        self._tls = options.tls
        self._channels: GrpcChannels | None = None

    async def start(self, publisher: Publisher) -> None:
        self._channels = GrpcChannels(self._targets, self._open_channel)
        log.info("calling the application over gRPC", extra={"host": self._host, "tls": self._tls})

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
        body, deadline = encode_protobuf(request), time.monotonic() + seconds
        unreachable: ApplicationUnreachable | None = None
        for channel in self._channels.in_turn():
            try:
                return decode_protobuf(
                    await _send(channel, method.name, sid, body, deadline - time.monotonic()), method.response
                )
            except ApplicationUnreachable as error:
                unreachable = error
        raise unreachable or Unavailable("there is no connection to the application")


async def _send(channel: Channel, method: str, sid: str, body: bytes, seconds: float) -> bytes:
    call = channel.unary_unary(f"/{PACKAGE}.RPC/{method}")
    try:
        answer: bytes = await call(body, timeout=seconds, metadata=(("sid", sid), ("protov", PROTOCOL)))
    except AioRpcError as error:
        raise _convert_error(error) from None
    except asyncio.CancelledError:
        # A channel that is closed cancels its calls. Their callers are not cancelled: they need an error.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Unanswered("the connection to the application was closed") from None
    return answer


def _convert_error(error: AioRpcError) -> ServerError:
    code, details = error.code(), error.details() or ""
    text = f"{code.name}: {details}" if details else code.name
    match code:
        case StatusCode.UNAVAILABLE:
            return ApplicationUnreachable(text)
        # The library has the same code for a message that is too large, where a retry cannot succeed.
        case StatusCode.RESOURCE_EXHAUSTED if _TOO_LARGE not in details:
            return Busy(text)
        case StatusCode.DEADLINE_EXCEEDED | StatusCode.CANCELLED:
            return Unanswered(text)
        case StatusCode.UNIMPLEMENTED:
            return UnknownMethod(text)
        case _:
            return ApplicationError(text)


# --- channels ------------------------------------------------------------------------------------------------------------


def _channel_opener(options: GrpcOptions) -> Callable[[str], Channel]:
    """Returns a function that opens a channel to a target. Raises UserMistake for a file that cannot be read."""
    given = [*_OPTIONS]
    if options.max_receive_bytes:
        given.append(("grpc.max_receive_message_length", options.max_receive_bytes))
    if options.max_send_bytes:
        given.append(("grpc.max_send_message_length", options.max_send_bytes))
    if not options.tls:
        return lambda target: grpc.aio.insecure_channel(target, given)
    credentials = grpc.ssl_channel_credentials(root_certificates=_read_root_ca(options.tls_root_ca))
    return lambda target: grpc.aio.secure_channel(target, credentials, given)


def _parse_targets(host: str) -> list[str]:
    """`host:port` and other names that gRPC resolves are one target; `grpc-list://a:1,b:2` are several. Raises UserMistake."""
    names = host.removeprefix(LIST).split(",") if host.startswith(LIST) else [host]
    found = [name.strip() for name in names if name.strip()]
    if not found or not all(map(_is_target, found)):  # the error leaves out the value: another kind of URL may hold a password
        raise UserMistake(
            f"--rpc_host names no application: give host:port, dns:///host:port or {LIST}host:port,host:port for gRPC, "
            "or http://host:port/path for RPC over HTTP"
        )
    return found


def _is_target(target: str) -> bool:
    """True for `host:port` and the schemes that gRPC resolves. It would take any other text for the name of a host."""
    scheme, colon, rest = target.partition(":")
    if colon and scheme in _RESOLVED:
        return bool(rest.strip("/"))
    found = _HOST_AND_PORT.fullmatch(target)
    return found is not None and int(found[1]) <= 65535


class GrpcChannels:
    """A channel for each target. They start to connect at once."""

    def __init__(self, hosts: Sequence[str], open_channel: Callable[[str], Channel]) -> None:
        self._channels = [open_channel(host) for host in hosts]
        self._turn = 0
        for channel in self._channels:
            channel.get_state(try_to_connect=True)

    def in_turn(self) -> list[Channel]:
        """All channels in the order to try. Connected ones come first, so that an unreachable target delays no call."""
        if len(self._channels) == 1:
            return self._channels
        self._turn = (self._turn + 1) % len(self._channels)
        rotated = self._channels[self._turn :] + self._channels[: self._turn]
        return sorted(rotated, key=lambda channel: _BY_STATE.get(channel.get_state(try_to_connect=True), _LAST))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _read_root_ca(path: str) -> bytes | None:
    """None stands for the certificates of the library."""
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserMistake(f"the root certificates {path} cannot be read: {error.strerror}") from None


PACKAGE = "anycable"

_METHODS = (CONNECT, COMMAND, DISCONNECT, RESTORE)
_PARTS: tuple[type[RpcMessage], ...] = (Env, EnvResponse, PresenceResponse)
_KINDS = _PARTS + tuple(kind for method in _METHODS for kind in (method.request, method.response))

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {inspect.StrType: _Field.TYPE_STRING, inspect.BoolType: _Field.TYPE_BOOL, inspect.IntType: _Field.TYPE_UINT32}


def encode_protobuf(message: RpcMessage) -> bytes:
    """Raises ApplicationError for text that is not Unicode."""
    try:
        encoded: bytes = _classes[type(message)](**msgspec.to_builtins(message)).SerializeToString(deterministic=True)
    except ValueError:  # or a subclass: the library has several implementations
        raise ApplicationError("the call contains text that is not Unicode and cannot be sent to the application") from None
    return encoded


def decode_protobuf(data: bytes, kind: type[M]) -> M:
    """Raises ApplicationError for data that is not such a message."""
    try:
        return from_plain(_plain(_classes[kind].FromString(data)), kind)
    except (DecodeError, ValueError):
        raise ApplicationError("the application's response cannot be read: it is not the expected protobuf message") from None


def _plain(message: Any) -> dict[str, Any]:
    return {field.name: _plain_value(value) for field, value in message.ListFields()}


def _plain_value(value: Any) -> Any:
    match value:
        case str() | int():
            return value
        case ProtobufMessage():
            return _plain(value)
        case Mapping():
            return dict(value)
        case _:
            return list(value)


# --- descriptors -----------------------------------------------------------------------------------------------------


def _describe_file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="anycable/rpc.proto", package=PACKAGE, syntax="proto3")
    statuses = file.enum_type.add(name=Status.__name__)
    for status in Status:
        statuses.value.add(name=status.name, number=status.value)
    for kind in _KINDS:
        _describe_message(kind, file.message_type.add(name=kind.__name__))
    return file


def _describe_message(kind: type[RpcMessage], message: Any) -> None:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        assert isinstance(field.type, inspect.Metadata)
        extra = field.type.extra or {}
        _describe_field(message, message.field.add(name=field.name, number=extra["number"]), field.type.type)


def _describe_field(message: Any, field: Any, kind: inspect.Type) -> None:
    field.label = _Field.LABEL_OPTIONAL
    match kind:
        case inspect.DictType():
            _describe_map(message, field)
        case inspect.ListType():
            field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_STRING
        case inspect.StructType(cls=cls):
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{cls.__name__}"
        case inspect.EnumType(cls=cls):
            field.type, field.type_name = _Field.TYPE_ENUM, f".{PACKAGE}.{cls.__name__}"
        case _:
            field.type = _SCALARS[type(kind)]


def _describe_map(message: Any, field: Any) -> None:
    """A map is a list of entries on the wire: messages of a key and a value."""
    entry = message.nested_type.add(name=f"{field.name.capitalize()}Entry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
    field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"


def _make_classes() -> dict[type[RpcMessage], Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_describe_file())
    find = pool.FindMessageTypeByName
    return {kind: message_factory.GetMessageClass(find(f"{PACKAGE}.{kind.__name__}")) for kind in _KINDS}


_classes = _make_classes()
