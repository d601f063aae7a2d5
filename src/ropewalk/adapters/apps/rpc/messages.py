"""The messages of the RPC wire. Names are those of the JSON, numbers those of the protobuf: every field is declared here only.

Zero values are omitted on the wire, and missing fields have them. Unknown fields are ignored.
`Restore` is an extension of Ropewalk, which reports restored sessions.
"""

from enum import IntEnum
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from ropewalk.model.errors import ApplicationError


class Status(IntEnum):
    ERROR = 0
    SUCCESS = 1
    FAILURE = 2


def at(number: int) -> Meta:
    """The field's number in protobuf."""
    return Meta(extra={"number": number})


class RpcMessage(Struct, frozen=True, omit_defaults=True):
    """One message of the wire."""


class Env(RpcMessage, frozen=True):
    url: Annotated[str, at(1)] = ""
    headers: Annotated[dict[str, str], at(2)] = {}
    cstate: Annotated[dict[str, str], at(3)] = {}
    istate: Annotated[dict[str, str], at(4)] = {}


class EnvResponse(RpcMessage, frozen=True):
    cstate: Annotated[dict[str, str], at(1)] = {}
    istate: Annotated[dict[str, str], at(2)] = {}


class PresenceResponse(RpcMessage, frozen=True):
    type: Annotated[str, at(1)] = ""
    id: Annotated[str, at(2)] = ""
    info: Annotated[str, at(3)] = ""
    ttl: Annotated[int, at(4)] = 0


class Response(RpcMessage, frozen=True):
    """The base of all responses. `error_msg` has a different number in each."""

    status: Annotated[Status, at(1)] = Status.ERROR


class ConnectionRequest(RpcMessage, frozen=True):
    env: Annotated[Env, at(3)] = Env()


class ConnectionResponse(Response, frozen=True):
    identifiers: Annotated[str, at(2)] = ""
    transmissions: Annotated[list[str], at(3)] = []
    error_msg: Annotated[str, at(4)] = ""
    env: Annotated[EnvResponse, at(5)] = EnvResponse()


class CommandMessage(RpcMessage, frozen=True):
    command: Annotated[str, at(1)] = ""
    identifier: Annotated[str, at(2)] = ""
    connection_identifiers: Annotated[str, at(3)] = ""
    data: Annotated[str, at(4)] = ""
    env: Annotated[Env, at(5)] = Env()


class CommandResponse(Response, frozen=True):
    disconnect: Annotated[bool, at(2)] = False
    stop_streams: Annotated[bool, at(3)] = False
    streams: Annotated[list[str], at(4)] = []
    transmissions: Annotated[list[str], at(5)] = []
    error_msg: Annotated[str, at(6)] = ""
    env: Annotated[EnvResponse, at(7)] = EnvResponse()
    stopped_streams: Annotated[list[str], at(8)] = []
    presence: Annotated[PresenceResponse, at(9)] = PresenceResponse()


class DisconnectRequest(RpcMessage, frozen=True):
    identifiers: Annotated[str, at(1)] = ""
    subscriptions: Annotated[list[str], at(2)] = []
    env: Annotated[Env, at(5)] = Env()


class DisconnectResponse(Response, frozen=True):
    error_msg: Annotated[str, at(2)] = ""


class RestoreRequest(RpcMessage, frozen=True):
    former_sid: Annotated[str, at(1)] = ""
    identifiers: Annotated[str, at(2)] = ""
    subscriptions: Annotated[list[str], at(3)] = []
    env: Annotated[Env, at(5)] = Env()


class RestoreResponse(Response, frozen=True):
    error_msg: Annotated[str, at(2)] = ""
    transmissions: Annotated[list[str], at(3)] = []
    disconnect: Annotated[bool, at(4)] = False
    env: Annotated[EnvResponse, at(5)] = EnvResponse()


Q = TypeVar("Q", bound=RpcMessage)
M = TypeVar("M", bound=RpcMessage)


class Method(Struct, Generic[Q, M], frozen=True):
    """A method of the application. Its name is lower case over HTTP."""

    name: str
    request: type[Q]
    response: type[M]


CONNECT = Method("Connect", ConnectionRequest, ConnectionResponse)
COMMAND = Method("Command", CommandMessage, CommandResponse)
DISCONNECT = Method("Disconnect", DisconnectRequest, DisconnectResponse)
RESTORE = Method("Restore", RestoreRequest, RestoreResponse)


def from_plain(plain: object, kind: type[M]) -> M:
    """Converts decoded dicts, lists and scalars of either wire. Raises ApplicationError for another shape.

    A status may be a number or its name, and null is a zero value: protobuf libraries write all of these.
    """
    if not isinstance(plain, dict):
        raise ApplicationError("the application's response cannot be read: it is not an object")
    try:
        return msgspec.convert(_convert_status(_without_nulls(plain)), kind)
    except ValueError as error:
        raise ApplicationError(f"the application's response cannot be read: {error}") from None


def _convert_status(fields: dict[str, Any]) -> dict[str, Any]:
    status = fields.get("status")
    return {**fields, "status": Status[status]} if isinstance(status, str) and status in Status.__members__ else fields


def _without_nulls(fields: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Removes null fields. The values of maps, which are the third level, become empty text."""
    if depth == 2:
        return {key: "" if value is None else value for key, value in fields.items()}
    return {
        name: _without_nulls(value, depth + 1) if isinstance(value, dict) else value
        for name, value in fields.items()
        if value is not None
    }
