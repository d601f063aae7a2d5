"""The server's calls: connect, command, restore and disconnect. Each runs handlers and returns what they requested."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress

from msgspec.structs import replace

from ropewalk.channels import replies
from ropewalk.channels.channel import ANONYMOUS, Callee, Channel, Connection
from ropewalk.channels.handlers import BadCall, Reject, Runner, contained_errors, handler_name, run, run_contained
from ropewalk.channels.replies import Effects
from ropewalk.channels.values import json_object, state_changes
from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    Reply,
    RestoreCall,
    RestoreResult,
    State,
    merge_state,
)
from ropewalk.model.errors import ApplicationError, ServerError
from ropewalk.model.messages import Publication

logger = logging.getLogger("ropewalk.channels")

ChannelClasses = Mapping[str, type[Channel]]
ConnectionHandler = Callable[[Connection], Awaitable[None] | None]

MAX_QUOTED_CHARACTERS = 64


async def connect(handler: ConnectionHandler | None, context: CallContext, runner: Runner) -> ConnectResult:
    if handler is None:
        return ConnectResult(False, reason="the app has no on_connect: it accepts no client")
    connection = Connection(context, connecting=True)
    try:
        with contained_errors(handler_name(handler)):
            await run(runner, handler, connection)
            changes = state_changes(context.state, connection.state, "connection.state")
            return ConnectResult(True, connection.ids or ANONYMOUS, state=changes)
    except Reject as rejection:
        return ConnectResult(False, reason=rejection.reason or f"rejected by {handler_name(handler)}")


async def command(channels: ChannelClasses, call: CommandCall, runner: Runner) -> CommandResult:
    """Raises ApplicationError; a failed subscribe is a rejection instead."""
    match call.action:
        case Action.SUBSCRIBE:
            return await _subscribe(channels, call, runner)
        case Action.UNSUBSCRIBE:
            channel = ChannelCall(channels, call.context, call.identifier, call.state, fixed_in="unsubscribed")
            return await channel.run("unsubscribed", runner) if channel.overrides("unsubscribed") else CommandResult()
        case Action.PERFORM:
            return await _perform(channels, call, runner)


async def _subscribe(channels: ChannelClasses, call: CommandCall, runner: Runner) -> CommandResult:
    try:
        channel = ChannelCall(channels, call.context, call.identifier, call.state)
        return await channel.run("subscribed", runner) if channel.overrides("subscribed") else CommandResult()
    except ApplicationError as error:
        return CommandResult(accepted=False, reason=str(error))


async def _perform(channels: ChannelClasses, call: CommandCall, runner: Runner) -> CommandResult:
    try:
        channel = ChannelCall(channels, call.context, call.identifier, call.state)
        data = json_object(call.data)
        if data is None:
            raise BadCall("the data is not a JSON object")
        reply = replies.new_reply(data)
        callee = channel.callee(reply.action)
    except BadCall as error:
        logger.debug("invalid call of a client", extra={"reason": str(error)})
        raise
    return await channel.run(callee.method, runner, *([data] if callee.takes_data else []), reply=reply)


async def restore(channels: ChannelClasses, call: RestoreCall, runner: Runner) -> RestoreResult:
    """Call `restored` of every subscription. One that fails does not stop the others."""
    calls = _SubscriptionCalls(call.context)
    for identifier, kept in call.subscriptions.items():
        await calls.run(channels, identifier, kept, "restored", runner)
    return RestoreResult(
        tuple(text for _, result in calls.results for text in result.transmissions),
        calls.changes,
        {identifier: result.own for identifier, result in calls.results if result.own},
        tuple(calls.publications()),
        any(result.disconnect for _, result in calls.results),
    )


async def disconnect(
    channels: ChannelClasses, handler: ConnectionHandler | None, call: DisconnectCall, runner: Runner
) -> tuple[Publication, ...]:
    """Call `unsubscribed` of every subscription, then the app's handler. Returns their broadcasts."""
    calls = _SubscriptionCalls(call.context)
    for identifier, kept in call.subscriptions.items():
        await calls.run(channels, identifier, kept, "unsubscribed", runner)
    if handler is not None:
        with suppress(ServerError):  # already logged
            await run_contained(runner, handler, Connection(calls.context))
    return tuple(calls.publications())


