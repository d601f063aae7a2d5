"""What a session says to the application, and what it does with the answers: in order, and never with silence for the client.

The application decides; the server keeps the wire's promises whatever it says: a welcome comes first and carries the sid, a
subscribe is confirmed or rejected, a confirmation tells where live delivery begins.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ropewalk.engine import presence
from ropewalk.engine.bounds import check_admission, check_answer, check_greeting
from ropewalk.engine.services import Services
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.application import (
    MEMBER_KEY,
    PRESENCE_KEY,
    WHISPER_KEY,
    Action,
    Answer,
    Call,
    Caller,
    Comeback,
    Reply,
    Seating,
    State,
    merged,
)
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import ServerError, Unanswered, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.sessions import AppSide, ConnectRequest, SessionSnapshot, Subscribed
from ropewalk.ports import Application
from ropewalk.protocol.cable_json import welcome_json
from ropewalk.protocol.envelopes import reply_json
from ropewalk.protocol.transmissions import around, refusals, with_welcome

if TYPE_CHECKING:
    from ropewalk.engine.session import Session

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


def caller(session: "Session") -> Caller:
    side = session.app or AppSide()
    return Caller(session.sid, side.url, side.headers, session.ids, side.state)


async def connect(session: "Session", services: Services, application: Application, credentials: str) -> None:
    """Raises ServerError."""
    services.heartbeat.add(session)  # a client that hears nothing for too long comes back, to wait once more
    try:
        admission = check_admission(await application.connect(caller(session), lambda: session.link.open), services.limits)
    except Unavailable as error:
        if session.link.open or isinstance(error, Unanswered):
            raise
        return  # the client left before the application was asked
    codec, link = session.link.codec, session.link
    if not admission.accepted:
        services.stats.auth_failures += 1
        logger.debug("refused by the application", extra={"session": session.tag, "reason": admission.reason})
        _transmit(session, refusals(admission.transmissions))
        session.end(TOLD_WHY if admission.transmissions else closings.UNAUTHORIZED)
        return
    session.app = replace(_answered(session.app, services, admission.state), credentials=credentials)
    if not session.accept(admission.ids, None):  # the client left while the application let it in, or was told to
        _let_go(services, session.sid, SessionSnapshot(admission.ids, {}, app=session.app))
        return
    services.annals.connected(session)
    plain = welcome_json(session.sid, None).decode()
    for text in with_welcome(admission.transmissions, plain, session.sid):
        link.send(codec.transmission(text))


async def vouched(session: "Session", services: Services, application: Application, ids: str) -> bool:
    """Whether the application lets this client in as `ids`. It is asked by a Connect of its own, whose Disconnect follows.

    Raises ServerError.
    """
    sid = secrets.token_urlsafe(16)
    connected = await application.connect(replace(caller(session), sid=sid), lambda: session.link.open)
    admission = check_admission(connected, services.limits)
    if admission.accepted:
        app = _answered(session.app, services, admission.state)
        _let_go(services, sid, SessionSnapshot(admission.ids, {}, app=app))
    return admission.accepted and admission.ids == ids


def _let_go(services: Services, sid: str, snapshot: SessionSnapshot) -> None:
    """The application has let somebody in who is not there, and hears of it."""
    services.annals.passed(sid, snapshot)
    services.farewells.say(sid, snapshot)


async def restored(session: "Session", services: Services, application: Application, former: str) -> None:
    """Runs beside the session's commands: what the application is asked waits for it, history and the like do not."""
    try:
        await _tell_return(session, services, application, former)
    finally:
        session.returning = None


async def _tell_return(session: "Session", services: Services, application: Application, former: str) -> None:
    subscriptions = {name: each.granted.state for name, each in session.subscriptions.items() if each.granted.state is not None}
    try:
        comeback = Comeback(caller(session), former, subscriptions)
        greeting = check_greeting(
            await application.restored(comeback), services.limits, comeback.caller.state, comeback.subscriptions
        )
    except ServerError as error:
        logger.warning("the application did not hear of a return", extra={"session": session.tag, "reason": str(error)})
        return
    for identifier, changes in greeting.own.items():
        subscription = session.subscriptions.get(identifier)
        if subscription is not None and subscription.granted.state is not None:
            await _change(session, services, subscription, changes)
            services.annals.changed(session, subscription)
    if greeting.state:
        _remember(session, services, greeting.state)
    _transmit(session, greeting.transmissions)
    await _publish(services, greeting.publications)
    if greeting.disconnect:
        session.end(closings.BY_APPLICATION)


async def subscribe(session: "Session", services: Services, application: Application, command: Subscribe) -> str:
    """Why it was refused; "" if it was granted."""
    identifier, link = command.identifier, session.link
    await _returned(session)
    try:
        answer = await _ask(services, application, Call(caller(session), Action.SUBSCRIBE, identifier))
    except ServerError as error:
        link.send(link.codec.about("reject_subscription", identifier))
        return str(error)
    _remember(session, services, answer.state)
    if not answer.accepted:
        before, after = around("reject_subscription", identifier, answer.transmissions)
        _transmit(session, before)
        link.send(link.codec.about("reject_subscription", identifier))
        _transmit(session, after)
        _end_if_asked(session, answer)
        return answer.reason or "rejected by the application"
    subscription = Subscription(identifier, Subscribed(tuple(dict.fromkeys(answer.streams)), state={}))
    _keep(subscription, answer.own)
    session.subscriptions[identifier] = subscription
    services.annals.subscribed(session, subscription)
    before, after = around("confirm_subscription", identifier, answer.transmissions)
    _transmit(session, before)
    following = [link.codec.transmission(text) for text in after]
    await services.joiner.join(link, subscription, command.history, confirm=True, following=following, insist=True)
    await _finish(session, services, subscription, answer)
    _end_if_asked(session, answer)
    return ""


