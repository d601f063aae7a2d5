"""The messages as protobuf. The descriptors are made from the messages' fields at import, in a pool of our own.

So there is no generated code that needs one version of the library, and no conflict with an application's copy of the file.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from msgspec import inspect

from ropewalk.adapters.apps.rpc.messages import (
    COMMAND,
    CONNECT,
    DISCONNECT,
    RESTORE,
    Env,
    EnvResponse,
    M,
    PresenceResponse,
    RpcMessage,
    Status,
    from_plain,
)
from ropewalk.model.errors import ApplicationError

PACKAGE = "anycable"

_METHODS = (CONNECT, COMMAND, DISCONNECT, RESTORE)
_PARTS: tuple[type[RpcMessage], ...] = (Env, EnvResponse, PresenceResponse)
_KINDS = _PARTS + tuple(kind for method in _METHODS for kind in (method.request, method.response))

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {inspect.StrType: _Field.TYPE_STRING, inspect.BoolType: _Field.TYPE_BOOL, inspect.IntType: _Field.TYPE_UINT32}


def encode(message: RpcMessage) -> bytes:
    """Raises ApplicationError for text that is not Unicode."""
    try:
        encoded: bytes = _classes[type(message)](**msgspec.to_builtins(message)).SerializeToString(deterministic=True)
    except ValueError:  # or a subclass: the library has several implementations
        raise ApplicationError("the call contains text that is not Unicode and cannot be sent to the application") from None
    return encoded


def decode(data: bytes, kind: type[M]) -> M:
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
