"""The obedient application as an RPC backend, and its process:

    python -m tests.conformance.applications.obedient_rpc grpc|http PORT LOG

Port 0 takes a free one. It prints its address, and exits when its input ends, so that it never outlives its test.

It answers as applications of Rails do: it sends the welcome, the confirmation and the rejections itself. To a client that comes
with the parameter `silent` in its URL it leaves all of that to the server.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from ropewalk.model.application import (
    PRESENCE_KEY,
    WHISPER_KEY,
    Action,
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
from ropewalk.model.presence import Member
from ropewalk.testing import application_events as events
from ropewalk.testing.application_orders import (
    ACTION,
    CHANNEL,
    FAILING,
    HANG,
    NAME,
    PAUSE,
    SLOW,
    WELCOME_BACK,
    YES,
    Order,
    info,
)
from tests.rpc_servers import GrpcServer, HttpServer

REACHED = "reached at "

SENDER = "$f"  # beside the stream to whisper to: who the client is to those it whispers to; written out, as any backend has to

WELCOME = json.dumps({"type": "welcome"})
GO_AWAY = json.dumps({"type": "disconnect", "reason": "unauthorized", "reconnect": False})


class ObedientBackend:
    def __init__(self, log: Path) -> None:
        self._log = log

    async def connect(self, context: CallContext) -> ConnectResult:
        user, silent = _user(context), _silent(context)
        self._note("connect" if user not in ("", FAILING) else "refused", context)
        await _wait(context)
        if user == FAILING:
            raise ApplicationError("as its name demands")
        if not user:
            return ConnectResult(False, transmissions=() if silent else (GO_AWAY,))
        ids = json.dumps({NAME: user}, separators=(",", ":"))
        return ConnectResult(True, ids, () if silent else (WELCOME,), {"entered": YES})

    async def command(self, call: CommandCall) -> CommandResult:
        self._note(str(call.action), call.context, identifier=call.identifier, own=_shown(call.state), data=call.data)
        if call.action is Action.UNSUBSCRIBE:
            return CommandResult()
        order = _ordered(call)
        await asyncio.sleep(PAUSE if order.slow else 0)
        if order.hang:
            await asyncio.Event().wait()
        answer = _obeyed(order, call)
        return answer if call.action is Action.PERFORM or _silent(call.context) else _with_reply(answer, call.identifier)

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        states = {identifier: _shown(state) for identifier, state in restore_call.subscriptions.items()}
        self._note("restored", restore_call.context, former=restore_call.former, subscriptions=states)
        await _wait(restore_call.context)
        transmissions = tuple(_said(identifier, WELCOME_BACK) for identifier in states)
        return RestoreResult(transmissions, {"returned": YES}, {identifier: {"returned": YES} for identifier in states})

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        states = {identifier: _shown(state) for identifier, state in disconnect_call.subscriptions.items()}
        self._note("disconnect", disconnect_call.context, subscriptions=states)
        if HANG in _params(disconnect_call.context):
            await asyncio.Event().wait()

    def _note(
        self,
        kind: str,
        context: CallContext,
        identifier: str = "",
        own: State = {},  # noqa: B006 - not changed
        data: str = "",
        former: str = "",
        subscriptions: events.States = {},  # noqa: B006
    ) -> None:
        who = (context.sid, context.ids, context.url, context.headers, _shown(context.state))
        events.note(self._log, events.ApplicationEvent(kind, *who, identifier, own, data, former, subscriptions))


# --- reading ---------------------------------------------------------------------------------------------------------


async def _wait(context: CallContext) -> None:
    params = _params(context)
    await asyncio.sleep(PAUSE if SLOW in params else 0)
    if HANG in params:
        await asyncio.Event().wait()


def _user(context: CallContext) -> str:
    cookie = SimpleCookie(context.headers.get("cookie", "")).get(NAME)
    return cookie.value if cookie else _params(context).get(NAME, [""])[-1]


def _silent(context: CallContext) -> bool:
    return "silent" in _params(context)


def _params(context: CallContext) -> Mapping[str, list[str]]:
    return parse_qs(urlsplit(context.url).query)


def _shown(state: State) -> State:
    return {key: value for key, value in state.items() if not key.startswith("$")}


def _ordered(call: CommandCall) -> Order:
    if call.action is Action.SUBSCRIBE:
        identifier = json.loads(call.identifier)
        if identifier["channel"] != CHANNEL:
            raise ApplicationError("no such channel")
        return msgspec.convert(identifier["order"], Order)
    data = json.loads(call.data)
    if data["action"] != ACTION:
        raise ApplicationError("no such action")
    return msgspec.convert(data["order"], Order)


# --- answering -------------------------------------------------------------------------------------------------------


def _obeyed(order: Order, call: CommandCall) -> CommandResult:
    if order.fail:
        raise ApplicationError("as ordered")
    transmissions = (*(_said(call.identifier, text) for text in order.say), *order.blurt)
    if order.reject:
        return CommandResult(False, transmissions, disconnect=order.disconnect)
    sender = json.dumps(json.loads(call.context.ids)[NAME]) if order.whisper else ""
    special = {WHISPER_KEY: order.whisper, SENDER: sender, PRESENCE_KEY: order.presence}
    return CommandResult(
        transmissions=transmissions,
        streams=tuple(stream for stream in (*order.streams, order.whisper, order.presence) if stream),
        stopped=order.stop,
        stop_all=order.stop_all,
        state=order.remember,
        own={**order.keep, **{key: stream for key, stream in special.items() if stream}},
        presence_update=_presence_update(order),
        disconnect=order.disconnect,
    )


def _presence_update(order: Order) -> PresenceUpdate | None:
    if order.join:
        return PresenceUpdate(True, Member(order.join, msgspec.json.encode(info(order.join))))
    return PresenceUpdate(False, Member("")) if order.leave else None


def _with_reply(answer: CommandResult, identifier: str) -> CommandResult:
    kind = "confirm_subscription" if answer.accepted else "reject_subscription"
    reply = json.dumps({"identifier": identifier, "type": kind})
    return msgspec.structs.replace(answer, transmissions=(*answer.transmissions, reply))


def _said(identifier: str, message: str) -> str:
    return json.dumps({"identifier": identifier, "message": message})


# --- the process -----------------------------------------------------------------------------------------------------


async def serve(kind: str, port: int, log: Path) -> None:
    server = (GrpcServer if kind == "grpc" else HttpServer)(ObedientBackend(log))
    server.port = port
    async with server:
        print(REACHED + (server.host if isinstance(server, GrpcServer) else server.url), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
