"""A client's command for a channel: one handler, one answer. Records in, records out."""

import logging

from ropewalk.channels import replies
from ropewalk.channels.errors import BadCall
from ropewalk.channels.runner import Runner
from ropewalk.channels.texts import json_object
from ropewalk.channels.turn import ChannelClasses, Turn
from ropewalk.model.application import Action, CommandCall, CommandResult
from ropewalk.model.errors import ApplicationError

logger = logging.getLogger("ropewalk.channels")


async def handle(channels: ChannelClasses, call: CommandCall, runner: Runner) -> CommandResult:
    """Raises ApplicationError, but for a subscribe: what fails there is a rejection."""
    match call.action:
        case Action.SUBSCRIBE:
            return await _subscribe(channels, call, runner)
        case Action.UNSUBSCRIBE:
            turn = Turn(channels, call.context, call.identifier, call.state, settled="unsubscribed")
            return await turn.take("unsubscribed", runner) if turn.overrides("unsubscribed") else CommandResult()
        case Action.PERFORM:
            return await _perform(channels, call, runner)


async def _subscribe(channels: ChannelClasses, call: CommandCall, runner: Runner) -> CommandResult:
    try:
        turn = Turn(channels, call.context, call.identifier, call.state)
        return await turn.take("subscribed", runner) if turn.overrides("subscribed") else CommandResult()
    except ApplicationError as error:
        return CommandResult(accepted=False, reason=str(error))


async def _perform(channels: ChannelClasses, call: CommandCall, runner: Runner) -> CommandResult:
    try:
        turn = Turn(channels, call.context, call.identifier, call.state)
        data = json_object(call.data)
        if data is None:
            raise BadCall("what it sent is no JSON object")
        reply = replies.called(data)
        callee = turn.callee(reply.action)
    except BadCall as error:
        logger.debug("a client called what is not there", extra={"reason": str(error)})
        raise
    return await turn.take(callee.method, runner, *([data] if callee.takes_data else []), reply=reply)
