"""Handles the commands of clients. A refused command changes nothing.

`handle` returns whether the command was granted. Refused commands are counted and logged with their reason.
"""

import logging
from collections.abc import Sequence

from ropewalk.core.server_publications import whisper_publication
from ropewalk.engine.broker import Broker
from ropewalk.engine.conversation import Conversation
from ropewalk.engine.history_pages import HistoryPages
from ropewalk.engine.prefixes import Prefixes
from ropewalk.engine.session import Session
from ropewalk.engine.session_services import SessionServices
from ropewalk.engine.subscription import Subscription
from ropewalk.model import commands
from ropewalk.model.application import SENDER_KEY
from ropewalk.model.errors import RopewalkError
from ropewalk.model.nesting import TOO_DEEP, is_too_deep
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import NotGranted, Rejected, Subscribed
from ropewalk.ports import Channels

logger = logging.getLogger("ropewalk.session")


class CommandHandler:
    """`channels` are the server's own. Other identifiers are passed to the application, if there is one."""

    def __init__(
        self,
        channels: Sequence[Channels],
        conversation: Conversation | None,
        pages: HistoryPages,
        prefixes: Prefixes,
        broker: Broker,
        services: SessionServices,
    ) -> None:
        self._channels = channels
        self._conversation = conversation
        self._pages = pages
        self._prefixes = prefixes
        self._broker = broker
        self._joiner = services.joiner
        self._presence = services.presence
        self._session_log = services.session_log
        self._limits = services.context.limits
        self._stats = services.context.stats

    async def handle(self, session: "Session", command: commands.Command) -> bool:
        match command:
            case commands.Subscribe() | commands.SubscribePrefix():
                return await self._subscribe(session, command)
            case commands.Unsubscribe(identifier):
                return await self._unsubscribe(session, identifier)
            case commands.History() | commands.ReadHistory():
                return await self._history(session, command)
            case commands.Whisper(identifier, payload):
                return await self._whisper(session, identifier, payload)
            case commands.Presence() | commands.Join() | commands.Leave():
                return await self._presence.handle(session, command)
            case commands.Ping():
                session.link.answer(session.link.codec.pong())
                return True
            case commands.Pong():
                return True
            case commands.Perform(identifier, data):
                return await self._perform(session, identifier, data)
            case commands.Unusable(reason):
                self._stats.refusals[Refusal.UNUSABLE_COMMAND] += 1
                return _refuse(session, reason)

    async def _subscribe(self, session: "Session", command: commands.Subscribe | commands.SubscribePrefix) -> bool:
        if isinstance(command, commands.SubscribePrefix):
            return await self._subscribe_prefix(session, command)
        inbox = None if session.link.codec.answers_repeats else session.inbox
        first = inbox.answer_to(command.identifier) if inbox is not None else None
        if first is not None:
            return await self._repeat(session, command, first)
        granted = await self._decide(session, command)
        if inbox is not None:
            inbox.answered(command)
        return granted

    async def _repeat(self, session: "Session", command: commands.Subscribe, first: commands.Subscribe) -> bool:
        """Handle a repeated subscribe: no second answer, only what the first one did not request."""
        subscription = session.subscriptions.get(command.identifier)
        if subscription is None:
            return True
        if command.history is not None and first.history is None and not subscription.held:
            await self._joiner.replay(session.link, subscription, command.history)
        return await self._join_along(session, command) if first.presence is None else True

    async def _decide(self, session: "Session", command: commands.Subscribe) -> bool:
        known = session.subscriptions.get(command.identifier)
        if known is None:
            granted = self._one_too_many(session) or await self._ask_channels(session, command.identifier)
            if granted is None and self._conversation is not None:
                reason = await self._conversation.subscribe(session, command)
                return _refuse(session, reason) if reason else await self._join_along(session, command)
            if not isinstance(granted, Subscribed):
                granted = granted or Rejected(f"no channel answers to {command.identifier[:80]}")
                session.link.answer(session.link.codec.reject_subscription(command.identifier, granted.client_error()))
                return _refuse(session, granted.reason)
            known = session.subscriptions[command.identifier] = Subscription(command.identifier, granted)
            self._session_log.subscribed(session, known)
            await self._joiner.join(session.link, known, command.history, confirm=True)
        elif known.held:
            await self._joiner.join(session.link, known, command.history, confirm=True)
        else:  # a client that received no confirmation repeats its subscribe
            session.link.answer(session.link.codec.confirm_subscription(command.identifier))
            if command.history is not None:
                await self._joiner.replay(session.link, known, command.history)
        return command.presence is None or await self._join_along(session, command)

    async def _join_along(self, session: "Session", command: commands.Subscribe) -> bool:
        if command.presence is not None:
            return await self._presence.join(session, command.identifier, command.presence)
        return True

    async def _subscribe_prefix(self, session: "Session", command: commands.SubscribePrefix) -> bool:
        identifier, link = command.identifier, session.link
        refused = command.refused
        if refused is None and identifier not in session.subscriptions:
            refused = await self._join_prefix(session, command)
        if refused is not None:
            link.answer(link.codec.reject_subscription(identifier, refused))
            return _refuse(session, refused.text)
        link.answer(link.codec.confirm_subscription(identifier))
        return True

    async def _join_prefix(self, session: "Session", command: commands.SubscribePrefix) -> NotGranted | None:
        if len(command.prefix) > self._limits.max_stream_name:
            return NotGranted("malformed", f"no key has more than {self._limits.max_stream_name} bytes")
        if (rejected := self._one_too_many(session)) is not None:
            return NotGranted("overflow", rejected.reason)
        subscription = session.subscriptions[command.identifier] = Subscription(command.identifier, Subscribed(()))
        refused = await self._prefixes.join(session.link, subscription, command)
        if refused is not None:
            session.subscriptions.pop(command.identifier, None)
        else:
            self._session_log.subscribed(session, subscription)
        return refused

    def _one_too_many(self, session: "Session") -> Rejected | None:
        if len(session.subscriptions) < session.max_subscriptions:
            return None
        self._stats.refusals[Refusal.SUBSCRIPTIONS] += 1
        return Rejected(f"more than {session.max_subscriptions} subscriptions in one session", "overflow")

    async def _ask_channels(self, session: "Session", identifier: str) -> Subscribed | Rejected | None:
        """Returns None if no channel of the server accepts or rejects the identifier."""
        if len(identifier.encode()) > self._limits.max_identifier:
            self._stats.refusals[Refusal.IDENTIFIER] += 1
            return Rejected(f"an identifier of more than {self._limits.max_identifier} bytes", "malformed")
        if is_too_deep(identifier):
            self._stats.refusals[Refusal.NESTING] += 1
            return Rejected(f"the identifier is {TOO_DEEP}")
        for channels in self._channels:
            try:
                answer = await channels.subscribe(session.ids, identifier)
            except RopewalkError as error:
                return Rejected(str(error))
            if answer is not None:
                return answer
        return None

    async def _perform(self, session: "Session", identifier: str, data: str) -> bool:
        if self._conversation is None:
            return _refuse(session, f"no application answers actions of {identifier[:80]}")
        if identifier not in session.subscriptions:
            return _refuse(session, "action without a subscription")
        if is_too_deep(data):
            self._stats.refusals[Refusal.NESTING] += 1
            return _refuse(session, f"the data of an action is {TOO_DEEP}")
        failed = await self._conversation.perform(session, identifier, data)
        return _refuse(session, failed) if failed else True

    async def _unsubscribe(self, session: "Session", identifier: str) -> bool:
        subscription = session.subscriptions.pop(identifier, None)
        if subscription is None:
            return _refuse(session, "unsubscribe without a subscription")
        subscription.claimed = True  # so the resume timeout no longer applies
        if session.inbox is not None:
            session.inbox.forget(identifier)
        groups = subscription.groups
        session.drop(subscription)
        session.link.forget(groups)
        self._session_log.unsubscribed(session, identifier)
        await self._presence.leave_stream(session, subscription.granted.presence)
        if self._conversation is not None and subscription.granted.state is not None:
            failed = await self._conversation.unsubscribe(session, subscription)
            return _refuse(session, failed) if failed else True
        return True

    async def _history(self, session: "Session", command: commands.History | commands.ReadHistory) -> bool:
        if isinstance(command, commands.ReadHistory):
            return await self._read_history(session, command)
        identifier, request = command.identifier, command.history
        subscription = session.subscriptions.get(identifier)
        if subscription is None:
            session.link.send(session.link.codec.messages.reject_history(identifier, ()))
            return _refuse(session, "history request without a subscription")
        if subscription.held:
            await self._joiner.join(session.link, subscription, request, confirm=False)
        else:
            await self._joiner.replay(session.link, subscription, request)
        return True

    async def _read_history(self, session: "Session", command: commands.ReadHistory) -> bool:
        """Read history without a subscription, for clients that are allowed to subscribe."""
        known = session.subscriptions.get(command.identifier)
        refused = NotGranted("forbidden", "this key may not be read")
        match known.granted if known else await self._ask_channels(session, command.identifier):
            case Subscribed((stream,)):
                return await self._pages.answer(session, stream, command)
            case None if self._conversation is not None:
                refused = NotGranted("forbidden", "the application decides who may read this key: subscribe to it")
            case Rejected() as rejected:
                refused = rejected.client_error() or refused
        self._pages.refuse(session, refused)
        return _refuse(session, refused.text)

    async def _whisper(self, session: "Session", identifier: str, payload: bytes) -> bool:
        subscription = session.subscriptions.get(identifier)
        if subscription is None or not subscription.granted.whisper:
            return _refuse(session, "whisper is not allowed here")
        if len(payload) > self._limits.max_whisper:
            self._stats.refusals[Refusal.WHISPER_SIZE] += 1
            return _refuse(session, f"a whisper of more than {self._limits.max_whisper} bytes")
        if not session.may_whisper(len(payload)):
            self._stats.refusals[Refusal.WHISPER_RATE] += 1
            return _refuse(session, f"more than {self._limits.whisper_rate:g} bytes of whispers a second")
        sender = (subscription.granted.state or {}).get(SENDER_KEY, "")
        self._broker.whisper(whisper_publication(subscription.granted.whisper, payload, session.sid, sender))
        return True


def _refuse(session: "Session", reason: str) -> bool:
    logger.debug("command refused", extra={"session": session.tag, "reason": reason})
    return False
