"""The client's session as a pure state: its effects for each reply of the server and each request of the program. No I/O and
no clock: the session passes replies and the time in, and executes the effects.
"""

from ropewalk.client.calls import CallAnswer, TcpCalls
from ropewalk.client.effects import Confirmed, Effect, End, PresenceResult, Redial, Send, SubscriptionDenied, Yield
from ropewalk.client.errors import disconnected
from ropewalk.client.events import Event, PresenceChange, PresenceState, PresentMember
from ropewalk.client.messages import DeliveredMessages, SubscriptionSuperseded, decode_payload
from ropewalk.client.track import Track
from ropewalk.model.closing import TOKEN_EXPIRED, UNAUTHORIZED
from ropewalk.model.commands import History, Join, Leave, Pong, Presence, Subscribe, Unsubscribe
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol.server_messages import (
    Data,
    Goodbye,
    HistoryConfirmed,
    HistoryRejected,
    PresenceChanged,
    PresenceFailed,
    PresenceListed,
    ServerMessage,
    ServerPing,
    ServerPong,
    SubscriptionConfirmed,
    SubscriptionRefused,
    UnknownMessage,
    Welcome,
)

MAX_PAUSE_SECONDS = 300.0
"""Upper limit for the reconnect delay that a server requests."""

MAX_CLOCK_SKEW = 5.0
"""Assumed difference to the server's clock in seconds before its first ping. Requesting too much history is harmless."""

ServerReply = ServerMessage | DeliveredMessages | SubscriptionSuperseded | CallAnswer
"""What a codec decodes. Replies in `CallAnswer` are sent over TCP only."""


_About = (
    SubscriptionConfirmed
    | SubscriptionRefused
    | SubscriptionSuperseded
    | HistoryConfirmed
    | HistoryRejected
    | PresenceChanged
    | PresenceListed
    | PresenceFailed
)


class _Subscription:
    """`accepted`: the server has confirmed it once; `live`: it did on this connection. `queries`: the start ids of pages."""

    def __init__(self, identifier: str, track: Track, started: float) -> None:
        self.identifier = identifier
        self.track = track
        self.started = started
        self.accepted = False
        self.live = False
        self.member: Member | None = None
        self.queries: list[str] = []


