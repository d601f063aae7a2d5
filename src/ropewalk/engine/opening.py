"""How a session begins: restored from its sid, or known by an authenticator, or refused. A welcome comes before anything else.

A sid is ours, random, good for one restore, and never outlives the token it was made under.
"""

import asyncio
import logging

from ropewalk.engine import conversation, presence
from ropewalk.engine.services import Services
from ropewalk.engine.session import Session
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.errors import ServerError, Unavailable
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
        await conversation.connect(session, services, services.application)
        return
    if not isinstance(answer, Accepted):
        answer = answer or Refused(closings.UNAUTHORIZED.reason)
        services.stats.auth_failures += 1
        logger.info("refused", extra={"session": session.tag, "reason": answer.reason})
        session.end(closings.REFUSALS.get(answer.reason, closings.UNAUTHORIZED))
    elif session.accept(answer.ids, answer.expires_at):
        services.annals.connected(session)
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
    former = request.headers.get("x-anycable-restore-sid") or request.params.get("sid", "")
    if not (former and session.extended and services.limits.sessions_ttl > 0):
        return False
    snapshot = await _take(services, former)
    if snapshot is None:
        services.stats.restores_missed += 1
        return False
    standing = await _standing(session, services, request, snapshot)
    if standing is None:
        return False
    if not session.accept(snapshot.ids, standing.expires_at):
        await services.backend.sessions.save(former, snapshot, services.limits.sessions_ttl)
        return True
    session.app = conversation.side_of(request, services, snapshot.app)
    session.link.names = (session.sid, *snapshot.names)[:MOST_NAMES]
    session.subscriptions = {name: Subscription(name, granted) for name, granted in snapshot.subscriptions.items()}
    services.stats.sessions_restored += 1
    services.annals.restored(session, former)
    session.link.send(session.link.codec.welcome(session.sid, list(session.subscriptions)))
    services.joiner.hold(session.link, session.subscriptions.values())
    await _readmit(session, services, former, snapshot)
    if services.application is not None and session.app is not None and session.app.known:
        telling = conversation.restored(session, services, services.application, former)
        session.returning = services.tasks.spawn(telling)
    if session.subscriptions:
        patience = services.limits.resume_patience
        asyncio.get_running_loop().call_later(patience, lambda: services.tasks.spawn(_end_patience(session, services)))
    return True


async def _standing(
    session: Session, services: Services, request: ConnectRequest, snapshot: SessionSnapshot
) -> Accepted | None:
    """How long a kept session may go on: as its token said, or as a newer one of the same client says. None: no longer."""
    if snapshot.expires_at is None:
        return Accepted(snapshot.ids)
    if request.token:
        answer = await _identify(session, services, request)
        return answer if isinstance(answer, Accepted) and answer.ids == snapshot.ids else None
    return Accepted(snapshot.ids, snapshot.expires_at) if snapshot.expires_at > services.clock() else None


async def _take(services: Services, sid: str) -> SessionSnapshot | None:
    if alive := services.sessions.get(sid):  # another connection of a client whose old one only looks alive
        alive.end(closings.TAKEN_OVER)
    if leaving := services.departing.get(sid):
        await asyncio.wait([leaving])
    try:
        return await services.backend.sessions.take(sid)
    except Unavailable as error:
        logger.warning("sessions cannot be restored", extra={"reason": str(error)})
        return None


async def _readmit(session: Session, services: Services, former: str, snapshot: SessionSnapshot) -> None:
    """Back into the presence sets: unnoticed within the grace, with a join after it."""
    if not snapshot.members:
        return
    await services.backend.presence.adopt(former, session.sid)
    for stream, member in snapshot.members.items():
        await presence.join_stream(session, services, stream, member)


async def _end_patience(session: Session, services: Services) -> None:
    for subscription in list(session.subscriptions.values()):
        if not subscription.claimed:
            await services.joiner.abandon(session.link, subscription)
