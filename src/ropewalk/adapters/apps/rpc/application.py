"""The application port over RPC, common to gRPC and HTTP: converts records to messages and back, and makes the calls."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ropewalk.adapters.apps.rpc.calls import Calls
from ropewalk.adapters.apps.rpc.messages import (
    COMMAND,
    CONNECT,
    DISCONNECT,
    RESTORE,
    CommandMessage,
    CommandResponse,
    ConnectionRequest,
    ConnectionResponse,
    DisconnectRequest,
    DisconnectResponse,
    Env,
    M,
    Method,
    PresenceResponse,
    Q,
    RestoreRequest,
    RestoreResponse,
    Status,
)
from ropewalk.adapters.apps.slots import StillWanted, always
from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    PresenceUpdate,
    RestoreCall,
    RestoreResult,
    State,
)
from ropewalk.model.errors import ApplicationError
from ropewalk.model.nesting import TOO_DEEP, is_too_deep
from ropewalk.model.presence import Member
from ropewalk.ports import Publisher

log = logging.getLogger("ropewalk.application")

PROTOCOL = "v1"
"""The version of the messages, sent with every call. Servers refuse unknown versions."""

T = TypeVar("T")


class UnknownMethod(ApplicationError):
    """The application does not have the method."""


class RpcApplication(ABC):
    """An application behind RPC. With `restore`, restored sessions are reported to it, unless it lacks the method."""

    def __init__(self, calls: Calls, restore: bool) -> None:
        self._calls = calls
        self._restore = restore

    @abstractmethod
    async def start(self, publisher: Publisher) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def _ask(self, method: Method[Q, M], sid: str, request: Q, seconds: float) -> M:
        """Makes one attempt, as `AttemptFunction` describes. Raises UnknownMethod if the application lacks the method."""

    async def connect(self, context: CallContext, wanted: StillWanted = always) -> ConnectResult:
        return await self._call(CONNECT, context.sid, connection_request(context), connect_result, wanted)

    async def command(self, call: CommandCall) -> CommandResult:
        return await self._call(COMMAND, call.context.sid, command_message(call), command_result)

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        if not self._restore:
            return RestoreResult()
        request = restore_request(restore_call)

        async def attempt(seconds: float) -> RestoreResult:
            try:
                return restore_result(await self._ask(RESTORE, restore_call.context.sid, request, seconds))
            except UnknownMethod:
                self._disable_restore()
                return RestoreResult()

        return await self._calls.make(attempt)

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        await self._call(DISCONNECT, disconnect_call.context.sid, disconnect_request(disconnect_call), acknowledged)

    @property
    @abstractmethod
    def _started(self) -> bool:
        """True between start and stop."""

    def health(self) -> str:
        return self._calls.health() if self._started else "the connection to the application is closed"

    def gauges(self) -> dict[str, float]:
        return self._calls.gauges()

    async def _call(
        self, method: Method[Q, M], sid: str, request: Q, read: Callable[[M], T], wanted: StillWanted = always
    ) -> T:
        async def attempt(seconds: float) -> T:
            return read(await self._ask(method, sid, request, seconds))

        return await self._calls.make(attempt, wanted)

    def _disable_restore(self) -> None:
        if self._restore:
            log.info("the application does not implement Restore: restored sessions are not reported to it")
        self._restore = False


_decode_state = msgspec.json.Decoder(State).decode


# --- requests ---------------------------------------------------------------------------------------------------------


def connection_request(context: CallContext) -> ConnectionRequest:
    return ConnectionRequest(_env(context))


def command_message(call: CommandCall) -> CommandMessage:
    return CommandMessage(str(call.action), call.identifier, call.context.ids, call.data, _env(call.context, call.state))


def restore_request(restore_call: RestoreCall) -> RestoreRequest:
    states = restore_call.subscriptions
    return RestoreRequest(
        restore_call.former, restore_call.context.ids, list(states), _env(restore_call.context, _as_text(states))
    )


def disconnect_request(disconnect_call: DisconnectCall) -> DisconnectRequest:
    states = disconnect_call.subscriptions
    return DisconnectRequest(disconnect_call.context.ids, list(states), _env(disconnect_call.context, _as_text(states)))


def _env(context: CallContext, istate: State | None = None) -> Env:
    headers = {name: _clean(value) for name, value in context.headers.items()}
    return Env(_clean(context.url), headers, context.state, istate or {})


def _clean(text: str) -> str:
    """Bytes of a request that are not UTF-8 are halves of surrogate pairs here, which neither wire can carry."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _as_text(states: dict[str, State]) -> State:
    return {identifier: msgspec.json.encode(state).decode() for identifier, state in states.items() if state}


# --- responses --------------------------------------------------------------------------------------------------------


def connect_result(response: ConnectionResponse) -> ConnectResult:
    accepted = _accepted(response.status, response.error_msg)
    transmissions = tuple(response.transmissions)
    return ConnectResult(accepted, response.identifiers, transmissions, response.env.cstate, response.error_msg)


def command_result(response: CommandResponse) -> CommandResult:
    return CommandResult(
        accepted=_accepted(response.status, response.error_msg),
        transmissions=tuple(response.transmissions),
        streams=tuple(response.streams),
        stopped=tuple(response.stopped_streams),
        stop_all=response.stop_streams,
        state=response.env.cstate,
        own=response.env.istate,
        presence_update=_presence_update(response.presence),
        disconnect=response.disconnect,
        reason=response.error_msg,
    )


def restore_result(response: RestoreResponse) -> RestoreResult:
    """A restored session that the application does not accept is closed."""
    refused = not _accepted(response.status, response.error_msg)
    own = {identifier: _changes(text) for identifier, text in response.env.istate.items()}
    return RestoreResult(tuple(response.transmissions), response.env.cstate, own, disconnect=response.disconnect or refused)


def acknowledged(response: DisconnectResponse) -> None:
    """Raises ApplicationError for the status ERROR; any other status is a success."""
    _accepted(response.status, response.error_msg)


def _accepted(status: Status, reason: str) -> bool:
    if status is Status.ERROR:
        raise ApplicationError(reason or "the application responded with an error without a message")
    return status is Status.SUCCESS


def _presence_update(presence: PresenceResponse) -> PresenceUpdate | None:
    match presence.type:
        case "":
            return None
        case "leave":
            return PresenceUpdate(False, Member(presence.id, _info(presence.info)))
        case "join" if presence.id:
            return PresenceUpdate(True, Member(presence.id, _info(presence.info)))
        case "join":
            raise ApplicationError("the application's presence join has no id")
        case other:
            raise ApplicationError(f"the application's presence type must be join or leave, not {other!r}")


def _info(text: str) -> bytes:
    """JSON text as it is; any other text becomes a JSON string."""
    if not text:
        return b""
    if is_too_deep(text):
        raise ApplicationError(f"the application's presence info is {TOO_DEEP}")
    try:
        msgspec.json.decode(text)
    except ValueError:
        return msgspec.json.encode(text)
    return text.encode()


def _changes(text: str) -> State:
    try:
        return _decode_state(text)
    except ValueError as error:
        raise ApplicationError(f"the application's state of a subscription is not JSON text of strings: {error}") from None
