"""Calls an app as the server does, with records. Plain functions run inline, without a thread."""

import json
from typing import Any

from msgspec.structs import replace

from ropewalk.channels import App, inline
from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
    State,
)
from ropewalk.model.messages import Publication

BO = CallContext(
    sid="s-1",
    url="http://example.test/cable?room=a&room=b&empty=",
    headers={"cookie": 'name=Bo; quoted="a b"; name=other; broken', "REMOTE_ADDR": "10.0.0.7"},
    ids='{"name":"Bo"}',
)


def encode_identifier(channel: str, **params: object) -> str:
    """Returns the identifier of a subscription."""
    return json.dumps({"channel": channel, **params})


async def connect(app: App, context: CallContext = BO) -> ConnectResult:
    return await app.handle_connect(replace(context, ids=""), inline)


async def subscribe(app: App, identifier: str, context: CallContext = BO) -> CommandResult:
    return await app.handle_command(CommandCall(context, Action.SUBSCRIBE, identifier), inline)


async def unsubscribe(app: App, identifier: str, state: State | None = None, context: CallContext = BO) -> CommandResult:
    return await app.handle_command(CommandCall(context, Action.UNSUBSCRIBE, identifier, state or {}), inline)


async def send(app: App, identifier: str, data: str, state: State | None = None, context: CallContext = BO) -> CommandResult:
    return await app.handle_command(CommandCall(context, Action.PERFORM, identifier, state or {}, data), inline)


async def perform(app: App, identifier: str, action: str, state: State | None = None, **data: Any) -> CommandResult:
    return await send(app, identifier, json.dumps({"action": action, **data}), state)


async def restore(app: App, subscriptions: dict[str, State], context: CallContext = BO) -> RestoreResult:
    return await app.handle_restored(RestoreCall(context, "s-0", subscriptions), inline)


async def disconnect(app: App, subscriptions: dict[str, State], context: CallContext = BO) -> tuple[Publication, ...]:
    return await app.handle_disconnect(DisconnectCall(context, subscriptions), inline)
