"""Encodes the commands of a cable client: the sending half of the cable protocol in JSON.

Empty fields are omitted, for servers with fewer features.
"""

from typing import Any

import msgspec
from msgspec import Raw

from ropewalk.model.commands import History, Join, Leave, Perform, Pong, Presence, Subscribe, Unsubscribe, Whisper
from ropewalk.model.history import HistoryRequest
from ropewalk.model.presence import Member

SUBPROTOCOL = "actioncable-v1-ext-json"

ClientCommand = Subscribe | Unsubscribe | Perform | History | Whisper | Presence | Join | Leave | Pong


def encode(command: ClientCommand) -> bytes:
    """The text frame of a command."""
    return msgspec.json.encode(_fields(command))


def _fields(command: ClientCommand) -> dict[str, Any]:
    match command:
        case Subscribe(identifier, history, member):
            return {"command": "subscribe", "identifier": identifier, **_history(history), **_member(member)}
        case Unsubscribe(identifier):
            return {"command": "unsubscribe", "identifier": identifier}
        case Perform(identifier, data):
            return {"command": "message", "identifier": identifier, "data": data}
        case History(identifier, history):
            return {"command": "history", "identifier": identifier, **_history(history)}
        case Whisper(identifier, payload):
            return {"command": "whisper", "identifier": identifier, "data": Raw(payload)}
        case Presence(identifier, return_records, after):
            options = {"return_records": return_records, **({"after": after} if after else {})}
            return {"command": "presence", "identifier": identifier, "data": options}
        case Join(identifier, member):
            return {"command": "join", "identifier": identifier, **_member(member)}
        case Leave(identifier):
            return {"command": "leave", "identifier": identifier}
        case Pong():
            return {"command": "pong"}


def _history(request: HistoryRequest | None) -> dict[str, Any]:
    if request is None:
        return {}
    body: dict[str, Any] = {"streams": request.streams}
    if request.since is not None:
        # Servers that know whole seconds only must not be given a fraction of zero.
        body["since"] = int(request.since) if request.since == int(request.since) else request.since
    return {"history": body}


def _member(member: Member | None) -> dict[str, Any]:
    if member is None:
        return {}
    return {"presence": {"id": member.id, **({"info": Raw(member.info)} if member.info else {})}}
