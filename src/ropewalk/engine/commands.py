"""Handles the commands of clients. A refused command changes nothing.

`handle` returns whether the command was granted. Refused commands are counted and logged with their reason.
"""

import logging

from ropewalk.core.server_publications import whisper_publication
from ropewalk.engine import conversation, presence
from ropewalk.engine.services import Services
from ropewalk.engine.session import Session
from ropewalk.engine.subscription import Subscription
from ropewalk.model import commands
from ropewalk.model.application import SENDER_KEY
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.history import HistoryRequest
from ropewalk.model.nesting import TOO_DEEP, too_deep
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import Rejected, Subscribed

logger = logging.getLogger("ropewalk.session")


async def handle(session: "Session", services: Services, command: commands.Command) -> bool:
    match command:
        case commands.Subscribe():
            return await _subscribe(session, services, command)
        case commands.Unsubscribe(identifier):
            return await _unsubscribe(session, services, identifier)
        case commands.History(identifier, request):
            return await _history(session, services, identifier, request)
        case commands.Whisper(identifier, payload):
            return await _whisper(session, services, identifier, payload)
        case commands.Presence() | commands.Join() | commands.Leave():
            return await presence.handle(session, services, command)
        case commands.Ping():
            session.link.send(session.link.codec.pong())
            return True
        case commands.Pong():
            return True
        case commands.Perform(identifier, data):
            return await _perform(session, services, identifier, data)
        case commands.Unusable(reason):
            services.stats.refusals[Refusal.UNUSABLE_COMMAND] += 1
            return _refuse(session, reason)


def _refuse(session: "Session", reason: str) -> bool:
    logger.debug("command refused", extra={"session": session.tag, "reason": reason})
    return False


async def _subscribe(session: "Session", services: Services, command: commands.Subscribe) -> bool:
    inbox = session.inbox
    first = inbox.answer_to(command.identifier) if inbox is not None else None
    if first is not None:
        return await _repeat(session, services, command, first)
    granted = await _decide(session, services, command)
    if inbox is not None:
        inbox.answered(command)
    return granted


async def _repeat(session: "Session", services: Services, command: commands.Subscribe, first: commands.Subscribe) -> bool:
    """The answer to the first one counts for it; it gets only what the first one did not ask for."""
    subscription = session.subscriptions.get(command.identifier)
    if subscription is None:
        return True
    if command.history is not None and first.history is None and not subscription.held:
        await services.joiner.replay(session.link, subscription, command.history)
    return await _join_along(session, services, command) if first.presence is None else True


async def _decide(session: "Session", services: Services, command: commands.Subscribe) -> bool:
    known = session.subscriptions.get(command.identifier)
    if known is None:
        granted = await _ask_channels(session, services, command.identifier)
        if granted is None and services.application is not None:
            reason = await conversation.subscribe(session, services, services.application, command)
            return _refuse(session, reason) if reason else await _join_along(session, services, command)
        if not isinstance(granted, Subscribed):
            granted = granted or Rejected(f"no channel answers to {command.identifier[:80]}")
            session.link.send(session.link.codec.reject_subscription(command.identifier))
            return _refuse(session, granted.reason)
        known = session.subscriptions[command.identifier] = Subscription(command.identifier, granted)
        services.session_log.subscribed(session, known)
        try:
            await services.joiner.join(session.link, known, command.history, confirm=True)
        except Unavailable as error:
            del session.subscriptions[command.identifier]
            session.drop(known)
            services.session_log.unsubscribed(session, command.identifier)
            session.link.send(session.link.codec.reject_subscription(command.identifier))
            return _refuse(session, str(error))
    elif known.held:
        await services.joiner.join(session.link, known, command.history, confirm=True)
    else:  # a client that saw no confirmation asks again: it gets one
        session.link.send(session.link.codec.confirm_subscription(command.identifier))
        if command.history is not None:
            await services.joiner.replay(session.link, known, command.history)
    return await _join_along(session, services, command)


async def _join_along(session: "Session", services: Services, command: commands.Subscribe) -> bool:
    if command.presence is not None:
        return await presence.join(session, services, command.identifier, command.presence)
    return True


async def _ask_channels(session: "Session", services: Services, identifier: str) -> Subscribed | Rejected | None:
    """None: it is no channel of the server's own."""
    if len(identifier.encode()) > services.limits.max_identifier:
        services.stats.refusals[Refusal.IDENTIFIER] += 1
        return Rejected(f"an identifier of more than {services.limits.max_identifier} bytes")
    if len(session.subscriptions) >= services.limits.max_subscriptions:
        services.stats.refusals[Refusal.SUBSCRIPTIONS] += 1
        return Rejected(f"more than {services.limits.max_subscriptions} subscriptions in one session")
    if too_deep(identifier):
        services.stats.refusals[Refusal.NESTING] += 1
        return Rejected(f"the identifier is {TOO_DEEP}")
    for channels in services.channels:
        try:
            answer = await channels.subscribe(session.ids, identifier)
        except RopewalkError as error:
            return Rejected(str(error))
        if answer is not None:
            return answer
    return None


async def _perform(session: "Session", services: Services, identifier: str, data: str) -> bool:
    if services.application is None:
        return _refuse(session, f"no application answers actions of {identifier[:80]}")
    if identifier not in session.subscriptions:
        return _refuse(session, "action of what is not subscribed")
    if too_deep(data):
        services.stats.refusals[Refusal.NESTING] += 1
        return _refuse(session, f"the data of an action is {TOO_DEEP}")
    failed = await conversation.perform(session, services, services.application, identifier, data)
    return _refuse(session, failed) if failed else True


async def _unsubscribe(session: "Session", services: Services, identifier: str) -> bool:
    subscription = session.subscriptions.pop(identifier, None)
    if subscription is None:
        return _refuse(session, "unsubscribe of what is not subscribed")
    subscription.claimed = True  # so the resume timeout no longer applies
    if session.inbox is not None:
        session.inbox.forget(identifier)
    session.drop(subscription)
    services.session_log.unsubscribed(session, identifier)
    await presence.leave_stream(session, services, subscription.granted.presence)
    if services.application is not None and subscription.granted.state is not None:
        failed = await conversation.unsubscribe(session, services, services.application, subscription)
        return _refuse(session, failed) if failed else True
    return True


async def _history(session: "Session", services: Services, identifier: str, request: HistoryRequest) -> bool:
    subscription = session.subscriptions.get(identifier)
    if subscription is None:
        session.link.send(session.link.codec.messages.reject_history(identifier, ()))
        return _refuse(session, "history of what is not subscribed")
    if subscription.held:
        await services.joiner.join(session.link, subscription, request, confirm=False)
    else:
        await services.joiner.replay(session.link, subscription, request)
    return True


async def _whisper(session: "Session", services: Services, identifier: str, payload: bytes) -> bool:
    subscription = session.subscriptions.get(identifier)
    if subscription is None or not subscription.granted.whisper:
        return _refuse(session, "whisper is not allowed here")
    sender = (subscription.granted.state or {}).get(SENDER_KEY, "")
    await services.broker.publish([whisper_publication(subscription.granted.whisper, payload, session.sid, sender)])
    return True
