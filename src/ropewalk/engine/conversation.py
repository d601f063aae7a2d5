"""Calls the application for a session and applies the results, in order. The client always gets an answer.

The application decides, but the server keeps the protocol's promises: the welcome comes first and carries the sid, a
subscribe is confirmed or rejected, and a confirmation says where live delivery begins.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ropewalk.engine import presence
from ropewalk.engine.bounds import check_command_result, check_connect_result, check_restore_result
from ropewalk.engine.services import Services
from ropewalk.engine.session import Session
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.application import (
    MEMBER_KEY,
    PRESENCE_KEY,
    WHISPER_KEY,
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    PresenceUpdate,
    Reply,
    RestoreCall,
    State,
    merged,
)
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import ServerError, Unanswered, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.sessions import AppSide, ConnectRequest, SessionSnapshot, Subscribed
from ropewalk.ports import Application

logger = logging.getLogger("ropewalk.application")

TOLD_WHY = Closing("", False, closings.UNAUTHORIZED.code, closings.UNAUTHORIZED.text)
"""For a client whom the application itself has told that it may not come in."""


def side_of(request: ConnectRequest, services: Services, former: AppSide | None = None) -> AppSide | None:
    """What a session that came by this request keeps for the application; None where there is none."""
    if services.application is None:
        return None
    former = former or AppSide()
    known = services.limits.disconnect_mode == "always" or former.known
    admitted = None if former.credentials is None else services.credentials(request) or former.credentials
    return AppSide(request.url, services.forward(request), former.state, known, admitted)


def context_of(session: "Session") -> CallContext:
    side = session.app or AppSide()
    return CallContext(session.sid, side.url, side.headers, session.ids, side.state)


async def connect(session: "Session", services: Services, application: Application, credentials: str) -> None:
    """Raises ServerError."""
    services.heartbeat.add(session)  # a client that hears nothing for too long comes back, to wait once more
    try:
        connect_result = check_connect_result(
            await application.connect(context_of(session), lambda: session.link.open), services.limits
        )
    except Unavailable as error:
        if session.link.open or isinstance(error, Unanswered):
            raise
        return  # the client left before the application was asked
    codec = session.link.codec
    if not connect_result.accepted:
        services.stats.auth_failures += 1
        logger.debug("refused by the application", extra={"session": session.tag, "reason": connect_result.reason})
        _send(session, codec.refused(connect_result.transmissions))
        session.end(TOLD_WHY if connect_result.transmissions else closings.UNAUTHORIZED)
        return
    session.app = replace(_answered(session.app, services, connect_result.state), credentials=credentials)
    if not session.accept(connect_result.ids, None):  # the client left while the application let it in, or was told to
        _let_go(services, session.sid, SessionSnapshot(connect_result.ids, {}, app=session.app))
        return
    services.session_log.connected(session)
    _send(session, codec.accepted(session.sid, connect_result.transmissions))


async def vouched(session: "Session", services: Services, application: Application, ids: str) -> bool:
    """Whether the application lets this client in as `ids`. It is asked by a Connect of its own, whose Disconnect follows.

    Raises ServerError.
    """
    sid = secrets.token_urlsafe(16)
    connected = await application.connect(replace(context_of(session), sid=sid), lambda: session.link.open)
    connect_result = check_connect_result(connected, services.limits)
    if connect_result.accepted:
        app = _answered(session.app, services, connect_result.state)
        _let_go(services, sid, SessionSnapshot(connect_result.ids, {}, app=app))
    return connect_result.accepted and connect_result.ids == ids


def _let_go(services: Services, sid: str, snapshot: SessionSnapshot) -> None:
    """The application has let somebody in who is not there, and hears of it."""
    services.session_log.passed(sid, snapshot)
    services.disconnect_queue.put(sid, snapshot)


async def restored(session: "Session", services: Services, application: Application, former: str) -> None:
    """Runs beside the session's commands: what the application is asked waits for it, history and the like do not."""
    try:
        await _tell_return(session, services, application, former)
    finally:
        session.returning = None