class ClientState:
    """One session over all its connections. `sid` is the session to restore on the next connection.

    Args:
        refreshes_unauthorized: Also get a new token if the server reports "unauthorized".
    """

    def __init__(self, refreshes_unauthorized: bool = False) -> None:
        self.sid = ""
        self.welcomed = False
        self.calls = TcpCalls()
        self._subscriptions: dict[str, _Subscription] = {}
        self._skew: float | None = None
        self._may_refresh = True
        self._refreshable = {TOKEN_EXPIRED.reason} | ({UNAUTHORIZED.reason} if refreshes_unauthorized else set())

    # --- requests of the program ---

    def subscribe(self, identifier: str, track: Track, now: float) -> list[Effect]:
        subscription = self._subscriptions[identifier] = _Subscription(identifier, track, now)
        return [self._subscribe(subscription)] if self.welcomed else []

    def unsubscribe(self, identifier: str) -> list[Effect]:
        known = self._subscriptions.pop(identifier, None)
        return [Send(Unsubscribe(identifier))] if known and self.welcomed else []

    def join(self, identifier: str, member: Member) -> list[Effect]:
        subscription = self._subscriptions[identifier]
        subscription.member = member
        return [Send(Join(identifier, member))] if subscription.live else []

    def leave(self, identifier: str) -> list[Effect]:
        subscription = self._subscriptions[identifier]
        subscription.member = None
        return [Send(Leave(identifier))] if subscription.live else []

    def query(self, identifier: str, after: str = "") -> list[Effect]:
        subscription = self._subscriptions[identifier]
        subscription.queries.append(after)
        return [Send(Presence(identifier, after=after))] if subscription.live else []

    # --- events of the connection ---

    def lost(self) -> None:
        """The connection is lost."""
        self.welcomed = False
        self.calls.lost()
        for subscription in self._subscriptions.values():
            subscription.live = False
            subscription.track.lost()

    def receive(self, reply: ServerReply, now: float) -> list[Effect]:
        if isinstance(reply, Data):
            reply = DeliveredMessages(reply.identifier, reply.stream, reply.epoch, reply.offset, 1, reply)
        if isinstance(reply, DeliveredMessages):  # nearly all replies
            subscription = self._subscriptions.get(reply.identifier)
            if subscription is None or (reply.offset and subscription.track.asked and not subscription.live):
                # For an earlier subscription of the same name, or ahead of the confirmation: the history contains it.
                return []
            events = subscription.track.accept(reply)
            return [Yield(reply.identifier, events)] if events else []
        if isinstance(reply, CallAnswer):
            return self.calls.receive(reply)
        match reply:
            case Welcome():
                return self._welcome(reply)
            case Goodbye(reason, reconnect, reconnect_in):
                return self._goodbye(reason, reconnect, reconnect_in)
            case ServerPing(timestamp):
                # Without the ping's travel time, so that the estimate is never ahead of the server's clock.
                self._skew = timestamp - now if timestamp else self._skew
                return [Send(Pong())]
            case ServerPong() | UnknownMessage():
                return []
            case _:
                subscription = self._subscriptions.get(reply.identifier)
                return self._receive(subscription, reply, now) if subscription else []

    def _receive(self, subscription: _Subscription, reply: _About, now: float) -> list[Effect]:
        match reply:
            case SubscriptionConfirmed(_, tips):
                events = subscription.track.began(tips)
                return [*self._confirm(subscription), *self._yield(subscription, events)]
            case SubscriptionRefused(identifier, reason):
                del self._subscriptions[identifier]
                return [SubscriptionDenied(identifier, reason)]
            case SubscriptionSuperseded():
                return [self._subscribe(subscription)]
            case HistoryConfirmed(_, tips):
                return self._history_confirmed(subscription, tips)
            case HistoryRejected():
                return self._history_rejected(subscription, reply, now)
            case PresenceChanged(identifier, joined, member):
                return [Yield(identifier, [PresenceChange(joined, _present(member))])]
            case PresenceListed(_, total, members, following):
                return self._answer(subscription, PresenceState(total, tuple(map(_present, members)), following))
            case PresenceFailed():
                return self._answer(subscription, None)

    def _welcome(self, welcome: Welcome) -> list[Effect]:
        self.sid = welcome.sid
        self.welcomed = True
        self._may_refresh = True
        restored = set(welcome.restored_ids) if welcome.restored else set()
        effects: list[Effect] = [Send(Unsubscribe(name)) for name in sorted(restored - self._subscriptions.keys())]
        for subscription in self._subscriptions.values():
            if subscription.identifier in restored:
                effects += self._resume(subscription)
            else:
                effects.append(self._subscribe(subscription))
        return effects

    def _goodbye(self, reason: str, reconnect: bool, reconnect_in: int | None) -> list[Effect]:
        if reconnect:
            after = None if reconnect_in is None else min(max(reconnect_in, 0) / 1000, MAX_PAUSE_SECONDS)
            return [Redial(after=after, reason=reason)]
        if reason in self._refreshable and self._may_refresh:
            self._may_refresh = False
            self.sid = ""  # the old session expires with its token, and would be rejected again
            return [Redial(new_token=True, reason=reason)]
        return [End(disconnected(reason))]

    def _subscribe(self, subscription: _Subscription) -> Send:
        resumes = subscription.accepted or subscription.track.wants_history
        return Send(Subscribe(subscription.identifier, self._request(subscription) if resumes else None))

    def _resume(self, subscription: _Subscription) -> list[Effect]:
        request = Send(History(subscription.identifier, self._request(subscription)))
        return [request, *self._confirm(subscription)]

    def _confirm(self, subscription: _Subscription) -> list[Effect]:
        if subscription.live:
            return []
        subscription.live = subscription.accepted = True
        effects: list[Effect] = [Confirmed(subscription.identifier)]
        if subscription.member is not None:
            effects.append(Send(Join(subscription.identifier, subscription.member)))
        return effects + [Send(Presence(subscription.identifier, after=after)) for after in subscription.queries]

    def _request(self, subscription: _Subscription) -> HistoryRequest:
        # A stream without messages so far has no position: request everything since the subscription began.
        return subscription.track.request(self._server_time(subscription.started) if subscription.accepted else None)

    def _server_time(self, moment: float) -> float:
        return moment - MAX_CLOCK_SKEW if self._skew is None else moment + self._skew

    def _history_rejected(self, subscription: _Subscription, rejection: HistoryRejected, now: float) -> list[Effect]:
        if not rejection.streams:
            subscription.started = now
        return self._yield(subscription, subscription.track.rejected(rejection))

    def _history_confirmed(self, subscription: _Subscription, tips: dict[str, Position]) -> list[Effect]:
        effects = self._yield(subscription, subscription.track.confirmed(tips))
        if subscription.track.wants_more:
            effects.append(Send(History(subscription.identifier, self._request(subscription))))
        return effects

    def _answer(self, subscription: _Subscription, presence: PresenceState | None) -> list[Effect]:
        del subscription.queries[:1]
        return [PresenceResult(subscription.identifier, presence)]

    def _yield(self, subscription: _Subscription, events: list[Event]) -> list[Effect]:
        return [Yield(subscription.identifier, events)] if events else []


def _present(member: Member) -> PresentMember:
    return PresentMember(member.id, _info(member.info))


def _info(text: bytes) -> object:
    """None if it cannot be decoded: the member is still listed."""
    try:
        return decode_payload(text) if text else None
    except ValueError:
        return None
