"""The obedient application as a backend that is asked by RPC, and the process it runs in:

    python -m tests.conformance.applications.obedient_rpc grpc|http PORT LOG

Port 0 takes a free one. It says where it is reached, and ends when its input does, so that it never outlives its test.

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
    Admission,
    Answer,
    Call,
    Caller,
    Comeback,
    Farewell,
    Greeting,
    Seating,
    State,
)
from ropewalk.model.errors import ApplicationError
from ropewalk.model.presence import Member
from tests.conformance.applications import events
from tests.conformance.applications.orders import ACTION, CHANNEL, FAILING, NAME, PAUSE, SLOW, WELCOME_BACK, YES, Order, info
from tests.rpc_servers import GrpcServer, HttpServer

REACHED = "reached at "

SENDER = "$f"  # beside the stream to whisper to: who the client is to those it whispers to; written out, as any backend has to

WELCOME = json.dumps({"type": "welcome"})
GO_AWAY = json.dumps({"type": "disconnect", "reason": "unauthorized", "reconnect": False})


class ObedientBackend:
    def __init__(self, log: Path) -> None:
        self._log = log

    async def connect(self, caller: Caller) -> Admission:
        user, silent = _user(caller), _silent(caller)
        self._note("connect" if user not in ("", FAILING) else "refused", caller)
        await _pause(SLOW in _params(caller))
        if user == FAILING:
            raise ApplicationError("as its name demands")
        if not user:
            return Admission(False, transmissions=() if silent else (GO_AWAY,))
        ids = json.dumps({NAME: user}, separators=(",", ":"))
        return Admission(True, ids, () if silent else (WELCOME,), {"entered": YES})

    async def command(self, call: Call) -> Answer:
        self._note(str(call.action), call.caller, identifier=call.identifier, own=_shown(call.state), data=call.data)
        if call.action is Action.UNSUBSCRIBE:
            return Answer()
        order = _ordered(call)
        await _pause(order.slow)
        answer = _obeyed(order, call)
        return answer if call.action is Action.PERFORM or _silent(call.caller) else _with_reply(answer, call.identifier)

    async def restored(self, comeback: Comeback) -> Greeting:
        states = {identifier: _shown(state) for identifier, state in comeback.subscriptions.items()}
        self._note("restored", comeback.caller, former=comeback.former, subscriptions=states)
        await _pause(SLOW in _params(comeback.caller))
        transmissions = tuple(_said(identifier, WELCOME_BACK) for identifier in states)
        return Greeting(transmissions, {"returned": YES}, {identifier: {"returned": YES} for identifier in states})

    async def disconnect(self, farewell: Farewell) -> None:
        states = {identifier: _shown(state) for identifier, state in farewell.subscriptions.items()}
        self._note("disconnect", farewell.caller, subscriptions=states)

    def _note(
        self,
        kind: str,
        caller: Caller,
        identifier: str = "",
        own: State = {},  # noqa: B006 - nobody changes it
        data: str = "",
        former: str = "",
        subscriptions: events.States = {},  # noqa: B006
    ) -> None:
        who = (caller.sid, caller.ids, caller.url, caller.headers, _shown(caller.state))
        events.note(self._log, events.Event(kind, *who, identifier, own, data, former, subscriptions))


# --- reading ---------------------------------------------------------------------------------------------------------


async def _pause(slow: bool) -> None:
    await asyncio.sleep(PAUSE if slow else 0)


def _user(caller: Caller) -> str:
    cookie = SimpleCookie(caller.headers.get("cookie", "")).get(NAME)
    return cookie.value if cookie else _params(caller).get(NAME, [""])[-1]


def _silent(caller: Caller) -> bool:
    return "silent" in _params(caller)


def _params(caller: Caller) -> Mapping[str, list[str]]:
    return parse_qs(urlsplit(caller.url).query)


def _shown(state: State) -> State:
    return {key: value for key, value in state.items() if not key.startswith("$")}


def _ordered(call: Call) -> Order:
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


def _obeyed(order: Order, call: Call) -> Answer:
    if order.fail:
        raise ApplicationError("as ordered")
    transmissions = (*(_said(call.identifier, text) for text in order.say), *order.blurt)
    if order.reject:
        return Answer(False, transmissions, disconnect=order.disconnect)
    sender = json.dumps(json.loads(call.caller.ids)[NAME]) if order.whisper else ""
    special = {WHISPER_KEY: order.whisper, SENDER: sender, PRESENCE_KEY: order.presence}
    return Answer(
        transmissions=transmissions,
        streams=tuple(stream for stream in (*order.streams, order.whisper, order.presence) if stream),
        stopped=order.stop,
        stop_all=order.stop_all,
        state=order.remember,
        own={**order.keep, **{key: stream for key, stream in special.items() if stream}},
        seating=_seating(order),
        disconnect=order.disconnect,
    )


def _seating(order: Order) -> Seating | None:
    if order.join:
        return Seating(True, Member(order.join, msgspec.json.encode(info(order.join))))
    return Seating(False, Member("")) if order.leave else None


def _with_reply(answer: Answer, identifier: str) -> Answer:
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