class _SubscriptionCalls:
    """The same handler of each subscription, in order. Each sees the connection's state as the one before left it."""

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.changes: State = {}
        self.results: list[tuple[str, CommandResult]] = []

    async def run(self, channels: ChannelClasses, identifier: str, kept: State, method: str, runner: Runner) -> None:
        try:
            channel = ChannelCall(channels, self.context, identifier, kept, fixed_in=method)
            if not channel.overrides(method):
                return
            result = await channel.run(method, runner)
        except BadCall as error:  # the subscription is from an earlier version of the app
            logger.info("subscription to a channel that the app no longer has", extra={"reason": str(error)})
        except ServerError:
            return  # already logged
        else:
            if result.accepted:
                self._add(identifier, result)

    def _add(self, identifier: str, result: CommandResult) -> None:
        self.results.append((identifier, result))
        self.changes |= result.state
        self.context = replace(self.context, state=merge_state(self.context.state, result.state))

    def publications(self) -> Iterator[Publication]:
        for _, result in self.results:
            yield from result.publications


class ChannelCall:
    """One call of one handler of a channel object. Raises BadCall at construction for an unknown channel."""

    def __init__(
        self, channels: ChannelClasses, context: CallContext, identifier: str, kept: State, fixed_in: str = ""
    ) -> None:
        params = json_object(identifier)
        if params is None:
            raise BadCall("the identifier is not a JSON object")
        name = params.pop("channel", None)
        if not isinstance(name, str):
            raise BadCall("the identifier names no channel")
        if name not in channels:
            raise BadCall(f"there is no channel {_quote(name)}", "unknown_channel")
        self.name = name
        self._context = context
        self._effects = Effects(kept, fixed_in)
        self._channel = channels[name](Connection(context), identifier, params, self._effects)

    def overrides(self, method: str) -> bool:
        return getattr(type(self._channel), method) is not getattr(Channel, method)

    def callee(self, action: str) -> Callee:
        """Raises BadCall: clients can call declared actions only."""
        found = type(self._channel)._actions.get(action)
        if found is None:
            raise BadCall(f"{self.name} has no action {_quote(action)}", "unknown_action")
        return found

    async def run(self, method: str, runner: Runner, *args: object, reply: Reply | None = None) -> CommandResult:
        """Raises ApplicationError, and drops the handler's requests then.

        `reply`: the reply to an action's caller; the handler's return value goes into it.
        """
        try:
            with contained_errors(f"{self.name}.{method}"):
                value = await run(runner, getattr(self._channel, method), *args)
                return self._result(replies.result_reply(reply, value) if reply else None)
        except Reject as rejection:
            return self._rejection(rejection, rejection.reason or f"rejected by {self.name}.{method}", reply)
        finally:
            self._effects.over = True

    def _rejection(self, rejection: Reject, reason: str, reply: Reply | None) -> CommandResult:
        effects, reply = self._effects, replies.rejection_reply(reply, rejection) if reply else None
        return CommandResult(False, tuple(effects.transmissions), disconnect=effects.disconnect, reason=reason, reply=reply)

    def _result(self, reply: Reply | None) -> CommandResult:
        effects, channel = self._effects, self._channel
        return CommandResult(
            transmissions=tuple(effects.transmissions),
            streams=tuple(effects.streams),
            stopped=tuple(effects.stopped),
            stop_all=effects.stop_all,
            state=state_changes(self._context.state, channel.connection.state, "connection.state"),
            own=state_changes(effects.kept, channel.state, "self.state") | effects.own,
            presence_update=effects.presence_update,
            publications=tuple(effects.publications),
            disconnect=effects.disconnect,
            reply=reply,
        )


def _quote(name: str) -> str:
    """A client's text for a message, shortened."""
    return repr(name if len(name) <= MAX_QUOTED_CHARACTERS else f"{name[:MAX_QUOTED_CHARACTERS]}…")
