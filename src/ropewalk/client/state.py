"""The client's session as a pure state: what to do on each message of the server and each wish of the program.

No I/O, no clock of its own: the shell passes messages and the time in, and carries out the effects that come back.
"""

from ropewalk.client.effects import Confirmed, Effect, End, PresenceResult, Redial, Send, SubscriptionDenied, Yield
from ropewalk.client.errors import disconnected
from ropewalk.client.events import Gap, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.payloads import decode_payload
from ropewalk.client.track import Track
from ropewalk.model.closing import TOKEN_EXPIRED
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

LONGEST_PAUSE = 300.0
"""Seconds that a server may ask us to stay away."""

CLOCK_DOUBT = 5.0
"""Seconds by which the server's clock may differ from ours before its first ping has told. Asking for too much is harmless."""


class _Subscription:
    """`accepted`: the server said yes once; `live`: it did so on this connection. `queries`: after which id each asks."""

    def __init__(self, identifier: str, track: Track, wants_history: bool, started: float) -> None:
        self.identifier = identifier
        self.track = track
        self.wants_history = wants_history
        self.started = started
        self.accepted = False
        self.live = False
        self.member: Member | None = None
        self.queries: list[str] = []


class ClientState:
    """One session over all its connections. `sid` is what the next connection offers for a restore."""

    def __init__(self) -> None:
        self.sid = ""
        self.welcomed = False
        self._subscriptions: dict[str, _Subscription] = {}
        self._skew: float | None = None
        self._may_refresh = True

    # --- what the program wants ---

    def subscribe(
        self, identifier: str, now: float, since: float | None = None, positions: dict[str, Position] | None = None
    ) -> list[Effect]:
        wants_history = since is not None or bool(positions)
        subscription = _Subscription(identifier, Track(since, positions), wants_history, now)
        self._subscriptions[identifier] = subscription
        return [self._subscribing(subscription)] if self.welcomed else []

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

    # --- what happens on the link ---

    def lost(self) -> None:
        """The connection is gone."""
        self.welcomed = False
        for subscription in self._subscriptions.values():
            subscription.live = False
            subscription.track.lost()

    def receive(self, message: ServerMessage, now: float) -> list[Effect]:
        match message:
            case Welcome():
                return self._welcome(message)
            case Goodbye(reason, reconnect, reconnect_in):
                return self._goodbye(reason, reconnect, reconnect_in)
            case ServerPing(timestamp):
                # The ping was under way for a while, so this never puts the server's clock ahead of the truth.
                self._skew = timestamp - now if timestamp else self._skew
                return [Send(Pong())]
            case ServerPong() | UnknownMessage():
                return []
            case _:
                subscription = self._subscriptions.get(message.identifier)
                return self._about(subscription, message, now) if subscription else []

    def _about(
        self,
        subscription: _Subscription,
        message: Data
        | SubscriptionConfirmed
        | SubscriptionRefused
        | HistoryConfirmed
        | HistoryRejected
        | PresenceChanged
        | PresenceListed
        | PresenceFailed,
        now: float,
    ) -> list[Effect]:
        match message:
            case Data():
                return self._data(subscription, message)
            case SubscriptionConfirmed(_, tips):
                subscription.track.began(tips)
                return self._confirm(subscription)
            case SubscriptionRefused(identifier):
                del self._subscriptions[identifier]
                return [SubscriptionDenied(identifier)]
            case HistoryConfirmed(_, tips):
                return self._history_confirmed(subscription, tips)
            case HistoryRejected():
                return self._history_rejected(subscription, message, now)
            case PresenceChanged(identifier, joined, member):
                return [Yield(identifier, PresenceChange(joined, _present(member)))]
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
                effects += self._resuming(subscription)
            else:
                effects.append(self._subscribing(subscription))
        return effects

    def _goodbye(self, reason: str, reconnect: bool, reconnect_in: int | None) -> list[Effect]:
        if reconnect:
            return [Redial(after=None if reconnect_in is None else min(max(reconnect_in, 0) / 1000, LONGEST_PAUSE))]
        if reason == TOKEN_EXPIRED.reason and self._may_refresh:
            self._may_refresh = False
            self.sid = ""  # the old session keeps the old token's end, and would be refused again
            return [Redial(new_token=True)]
        return [End(disconnected(reason))]

    def _subscribing(self, subscription: _Subscription) -> Send:
        resumes = subscription.accepted or subscription.wants_history
        return Send(Subscribe(subscription.identifier, self._request(subscription) if resumes else None))

    def _resuming(self, subscription: _Subscription) -> list[Effect]:
        ask = Send(History(subscription.identifier, self._request(subscription)))
        return [ask, *self._confirm(subscription)]

    def _confirm(self, subscription: _Subscription) -> list[Effect]:
        if subscription.live:
            return []
        subscription.live = subscription.accepted = True
        effects: list[Effect] = [Confirmed(subscription.identifier)]
        if subscription.member is not None:
            effects.append(Send(Join(subscription.identifier, subscription.member)))
        return effects + [Send(Presence(subscription.identifier, after=after)) for after in subscription.queries]

    def _request(self, subscription: _Subscription) -> HistoryRequest:
        # A stream that was silent so far has no position: what came since the subscription began is what was missed.
        return subscription.track.request(self._server_time(subscription.started) if subscription.accepted else None)

    def _data(self, subscription: _Subscription, data: Data) -> list[Effect]:
        if data.offset and subscription.track.asked and not subscription.live:
            # It belongs to an earlier subscription of the same name, or overtook the confirmation: the history brings it.
            return []
        return self._yield(subscription, subscription.track.accept(data))

    def _server_time(self, moment: float) -> float:
        return moment - CLOCK_DOUBT if self._skew is None else moment + self._skew

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

    def _yield(self, subscription: _Subscription, events: list[Message | Gap]) -> list[Effect]:
        return [Yield(subscription.identifier, event) for event in events]


def _present(member: Member) -> PresentMember:
    return PresentMember(member.id, _info(member.info))


def _info(text: bytes) -> object:
    """None for what cannot be read: that a member is there counts more than what it says of itself."""
    try:
        return decode_payload(text) if text else None
    except ValueError:
        return None
