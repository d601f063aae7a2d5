"""A session over TCP as a pure state: what to do on each frame of the server and each wish of the program.

No I/O and no clock: the shell passes frames in, and carries out the effects that come back, in their order.
"""

from msgspec import Struct

from ropewalk.client.broky_pushes import PushWindow
from ropewalk.client.broky_reads import HistoryReads
from ropewalk.client.broky_track import AnyTrack
from ropewalk.client.effects import Confirmed, End, Redial, SubscriptionDenied
from ropewalk.client.errors import (
    CableError,
    Disconnected,
    KeyRefused,
    PublicationRefused,
    PublishError,
    PublishUnavailable,
    TokenExpired,
    Unauthorized,
)
from ropewalk.client.events import Event, KeptMessages
from ropewalk.model.closing import TOKEN_EXPIRED, UNAUTHORIZED
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Match, Reason

LONGEST_PAUSE = 300.0
"""Seconds that a server may ask us to stay away."""

_LAST_REF = 2**32 - 1


class WriteFrame(Struct, frozen=True):
    """Put a frame on the wire."""

    frame: frames.Body


class WriteBytes(Struct, frozen=True):
    """Put pushes on the wire, which are encoded already."""

    pushes: list[bytes]


class DeliverEvents(Struct, frozen=True, gc=False):
    """Hand events to the stream of this identifier."""

    identifier: str
    events: list[Event]


class PushRegistered(Struct, frozen=True):
    """A push is answered: its first message is at this position."""

    ref: int
    position: Position


class PushRefused(Struct, frozen=True):
    """A push is answered: nothing of it was registered."""

    ref: int
    error: PublishError


class Retry(Struct, frozen=True):
    """A push cannot be registered now. `failures`: how often that was so. After a pause call `again`, or give it up."""

    ref: int
    failures: int
    error: PublishError


class WasRead(Struct, frozen=True):
    """A read of history is answered."""

    ref: int
    answer: KeptMessages | CableError


class Ponged(Struct, frozen=True):
    """Everything that was pushed before this Ping is handled."""

    ref: int


BrokyEffect = (
    WriteFrame
    | WriteBytes
    | DeliverEvents
    | Confirmed
    | SubscriptionDenied
    | PushRegistered
    | PushRefused
    | Retry
    | WasRead
    | Ponged
    | Redial
    | End
)


class _Subscription:
    """`key` is what deliveries name, `asked` what the subscription names: a signed name, or the same. `live`: the server said
    yes on this connection."""

    def __init__(self, identifier: str, key: bytes, asked: bytes, track: AnyTrack) -> None:
        self.identifier = identifier
        self.key = key
        self.asked = asked
        self.track = track
        self.live = False


