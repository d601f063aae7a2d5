"""The engine's records ↔ the messages of the wire. An answer with the status ERROR is an ApplicationError.

In a call the `env` carries the state of its subscription as it is. In a comeback and a farewell, which concern all of them, it
carries the JSON text of each by identifier.
"""

import msgspec

from ropewalk.adapters.apps.rpc.messages import (
    CommandMessage,
    CommandResponse,
    ConnectionRequest,
    ConnectionResponse,
    DisconnectRequest,
    DisconnectResponse,
    Env,
    PresenceResponse,
    RestoreRequest,
    RestoreResponse,
    Status,
)
from ropewalk.model.application import Admission, Answer, Call, Caller, Comeback, Farewell, Greeting, Seating, State
from ropewalk.model.errors import ApplicationError
from ropewalk.model.nesting import TOO_DEEP, too_deep
from ropewalk.model.presence import Member

_decode_state = msgspec.json.Decoder(State).decode


# --- what is asked ---------------------------------------------------------------------------------------------------


def connection_request(caller: Caller) -> ConnectionRequest:
    return ConnectionRequest(_env(caller))


def command_message(call: Call) -> CommandMessage:
    return CommandMessage(str(call.action), call.identifier, call.caller.ids, call.data, _env(call.caller, call.state))


def restore_request(comeback: Comeback) -> RestoreRequest:
    states = comeback.subscriptions
    return RestoreRequest(comeback.former, comeback.caller.ids, list(states), _env(comeback.caller, _as_text(states)))


def disconnect_request(farewell: Farewell) -> DisconnectRequest:
    states = farewell.subscriptions
    return DisconnectRequest(farewell.caller.ids, list(states), _env(farewell.caller, _as_text(states)))


def _env(caller: Caller, istate: State | None = None) -> Env:
    headers = {name: _clean(value) for name, value in caller.headers.items()}
    return Env(_clean(caller.url), headers, caller.state, istate or {})


def _clean(text: str) -> str:
    """Bytes of a request that were no UTF-8 arrive as halves of surrogate pairs, which no wire can carry."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _as_text(states: dict[str, State]) -> State:
    return {identifier: msgspec.json.encode(state).decode() for identifier, state in states.items() if state}


# --- what is answered ------------------------------------------------------------------------------------------------


def admission(response: ConnectionResponse) -> Admission:
    accepted = _accepted(response.status, response.error_msg)
    transmissions = tuple(response.transmissions)
    return Admission(accepted, response.identifiers, transmissions, response.env.cstate, response.error_msg)


def answer(response: CommandResponse) -> Answer:
    return Answer(
        accepted=_accepted(response.status, response.error_msg),
        transmissions=tuple(response.transmissions),
        streams=tuple(response.streams),
        stopped=tuple(response.stopped_streams),
        stop_all=response.stop_streams,
        state=response.env.cstate,
        own=response.env.istate,
        seating=_seating(response.presence),
        disconnect=response.disconnect,
        reason=response.error_msg,
    )


def greeting(response: RestoreResponse) -> Greeting:
    """An application that does not accept the comeback wants the session closed, whatever else it says."""
    refused = not _accepted(response.status, response.error_msg)
    own = {identifier: _changes(text) for identifier, text in response.env.istate.items()}
    return Greeting(tuple(response.transmissions), response.env.cstate, own, disconnect=response.disconnect or refused)


def acknowledged(response: DisconnectResponse) -> None:
    """Whether it liked to hear of it does not matter; that it failed does."""
    _accepted(response.status, response.error_msg)


def _accepted(status: Status, reason: str) -> bool:
    if status is Status.ERROR:
        raise ApplicationError(reason or "the application answered with an error and did not say which")
    return status is Status.SUCCESS


def _seating(presence: PresenceResponse) -> Seating | None:
    match presence.type:
        case "":
            return None
        case "leave":
            return Seating(False, Member(presence.id, _info(presence.info)))
        case "join" if presence.id:
            return Seating(True, Member(presence.id, _info(presence.info)))
        case "join":
            raise ApplicationError("the application lets somebody without an id join a presence set")
        case other:
            raise ApplicationError(f"the application's presence is neither a join nor a leave but {other!r}")


def _info(text: str) -> bytes:
    """JSON text as it is; any other text becomes a JSON string."""
    if not text:
        return b""
    if too_deep(text):
        raise ApplicationError(f"what the application says of a member is {TOO_DEEP}")
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