async def _tell_return(session: "Session", services: Services, application: Application, former: str) -> None:
    subscriptions = {name: each.granted.state for name, each in session.subscriptions.items() if each.granted.state is not None}
    try:
        restore_call = RestoreCall(context_of(session), former, subscriptions)
        restore_result = check_restore_result(
            await application.restored(restore_call), services.limits, restore_call.context.state, restore_call.subscriptions
        )
    except ServerError as error:
        logger.warning("the application did not hear of a return", extra={"session": session.tag, "reason": str(error)})
        return
    for identifier, changes in restore_result.own.items():
        subscription = session.subscriptions.get(identifier)
        if subscription is not None and subscription.granted.state is not None:
            await _change(session, services, subscription, changes)
            services.session_log.changed(session, subscription)
    if restore_result.state:
        _remember(session, services, restore_result.state)
    _transmit(session, restore_result.transmissions)
    await _publish(services, restore_result.publications)
    if restore_result.disconnect:
        session.end(closings.BY_APPLICATION)


async def subscribe(session: "Session", services: Services, application: Application, command: Subscribe) -> str:
    """Why it was refused; "" if it was granted."""
    identifier, link = command.identifier, session.link
    await _returned(session)
    try:
        answer = await _ask(services, application, CommandCall(context_of(session), Action.SUBSCRIBE, identifier))
    except ServerError as error:
        link.send(link.codec.reject_subscription(identifier))
        return str(error)
    _remember(session, services, answer.state)
    if not answer.accepted:
        _send(session, link.codec.rejected(identifier, answer.transmissions))
        _end_if_asked(session, answer)
        return answer.reason or "rejected by the application"
    subscription = Subscription(identifier, Subscribed(tuple(dict.fromkeys(answer.streams)), state={}))
    _keep(subscription, answer.own)
    session.subscriptions[identifier] = subscription
    services.session_log.subscribed(session, subscription)
    before, following = link.codec.around_confirmation(identifier, answer.transmissions)
    _send(session, before)
    await services.joiner.join(link, subscription, command.history, confirm=True, following=following, insist=True)
    await _finish(session, services, subscription, answer)
    _end_if_asked(session, answer)
    return ""


async def perform(session: "Session", services: Services, application: Application, identifier: str, data: str) -> str:
    """Why it failed; "" if it did not."""
    await _returned(session)
    subscription = session.subscriptions[identifier]
    call = CommandCall(context_of(session), Action.PERFORM, identifier, subscription.granted.state or {}, data)
    try:
        answer = await application.command(call)
    except ServerError as error:
        _reply(session, identifier, error.reply)
        return str(error)
    try:
        check_command_result(answer, services.limits, call.context.state, call.state, subscription.granted.streams)
    except ServerError as error:
        _reply(session, identifier, answer.reply, "failed")
        return str(error)
    _remember(session, services, answer.state)
    if subscription.granted.state is not None:  # what the server granted by itself is not the application's to change
        await _change(session, services, subscription, answer.own)
        await _restream(session, services, subscription, answer)
        if answer.own or answer.stop_all or answer.stopped or answer.streams:
            services.session_log.changed(session, subscription)
    _transmit(session, answer.transmissions)
    lost = await _finish(session, services, subscription, answer)
    _reply(session, identifier, answer.reply, "unavailable" if lost else "")
    _end_if_asked(session, answer)
    return lost if answer.accepted else answer.reason or "refused by the application"


async def unsubscribe(session: "Session", services: Services, application: Application, subscription: Subscription) -> str:
    """The session has let go of it already. Why it failed; "" if it did not."""
    await _returned(session)
    state = subscription.granted.state or {}
    call = CommandCall(context_of(session), Action.UNSUBSCRIBE, subscription.identifier, state)
    try:
        answer = await _ask(services, application, call)
    except ServerError as error:
        return str(error)
    _remember(session, services, answer.state)
    _transmit(session, answer.transmissions)
    lost = await _finish(session, services, None, answer)
    _end_if_asked(session, answer)
    return lost