class BrokyState:
    """One session over all its connections. `refreshes`: the program can bring a new token."""

    def __init__(self, refreshes: bool = False) -> None:
        self.welcomed = False
        self.pushes = PushWindow()
        self.reads = HistoryReads()
        self._refreshes = refreshes
        self._known = False
        self._may_refresh = True
        self._ref = 0
        self._subscriptions: dict[str, _Subscription] = {}
        self._by_key: dict[bytes, _Subscription] = {}
        self._by_prefix: dict[bytes, _Subscription] = {}
        self._asking: dict[int, _Subscription] = {}

    def next_ref(self) -> int:
        """One number for all kinds of questions: a refusal names nothing else."""
        self._ref = self._ref % _LAST_REF + 1
        return self._ref

    # --- what the program wants ---------------------------------------------------------------------------------------

    def subscribe(self, identifier: str, key: bytes, asked: bytes, track: AnyTrack) -> list[BrokyEffect]:
        subscription = _Subscription(identifier, key, asked, track)
        self._subscriptions[identifier] = self._table(track)[key] = subscription
        # A key is not asked for again before it was answered: the answer could be to either.
        under_way = any(other.asked == asked for other in self._asking.values())
        return [self._subscribing(subscription)] if self.welcomed and not under_way else []

    def unsubscribe(self, identifier: str) -> list[BrokyEffect]:
        subscription = self._subscriptions.pop(identifier, None)
        if subscription is None:
            return []
        table = self._table(subscription.track)
        if table.get(subscription.key) is subscription:
            del table[subscription.key]
        return [WriteFrame(frames.Unsubscribe(0, subscription.asked, subscription.track.match))] if self.welcomed else []

    def overlaps(self, key: bytes, track: AnyTrack) -> bool:
        """Whether a message could be for this and for another subscription: it would come for each, and not say for which."""
        if track.match is Match.EXACT:
            return key in self._by_key or any(key.startswith(prefix) for prefix in self._by_prefix)
        return any(other.startswith(key) for other in self._by_key) or any(
            other.startswith(key) or key.startswith(other) for other in self._by_prefix
        )

    def _table(self, track: AnyTrack) -> dict[bytes, _Subscription]:
        return self._by_key if track.match is Match.EXACT else self._by_prefix

    def read(self, ref: int, stream: str, asked: bytes, after: Position | None, limit: int) -> list[BrokyEffect]:
        request = self.reads.add(ref, stream, asked, after, limit)
        return [WriteFrame(request)] if self.welcomed else []

    def push(self, ref: int, frame: bytes) -> list[BrokyEffect]:
        return self._write(self.pushes.add(ref, frame))

    def again(self, ref: int) -> list[BrokyEffect]:
        return self._write(self.pushes.again(ref))

    # --- what happens on the link -------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The connection is gone."""
        self.welcomed = False
        self._asking.clear()
        self.pushes.lost()
        self.reads.lost()
        for subscription in self._subscriptions.values():
            subscription.live = False

    def receive(self, body: frames.Body) -> list[BrokyEffect]:
        if isinstance(body, frames.Run) and body.ref:
            self.reads.arrived(body)
            return []
        if isinstance(body, frames.Run | frames.Gap):  # nearly all that comes
            subscription = self._by_key.get(body.key) or self._prefixed(body.key)
            return self._arrived(subscription, body) if subscription is not None and subscription.live else []
        match body:
            case frames.Pushed():
                return self._pushed(body)
            case frames.Subscribed() | frames.Refused():
                return self._answer(body)
            case frames.HistoryPage():
                kept = self.reads.ended(body)
                return [] if kept is None else [WasRead(body.ref, kept)]
            case frames.Welcome():
                return self._welcome(body)
            case frames.Error():
                return self._error(body)
            case frames.Pong(ref):
                return [Ponged(ref)]
            case _:
                return []

    def _prefixed(self, key: bytes) -> _Subscription | None:
        return next((subscription for prefix, subscription in self._by_prefix.items() if key.startswith(prefix)), None)

    def _arrived(self, subscription: _Subscription, body: frames.Run | frames.Gap) -> list[BrokyEffect]:
        track = subscription.track
        events = track.accept(body) if isinstance(body, frames.Run) else track.missing(body)
        return [DeliverEvents(subscription.identifier, events)] if events else []

    def _welcome(self, welcome: frames.Welcome) -> list[BrokyEffect]:
        self.welcomed = self._known = self._may_refresh = True
        asking: list[BrokyEffect] = [self._subscribing(subscription) for subscription in self._subscriptions.values()]
        asking += [WriteFrame(request) for request in self.reads.requests()]
        return asking + self._write(self.pushes.opened(welcome.max_unacked))

    def _subscribing(self, subscription: _Subscription) -> WriteFrame:
        ref = self.next_ref()
        self._asking[ref] = subscription
        return WriteFrame(subscription.track.request(ref, subscription.asked))

    def _answer(self, answer: frames.Subscribed | frames.Refused) -> list[BrokyEffect]:
        subscription = self._asking.pop(answer.ref, None)
        if subscription is None:
            return self._refused(answer) if isinstance(answer, frames.Refused) else []
        current = self._subscriptions.get(subscription.identifier)
        if current is not subscription:  # the program left, and may have come back
            return [] if current is None else [self._subscribing(current)]
        if isinstance(answer, frames.Refused):
            self.unsubscribe(subscription.identifier)
            return [SubscriptionDenied(subscription.identifier, answer.text)]
        events = subscription.track.began(answer)
        subscription.live = True
        told: list[BrokyEffect] = [DeliverEvents(subscription.identifier, events)] if events else []
        return [Confirmed(subscription.identifier), *told]

    def _pushed(self, pushed: frames.Pushed) -> list[BrokyEffect]:
        effects: list[BrokyEffect] = []
        at = 0
        for ref, offset in zip(pushed.refs, pushed.offsets, strict=False):
            end = at + 1 + (pushed.epochs[at] if at < len(pushed.epochs) else 0)
            effects.append(PushRegistered(ref, Position(pushed.epochs[at + 1 : end].decode("utf-8", "replace"), offset)))
            effects += self._write(self.pushes.answered(ref))
            at = end
        return effects

    def _refused(self, refused: frames.Refused) -> list[BrokyEffect]:
        unread = self.reads.refused(refused)
        if unread is not None:
            return [WasRead(refused.ref, unread)]
        error = refusal(refused.reason, refused.text, refused.index)
        if isinstance(error, PublishUnavailable):
            failures = self.pushes.rest(refused.ref)
            return [Retry(refused.ref, failures, error)] if failures else []
        return [PushRefused(refused.ref, error), *self._write(self.pushes.answered(refused.ref))]

    def _error(self, error: frames.Error) -> list[BrokyEffect]:
        if error.reconnect:
            return [Redial(after=min(error.retry_ms / 1000, LONGEST_PAUSE) if error.retry_ms else None)]
        if error.reason is not Reason.UNAUTHORIZED:
            return [End(Disconnected(error.text or error.reason.name.lower()))]
        if self._refreshes and self._may_refresh:
            self._may_refresh = False
            return [Redial(new_token=True)]
        # The wire has one word for both: a token that was good before is one that has expired.
        return [End(TokenExpired(TOKEN_EXPIRED.reason) if self._known else Unauthorized(UNAUTHORIZED.reason))]

    def _write(self, pushes: list[bytes]) -> list[BrokyEffect]:
        return [WriteBytes(pushes)] if pushes else []


def refusal(reason: Reason, text: str, index: int = 0) -> PublishError:
    """What a producer is told."""
    match reason:
        case Reason.FORBIDDEN | Reason.UNAUTHORIZED:
            return KeyRefused(text)
        case Reason.UNAVAILABLE:
            return PublishUnavailable(text)
        case _:
            return PublicationRefused(text, index)
