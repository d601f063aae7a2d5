"""Opens a session: restored from its sid, accepted by an authenticator, or refused. The welcome is always sent first.

A sid is random, made by the server, valid for one restore, and never outlives the token it was issued under. Other
credentials sent with it must match. The sid is used up only after that check.
"""

import asyncio
import logging

from ropewalk.core.credentials import same
from ropewalk.engine import conversation, presence
from ropewalk.engine.services import Services
from ropewalk.engine.session import Session
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.errors import ServerError, Unavailable
from ropewalk.model.presence import Member
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, SessionSnapshot

logger = logging.getLogger("ropewalk.session")

MOST_NAMES = 8  # former sids a session remembers


async def open_session(session: Session, services: Services, request: ConnectRequest) -> None:
    try:
        if not await _restore(session, services, request):
            await _authenticate(session, services, request)
    except ServerError as error:
        logger.warning("nobody could say who a client is", extra={"session": session.tag, "reason": str(error)})
        session.end(closings.AUTH_ERROR)
    except Exception:
        logger.exception("opening failed", extra={"session": session.tag})
        session.end(closings.AUTH_ERROR)
    session.begin()


async def _authenticate(session: Session, services: Services, request: ConnectRequest) -> None:
    answer = await _identify(session, services, request)
    if answer is None and services.application is not None:
        await conversation.connect(session, services, services.application, services.credentials(request))
        return
    if not isinstance(answer, Accepted):
        answer = answer or Refused(closings.UNAUTHORIZED.reason)
        services.stats.auth_failures += 1
        logger.debug("refused", extra={"session": session.tag, "reason": answer.reason})
        session.end(closings.REFUSALS.get(answer.reason, closings.UNAUTHORIZED))
    elif session.accept(answer.ids, answer.expires_at):
        services.session_log.connected(session)
        session.link.send(session.link.codec.welcome(session.sid, None))


async def _identify(session: Session, services: Services, request: ConnectRequest) -> Accepted | Refused | None:
    """None: none of those who are asked here knows the client."""
    for authenticator in services.authenticators:
        answer = await authenticator.authenticate(request, session.sid)
        if answer is not None:
            return answer
    return None


async def _restore(session: Session, services: Services, request: ConnectRequest) -> bool:
    """True if the session is restored (or was refused on the way); False if it has to begin anew."""
    former = request.options.former_sid
    if not (former and session.extended and services.limits.sessions_ttl > 0):
        return False
    snapshot = await services.keeper.find(former)
    if snapshot is None:
        services.stats.restores_missed += 1
        return False
    standing = await _standing(session, services, request, snapshot)
    if standing is None:
        return False
    snapshot = await services.keeper.take(former, session.sid)
    if snapshot is None:  # another connection was faster, or it was ended meanwhile
        services.stats.restores_missed += 1
        return False
    if not session.accept(snapshot.ids, standing.expires_at):
        # The client is gone again before it was welcomed, or it was ended meanwhile.
        revoked = services.revocations.order_for(session.sid, snapshot.ids) is not None
        if revoked:
            services.session_log.revoked(former, closings.REMOTE.reason)
        await services.keeper.put_back(former, session.sid, snapshot, revoked)
        return True
    session.app = conversation.side_of(request, services, snapshot.app)
    session.link.names = (session.sid, *snapshot.names)[:MOST_NAMES]
    session.subscriptions = {
        name: Subscription(name, granted)
        for name, granted in snapshot.subscriptions.items()
        if len(name.encode()) <= services.limits.max_identifier
    }
    services.stats.sessions_restored += 1
    services.session_log.restored(session, former)
    session.link.send(session.link.codec.welcome(session.sid, list(session.subscriptions)))
    services.joiner.hold(session.link, session.subscriptions.values())
    await _readmit(session, services, former, snapshot)
    if services.application is not None and session.app is not None and session.app.known:
        telling = conversation.restored(session, services, services.application, former)
        session.returning = services.tasks.spawn(telling)
    if session.subscriptions:
        timeout = services.limits.resume_timeout
        asyncio.get_running_loop().call_later(timeout, lambda: services.tasks.spawn(_end_resume_timeout(session, services)))
    return True


async def _standing(
    session: Session, services: Services, request: ConnectRequest, snapshot: SessionSnapshot
) -> Accepted | None:
    """How long a kept session may go on: as its token said, or as a newer one of the same client says. None: not now."""
    if request.token:
        answer = await _identify(session, services, request)
        if isinstance(answer, Refused) or (answer is not None and not answer.anonymous):
            return answer if isinstance(answer, Accepted) and answer.ids == snapshot.ids else None
    if snapshot.expires_at is not None and snapshot.expires_at <= services.clock():
        return None
    if not await _fits(session, services, request, snapshot):
        return None
    return Accepted(snapshot.ids, snapshot.expires_at)


async def _fits(session: Session, services: Services, request: ConnectRequest, snapshot: SessionSnapshot) -> bool:
    """An application that admitted the session is asked again when the client shows it something else than it did then: only
    the application can tell whether that is the same client (a cookie was renewed) or another one."""
    admitted = snapshot.app.credentials if snapshot.app is not None else None
    if admitted is None or services.application is None:
        return True
    shown = services.credentials(request)
    if not shown or same(shown, admitted):
        return True
    return await conversation.vouched(session, services, services.application, snapshot.ids)


async def _readmit(session: Session, services: Services, former: str, snapshot: SessionSnapshot) -> None:
    """Back into the presence sets: unnoticed within the grace, with a join after it.

    If its node died, what it holds in the store may be newer than the snapshot, and the snapshot may be from between the two
    steps of an unsubscribe: who is not subscribed is no member.
    """
    if not snapshot.members and services.backend.leases is None:
        return
    held: dict[str, Member] = {}
    try:
        held = await services.presence.adopt(former, session.sid)
    except Unavailable as error:
        logger.warning("what a session held in presence sets cannot be adopted", extra={"reason": str(error)})
    session.members = {**held, **snapshot.members} or None
    subscribed = {subscription.granted.presence for subscription in session.subscriptions.values()}
    for stream, member in (session.members or {}).items():
        if stream not in subscribed:
            await presence.leave_stream(session, services, stream)
        elif not await presence.join_stream(session, services, stream, member):
            session.members = {other: held for other, held in (session.members or {}).items() if other != stream}


async def _end_resume_timeout(session: Session, services: Services) -> None:
    for subscription in list(session.subscriptions.values()):
        if not subscription.claimed:
            await services.joiner.abandon(session.link, subscription)
