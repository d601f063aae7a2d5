"""Calls the application for a session and applies the results, in order. The client always gets an answer.

The application decides, but the server guarantees the protocol: the welcome comes first and carries the sid, each subscribe is
confirmed or rejected, and a confirmation gives the position at which live delivery begins.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ropewalk.core.credentials import Credentials, same
from ropewalk.engine.bounds import check_command_result, check_connect_result, check_restore_result
from ropewalk.engine.session import Session
from ropewalk.engine.session_services import SessionServices
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
    merge_state,
)
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import ServerError, Unanswered, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.sessions import AppSide, ConnectRequest, SessionSnapshot, Subscribed
from ropewalk.ports import Application, Publisher

logger = logging.getLogger("ropewalk.application")

REJECTED = Closing("", False, closings.UNAUTHORIZED.code, closings.UNAUTHORIZED.text)
"""For a client that the application has already sent a reason."""


class Conversation:
    """Calls the application for the sessions of a node."""

    def __init__(
        self, application: Application, credentials: Credentials, publisher: Publisher, services: SessionServices
    ) -> None:
        self._application = application
        self._credentials = credentials
        self._publisher = publisher
        self._disconnect_queue = services.disconnect_queue
        self._joiner = services.joiner
        self._presence = services.presence
        self._keeper = services.keeper
        self._session_log = services.session_log
        self._limits = services.context.limits
        self._stats = services.context.stats

    def build_app_side(self, request: ConnectRequest, former: AppSide | None = None) -> AppSide:
        """The data that a session opened with this request keeps for the application."""
        former = former or AppSide()
        known = self._limits.disconnect_mode == "always" or former.known
        admitted = None if former.credentials is None else self._credentials(request) or former.credentials
        return AppSide(request.url, self._credentials.forward(request), former.state, known, admitted)

    async def connect(self, session: "Session", request: ConnectRequest) -> None:
        """Raises ServerError."""
        try:
            connect_result = check_connect_result(
                await self._application.connect(build_context(session), lambda: session.link.open), self._limits
            )
        except Unavailable as error:
            if session.link.open or isinstance(error, Unanswered):
                raise
            return  # the client left before the call was made
        codec = session.link.codec
        if not connect_result.accepted:
            self._stats.auth_failures += 1
            logger.debug("refused by the application", extra={"session": session.tag, "reason": connect_result.reason})
            _send(session, codec.refused(connect_result.transmissions))
            session.end(REJECTED if connect_result.transmissions else closings.UNAUTHORIZED)
            return
        session.app = replace(self._answered(session.app, connect_result.state), credentials=self._credentials(request))
        if not session.accept(connect_result.ids, None):  # the client left or was disconnected during the call
            self._end_absent(session.sid, SessionSnapshot(connect_result.ids, {}, app=session.app))
            return
        self._session_log.connected(session)
        await self._keeper.wait_stored(session)
        _send(session, codec.accepted(session.sid, connect_result.transmissions))

    async def may_resume(self, session: "Session", request: ConnectRequest, snapshot: SessionSnapshot) -> bool:
        """Whether the client may resume a session that the application admitted. With other credentials than before the
        application decides: it may be the same client with a renewed cookie, or another client.

        Raises ServerError.
        """
        admitted = snapshot.app.credentials if snapshot.app is not None else None
        if admitted is None:
            return True
        shown = self._credentials(request)
        return not shown or same(shown, admitted) or await self._is_accepted_as(session, snapshot.ids)

    async def _is_accepted_as(self, session: "Session", ids: str) -> bool:
        """Whether the application accepts this client as `ids`. Makes a separate Connect call, and a Disconnect call for it.

        Raises ServerError.
        """
        sid = secrets.token_urlsafe(16)
        connected = await self._application.connect(replace(build_context(session), sid=sid), lambda: session.link.open)
        connect_result = check_connect_result(connected, self._limits)
        if connect_result.accepted:
            app = self._answered(session.app, connect_result.state)
            self._end_absent(sid, SessionSnapshot(connect_result.ids, {}, app=app))
        return connect_result.accepted and connect_result.ids == ids

    def _end_absent(self, sid: str, snapshot: SessionSnapshot) -> None:
        """Report a Disconnect for a session that the application accepted and that does not exist."""
        self._session_log.passed(sid, snapshot)
        self._disconnect_queue.put(sid, snapshot)

    async def restored(self, session: "Session", former: str) -> None:
        """Runs concurrently with the session's commands: calls to the application wait for it, history requests do not."""
        try:
            await self._report_return(session, former)
        finally:
            session.returning = None

    async def _report_return(self, session: "Session", former: str) -> None:
        subscriptions = {
            name: each.granted.state for name, each in session.subscriptions.items() if each.granted.state is not None
        }
        try:
            restore_call = RestoreCall(build_context(session), former, subscriptions)
            restore_result = check_restore_result(
                await self._application.restored(restore_call),
                self._limits,
                restore_call.context.state,
                restore_call.subscriptions,
            )
        except ServerError as error:
            logger.warning(
                "session restore not reported to the application", extra={"session": session.tag, "reason": str(error)}
            )
            return
        for identifier, changes in restore_result.own.items():
            subscription = session.subscriptions.get(identifier)
            if subscription is not None and subscription.granted.state is not None:
                await self._change(session, subscription, changes)
                self._session_log.changed(session, subscription)
        if restore_result.state:
            self._remember(session, restore_result.state)
        _transmit(session, restore_result.transmissions)
        await self._publish(restore_result.publications)
        if restore_result.disconnect:
            session.end(closings.BY_APPLICATION)

    async def subscribe(self, session: "Session", command: Subscribe) -> str:
        """Returns why it was refused, "" if it was granted."""
        identifier, link = command.identifier, session.link
        await _wait_restored(session)
        try:
            answer = await self._ask(CommandCall(build_context(session), Action.SUBSCRIBE, identifier))
        except ServerError as error:
            link.answer(link.codec.reject_subscription(identifier))
            return str(error)
        self._remember(session, answer.state)
        if not answer.accepted:
            _send(session, link.codec.rejected(identifier, answer.transmissions))
            _end_if_asked(session, answer)
            return answer.reason or "rejected by the application"
        subscription = Subscription(identifier, Subscribed(tuple(dict.fromkeys(answer.streams)), state={}))
        _keep(subscription, answer.own)
        session.subscriptions[identifier] = subscription
        self._session_log.subscribed(session, subscription)
        before, following = link.codec.around_confirmation(identifier, answer.transmissions)
        _send(session, before)
        await self._joiner.join(link, subscription, command.history, confirm=True, following=following)
        await self._finish(session, subscription, answer)
        _end_if_asked(session, answer)
        return ""

    async def perform(self, session: "Session", identifier: str, data: str) -> str:
        """Returns why it failed, "" if it did not."""
        await _wait_restored(session)
        subscription = session.subscriptions[identifier]
        call = CommandCall(build_context(session), Action.PERFORM, identifier, subscription.granted.state or {}, data)
        try:
            answer = await self._application.command(call)
        except ServerError as error:
            _reply(session, identifier, error.reply)
            return str(error)
        try:
            check_command_result(answer, self._limits, call.context.state, call.state, subscription.granted.streams)
        except ServerError as error:
            _reply(session, identifier, answer.reply, "failed")
            return str(error)
        self._remember(session, answer.state)
        if subscription.granted.state is not None:  # None: granted by the server, not by the application
            await self._change(session, subscription, answer.own)
            await self._change_streams(session, subscription, answer)
            if answer.own or answer.stop_all or answer.stopped or answer.streams:
                self._session_log.changed(session, subscription)
        _transmit(session, answer.transmissions)
        lost = await self._finish(session, subscription, answer)
        _reply(session, identifier, answer.reply, "unavailable" if lost else "")
        _end_if_asked(session, answer)
        return lost if answer.accepted else answer.reason or "refused by the application"

    async def unsubscribe(self, session: "Session", subscription: Subscription) -> str:
        """The session has dropped the subscription already. Returns why the call failed, "" if it did not."""
        await _wait_restored(session)
        state = subscription.granted.state or {}
        call = CommandCall(build_context(session), Action.UNSUBSCRIBE, subscription.identifier, state)
        try:
            answer = await self._ask(call)
        except ServerError as error:
            return str(error)
        self._remember(session, answer.state)
        _transmit(session, answer.transmissions)
        lost = await self._finish(session, None, answer)
        _end_if_asked(session, answer)
        return lost

    async def _ask(self, call: CommandCall) -> CommandResult:
        """Raises ServerError."""
        return check_command_result(await self._application.command(call), self._limits, call.context.state, call.state)

    async def _change(self, session: "Session", subscription: Subscription, changes: State) -> None:
        """Change the subscription's state. If that changes or removes its presence stream, leave the old one."""
        before = subscription.granted.presence
        _keep(subscription, changes)
        if before and before != subscription.granted.presence:
            await self._presence.leave_stream(session, before)

    async def _change_streams(self, session: "Session", subscription: Subscription, answer: CommandResult) -> None:
        stopped = subscription.granted.streams if answer.stop_all else answer.stopped
        if stopped:
            self._joiner.cut(session.link, subscription, stopped)
        if answer.streams:
            await self._joiner.extend(session.link, subscription, answer.streams)

    async def _finish(self, session: "Session", subscription: Subscription | None, answer: CommandResult) -> str:
        """Apply presence and publications. Returns why the publications are lost, "" if they are not."""
        if answer.presence_update is not None and subscription is not None:
            await self._update_presence(session, subscription, answer.presence_update)
        return await self._publish(answer.publications)

    async def _update_presence(self, session: "Session", subscription: Subscription, presence_update: PresenceUpdate) -> None:
        stream = subscription.granted.presence
        if not stream:
            logger.warning("presence update ignored: no presence stream", extra={"session": session.tag})
        elif presence_update.join:
            if (subscription.granted.state or {}).get(MEMBER_KEY) != presence_update.member.id:
                _keep(subscription, {MEMBER_KEY: presence_update.member.id})
                self._session_log.changed(session)
            await self._presence.join_stream(session, stream, presence_update.member)
        else:
            await self._presence.leave_stream(session, stream)

    async def _publish(self, publications: Sequence[Publication]) -> str:
        """If the backend is down, the publications are lost, but the session goes on."""
        try:
            if publications:
                await self._publisher.publish(publications)
        except ServerError as error:
            logger.error(
                "publications of the application are lost", extra={"reason": str(error), "messages": len(publications)}
            )
            return str(error)
        return ""

    def _remember(self, session: "Session", changes: State) -> None:
        """Apply the state changes of an answer. After it the session is known to the application."""
        known = session.app is not None and session.app.known
        session.app = self._answered(session.app, changes)
        if changes or session.app.known != known:
            self._session_log.changed(session)

    def _answered(self, side: AppSide | None, changes: State) -> AppSide:
        side = side or AppSide()
        return replace(side, state=merge_state(side.state, changes), known=self._limits.disconnect_mode != "never")