async def perform(session: "Session", services: Services, application: Application, identifier: str, data: str) -> str:
    """Why it failed; "" if it did not."""
    await _returned(session)
    subscription = session.subscriptions[identifier]
    call = Call(caller(session), Action.PERFORM, identifier, subscription.granted.state or {}, data)
    try:
        answer = await application.command(call)
    except ServerError as error:
        _reply(session, identifier, error.reply)
        return str(error)
    try:
        check_answer(answer, services.limits, call.caller.state, call.state, subscription.granted.streams)
    except ServerError as error:
        _reply(session, identifier, answer.reply, "failed")
        return str(error)
    _remember(session, services, answer.state)
    if subscription.granted.state is not None:  # what the server granted by itself is not the application's to change
        await _change(session, services, subscription, answer.own)
        await _restream(session, services, subscription, answer)
        if answer.own or answer.stop_all or answer.stopped or answer.streams:
            services.annals.changed(session, subscription)
    _transmit(session, answer.transmissions)
    lost = await _finish(session, services, subscription, answer)
    _reply(session, identifier, answer.reply, "unavailable" if lost else "")
    _end_if_asked(session, answer)
    return lost if answer.accepted else answer.reason or "refused by the application"


async def unsubscribe(session: "Session", services: Services, application: Application, subscription: Subscription) -> str:
    """The session has let go of it already. Why it failed; "" if it did not."""
    await _returned(session)
    state = subscription.granted.state or {}
    call = Call(caller(session), Action.UNSUBSCRIBE, subscription.identifier, state)
    try:
        answer = await _ask(services, application, call)
    except ServerError as error:
        return str(error)
    _remember(session, services, answer.state)
    _transmit(session, answer.transmissions)
    lost = await _finish(session, services, None, answer)
    _end_if_asked(session, answer)
    return lost


async def _ask(services: Services, application: Application, call: Call) -> Answer:
    """Raises ServerError."""
    return check_answer(await application.command(call), services.limits, call.caller.state, call.state)


async def _change(session: "Session", services: Services, subscription: Subscription, changes: State) -> None:
    """Whoever can be present elsewhere from now on, or nowhere, is no longer present where it was."""
    before = subscription.granted.presence
    _keep(subscription, changes)
    if before and before != subscription.granted.presence:
        await presence.leave_stream(session, services, before)


async def _restream(session: "Session", services: Services, subscription: Subscription, answer: Answer) -> None:
    stopped = subscription.granted.streams if answer.stop_all else answer.stopped
    if stopped:
        services.joiner.cut(session.link, subscription, stopped)
    if answer.streams:
        await services.joiner.extend(session.link, subscription, answer.streams)


async def _returned(session: "Session") -> None:
    """Calls of one session come one after another: the return is the first."""
    if session.returning is not None:
        await asyncio.wait([session.returning])


async def _finish(session: "Session", services: Services, subscription: Subscription | None, answer: Answer) -> str:
    """Why what it published is lost; "" if it is not."""
    if answer.seating is not None and subscription is not None:
        await _seat(session, services, subscription, answer.seating)
    return await _publish(services, answer.publications)


async def _seat(session: "Session", services: Services, subscription: Subscription, seating: Seating) -> None:
    stream = subscription.granted.presence
    if not stream:
        logger.warning("the application seats a client where there is no presence", extra={"session": session.tag})
    elif seating.join:
        if (subscription.granted.state or {}).get(MEMBER_KEY) != seating.member.id:
            _keep(subscription, {MEMBER_KEY: seating.member.id})
            services.annals.changed(session)
        await presence.join_stream(session, services, stream, seating.member)
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
        session.link.send(session.link.codec.transmission(reply_json(identifier, told)))


def _transmit(session: "Session", texts: Sequence[str]) -> None:
    for text in texts:
        session.link.send(session.link.codec.transmission(text))


def _end_if_asked(session: "Session", answer: Answer) -> None:
    if answer.disconnect:
        session.end(closings.BY_APPLICATION)


def _remember(session: "Session", services: Services, changes: State) -> None:
    """The application has answered, so that it knows of the session."""
    known = session.app is not None and session.app.known
    session.app = _answered(session.app, services, changes)
    if changes or session.app.known != known:
        services.annals.changed(session)


def _answered(side: AppSide | None, services: Services, changes: State) -> AppSide:
    side = side or AppSide()
    return replace(side, state=merged(side.state, changes), known=services.limits.disconnect_mode != "never")


def _keep(subscription: Subscription, changes: State) -> None:
    state = merged(subscription.granted.state or {}, changes)
    subscription.granted = replace(
        subscription.granted, state=state, whisper=state.get(WHISPER_KEY, ""), presence=state.get(PRESENCE_KEY, "")
    )