async def _ask(services: Services, application: Application, call: CommandCall) -> CommandResult:
    """Raises ServerError."""
    return check_command_result(await application.command(call), services.limits, call.context.state, call.state)


async def _change(session: "Session", services: Services, subscription: Subscription, changes: State) -> None:
    """Whoever can be present elsewhere from now on, or nowhere, is no longer present where it was."""
    before = subscription.granted.presence
    _keep(subscription, changes)
    if before and before != subscription.granted.presence:
        await presence.leave_stream(session, services, before)


async def _restream(session: "Session", services: Services, subscription: Subscription, answer: CommandResult) -> None:
    stopped = subscription.granted.streams if answer.stop_all else answer.stopped
    if stopped:
        services.joiner.cut(session.link, subscription, stopped)
    if answer.streams:
        await services.joiner.extend(session.link, subscription, answer.streams)


async def _returned(session: "Session") -> None:
    """Calls of one session come one after another: the return is the first."""
    if session.returning is not None:
        await asyncio.wait([session.returning])


async def _finish(session: "Session", services: Services, subscription: Subscription | None, answer: CommandResult) -> str:
    """Why what it published is lost; "" if it is not."""
    if answer.presence_update is not None and subscription is not None:
        await _seat(session, services, subscription, answer.presence_update)
    return await _publish(services, answer.publications)


async def _seat(session: "Session", services: Services, subscription: Subscription, presence_update: PresenceUpdate) -> None:
    stream = subscription.granted.presence
    if not stream:
        logger.warning("the application seats a client where there is no presence", extra={"session": session.tag})
    elif presence_update.join:
        if (subscription.granted.state or {}).get(MEMBER_KEY) != presence_update.member.id:
            _keep(subscription, {MEMBER_KEY: presence_update.member.id})
            services.session_log.changed(session)
        await presence.join_stream(session, services, stream, presence_update.member)
    else:
        await presence.leave_stream(session, services, stream)


async def _publish(services: Services, publications: Sequence[Publication]) -> str:
    """A backend that is down costs the publications, not the session whose action brought them."""
    try:
        if publications:
            await services.broker.publish(publications)
    except ServerError as error:
        logger.error("what the application published is lost", extra={"reason": str(error), "messages": len(publications)})
        return str(error)
    return ""


def _reply(session: "Session", identifier: str, reply: Reply | None, failure: str = "") -> None:
    """`failure`: a code that takes the place of the result."""
    if reply is not None:
        told = replace(reply, code=failure) if failure and not reply.code else reply
        session.link.send(session.link.codec.reply(identifier, told))


def _transmit(session: "Session", texts: Sequence[str]) -> None:
    _send(session, map(session.link.codec.transmission, texts))


def _send(session: "Session", frames: Iterable[bytes]) -> None:
    for frame in frames:
        session.link.send(frame)


def _end_if_asked(session: "Session", answer: CommandResult) -> None:
    if answer.disconnect:
        session.end(closings.BY_APPLICATION)


def _remember(session: "Session", services: Services, changes: State) -> None:
    """The application has answered, so that it knows of the session."""
    known = session.app is not None and session.app.known
    session.app = _answered(session.app, services, changes)
    if changes or session.app.known != known:
        services.session_log.changed(session)


def _answered(side: AppSide | None, services: Services, changes: State) -> AppSide:
    side = side or AppSide()
    return replace(side, state=merged(side.state, changes), known=services.limits.disconnect_mode != "never")


def _keep(subscription: Subscription, changes: State) -> None:
    state = merged(subscription.granted.state or {}, changes)
    subscription.granted = replace(
        subscription.granted, state=state, whisper=state.get(WHISPER_KEY, ""), presence=state.get(PRESENCE_KEY, "")
    )
