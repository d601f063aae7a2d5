"""An app is asked as the server asks it: records in, records out. Plain functions run at once, so no thread is needed."""

import json
from typing import Any

from msgspec.structs import replace

from ropewalk.channels import App, inline
from ropewalk.model.application import Action, Admission, Answer, Call, Caller, Comeback, Farewell, Greeting, State
from ropewalk.model.messages import Publication

BO = Caller(
    sid="s-1",
    url="http://example.test/cable?room=a&room=b&empty=",
    headers={"cookie": 'name=Bo; quoted="a b"; name=other; broken', "REMOTE_ADDR": "10.0.0.7"},
    ids='{"name":"Bo"}',
)


def named(channel: str, **params: object) -> str:
    """The identifier of a subscription."""
    return json.dumps({"channel": channel, **params})


async def connect(app: App, caller: Caller = BO) -> Admission:
    return await app.handle_connect(replace(caller, ids=""), inline)


async def subscribe(app: App, identifier: str, caller: Caller = BO) -> Answer:
    return await app.handle_command(Call(caller, Action.SUBSCRIBE, identifier), inline)


async def unsubscribe(app: App, identifier: str, state: State | None = None, caller: Caller = BO) -> Answer:
    return await app.handle_command(Call(caller, Action.UNSUBSCRIBE, identifier, state or {}), inline)


async def send(app: App, identifier: str, data: str, state: State | None = None, caller: Caller = BO) -> Answer:
    return await app.handle_command(Call(caller, Action.PERFORM, identifier, state or {}, data), inline)


async def perform(app: App, identifier: str, action: str, state: State | None = None, **data: Any) -> Answer:
    return await send(app, identifier, json.dumps({"action": action, **data}), state)


async def come_back(app: App, subscriptions: dict[str, State], caller: Caller = BO) -> Greeting:
    return await app.handle_restored(Comeback(caller, "s-0", subscriptions), inline)


async def leave(app: App, subscriptions: dict[str, State], caller: Caller = BO) -> tuple[Publication, ...]:
    return await app.handle_disconnect(Farewell(caller, subscriptions), inline)