def build_context(session: "Session") -> CallContext:
    side = session.app or AppSide()
    return CallContext(session.sid, side.url, side.headers, session.ids, side.state)


async def _wait_restored(session: "Session") -> None:
    """Wait for the Restore call: it is the first one of a resumed session."""
    if session.returning is not None:
        await asyncio.wait([session.returning])


def _reply(session: "Session", identifier: str, reply: Reply | None, failure: str = "") -> None:
    """`failure`: an error code that replaces the result."""
    if reply is not None:
        sent = replace(reply, code=failure) if failure and not reply.code else reply
        session.link.send(session.link.codec.reply(identifier, sent))


def _transmit(session: "Session", texts: Sequence[str]) -> None:
    _send(session, map(session.link.codec.transmission, texts))


def _send(session: "Session", frames: Iterable[bytes]) -> None:
    for frame in frames:
        session.link.answer(frame)


def _end_if_asked(session: "Session", answer: CommandResult) -> None:
    if answer.disconnect:
        session.end(closings.BY_APPLICATION)


def _keep(subscription: Subscription, changes: State) -> None:
    state = merge_state(subscription.granted.state or {}, changes)
    subscription.granted = replace(
        subscription.granted, state=state, whisper=state.get(WHISPER_KEY, ""), presence=state.get(PRESENCE_KEY, "")
    )
