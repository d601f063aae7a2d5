"""The RPC wire seen from the other side: a message that came in is put to a backend, and what it says becomes the answer.

A backend has the four calls of `ports.Application`, in the engine's own records. For an answer with the status ERROR it raises
ApplicationError.
"""

import json
from typing import Any, Protocol

from ropewalk.adapters.apps.rpc import messages as wire
from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    PresenceUpdate,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError


class Backend(Protocol):
    async def connect(self, context: CallContext) -> ConnectResult: ...
    async def command(self, call: CommandCall) -> CommandResult: ...
    async def restored(self, restore_call: RestoreCall) -> RestoreResult: ...
    async def disconnect(self, disconnect_call: DisconnectCall) -> None: ...


async def respond(backend: Backend, request: wire.RpcMessage, sid: str) -> wire.RpcMessage:
    match request:
        case wire.ConnectionRequest():
            return await _answered(_admit(backend, request, sid), wire.ConnectionResponse)
        case wire.CommandMessage():
            return await _answered(_command(backend, request, sid), wire.CommandResponse)
        case wire.RestoreRequest():
            return await _answered(_greet(backend, request, sid), wire.RestoreResponse)
        case wire.DisconnectRequest():
            return await _answered(_part(backend, request, sid), wire.DisconnectResponse)
    raise AssertionError(request)


async def _answered(work: Any, kind: Any) -> wire.RpcMessage:
    answer: wire.RpcMessage
    try:
        answer = await work
    except ApplicationError as error:
        answer = kind(status=wire.Status.ERROR, error_msg=str(error))
    return answer


def _status(accepted: bool) -> wire.Status:
    return wire.Status.SUCCESS if accepted else wire.Status.FAILURE


def _context(env: wire.Env, sid: str, ids: str = "") -> CallContext:
    return CallContext(sid, env.url, env.headers, ids, env.cstate)


async def _admit(backend: Backend, request: wire.ConnectionRequest, sid: str) -> wire.ConnectionResponse:
    said = await backend.connect(_context(request.env, sid))
    env = wire.EnvResponse(cstate=said.state)
    return wire.ConnectionResponse(_status(said.accepted), said.ids, list(said.transmissions), said.reason, env)


async def _command(backend: Backend, request: wire.CommandMessage, sid: str) -> wire.CommandResponse:
    context = _context(request.env, sid, request.connection_identifiers)
    call = CommandCall(context, Action(request.command), request.identifier, request.env.istate, request.data)
    said = await backend.command(call)
    return wire.CommandResponse(
        _status(said.accepted),
        said.disconnect,
        said.stop_all,
        list(said.streams),
        list(said.transmissions),
        said.reason,
        wire.EnvResponse(said.state, said.own),
        list(said.stopped),
        _presence(said.presence_update),
    )


def _presence(presence_update: PresenceUpdate | None) -> wire.PresenceResponse:
    if presence_update is None:
        return wire.PresenceResponse()
    return wire.PresenceResponse(
        "join" if presence_update.join else "leave", presence_update.member.id, presence_update.member.info.decode()
    )


async def _greet(backend: Backend, request: wire.RestoreRequest, sid: str) -> wire.RestoreResponse:
    context = _context(wire.Env(request.env.url, request.env.headers, request.env.cstate), sid, request.identifiers)
    said = await backend.restored(RestoreCall(context, request.former_sid, _states(request.subscriptions, request.env)))
    own = {identifier: json.dumps(changes) for identifier, changes in said.own.items()}
    env = wire.EnvResponse(said.state, own)
    return wire.RestoreResponse(wire.Status.SUCCESS, "", list(said.transmissions), said.disconnect, env)


async def _part(backend: Backend, request: wire.DisconnectRequest, sid: str) -> wire.DisconnectResponse:
    context = _context(request.env, sid, request.identifiers)
    await backend.disconnect(DisconnectCall(context, _states(request.subscriptions, request.env)))
    return wire.DisconnectResponse(wire.Status.SUCCESS)


def _states(subscriptions: list[str], env: wire.Env) -> dict[str, dict[str, str]]:
    return {identifier: json.loads(env.istate.get(identifier, "{}")) for identifier in subscriptions}
