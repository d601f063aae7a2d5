"""Broky at the client: requests of programs to targets, commands to frames, frames to replies."""

from collections.abc import Iterable, Sequence
from typing import cast

from ropewalk.client.calls import GAP_REASONS
from ropewalk.client.codec import Target
from ropewalk.client.errors import AlreadySubscribed, NotSupported
from ropewalk.client.identifiers import parse_key, parse_name, parse_signed
from ropewalk.client.messages import DeliveredMessages, SubscriptionSuperseded
from ropewalk.client.state import ServerReply
from ropewalk.client.track import KeyTrack, PrefixTrack
from ropewalk.model.closing import TOKEN_EXPIRED, UNAUTHORIZED
from ropewalk.model.commands import Subscribe, Unsubscribe
from ropewalk.model.errors import UserMistake
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Body, Match, Reason, Run
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.client_commands import ClientCommand
from ropewalk.protocol.server_messages import Goodbye, HistoryRejected, StreamGap, SubscriptionConfirmed, SubscriptionRefused
from ropewalk.protocol.server_messages import Welcome as SessionWelcome
from ropewalk.protocol.stream_keys import decode_key

UNKNOWN_EPOCH = b"?"
"""Requested if a position has an offset and no epoch, which frames cannot express. No stream has this epoch, so the server
reports a gap and where the stream is."""


class BrokyClientCodec:
    """Deliveries contain keys: they belong to the confirmed subscription with this key or a prefix of it."""

    channels = False
    client_pings = True
    one_token_error = True

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}
        self._requested: dict[int, Target] = {}  # by ref, until they are answered
        self._by_key: dict[bytes, Target] = {}  # confirmed on this connection
        self._by_prefix: dict[bytes, Target] = {}
        self._splitter = FrameSplitter()
        self._accepted = False

    # --- targets ---

    def public(
        self, stream: str | bytes, since: float | None, position: Position | None, presence_events: bool, prefix: bool
    ) -> Target:
        if presence_events:
            raise NotSupported("presence")
        name, key = parse_name(stream), parse_key(stream)
        if not prefix:
            return Target(name, KeyTrack(name, position, since), False, key, key, stream=name)
        if since is not None or position is not None:
            raise UserMistake("a subscription by prefix has no history: omit since and position")
        return Target(f"{name}…", PrefixTrack(name), False, key, key, Match.PREFIX)

    def signed(self, signed_name: str, since: float | None, position: Position | None, presence_events: bool) -> Target:
        if presence_events:
            raise NotSupported("presence")
        name = parse_signed(signed_name)
        if name is None:
            raise UserMistake("this signed name contains no name")
        return Target(signed_name, KeyTrack(name, position, since), False, parse_key(name), signed_name.encode(), stream=name)

    def identifier(
        self, identifier: str, since: float | None, positions: dict[str, Position] | None, presence_events: bool
    ) -> Target:
        raise NotSupported("a channel")

    def add(self, target: Target) -> None:
        if any(_overlap(target, other) for other in self._targets.values()):
            raise AlreadySubscribed(f"{target.identifier} overlaps with another subscription: use another client for it")
        self._targets[target.identifier] = target

    def remove(self, identifier: str) -> None:
        target = self._targets.pop(identifier, None)
        if target is not None:
            self._confirmed(target.match).pop(target.key, None)

    def _confirmed(self, match: Match) -> dict[bytes, Target]:
        return self._by_key if match is Match.EXACT else self._by_prefix

    # --- commands ---

    def open(self, token: str) -> bytes:
        self._splitter = FrameSplitter()
        self._requested.clear()
        self._by_key.clear()
        self._by_prefix.clear()
        return encode(frames.Hello(token=token.encode()))

    def encode(self, command: ClientCommand | Body, ref: int) -> bytes:
        match command:
            case Subscribe(identifier, history):
                return self._subscribe(self._targets[identifier], history or HistoryRequest(), ref)
            case Unsubscribe(identifier):
                target = self._targets[identifier]
                return encode(frames.Unsubscribe(0, target.requested, target.match))
            case _:
                return encode(cast(Body, command))

    def _subscribe(self, target: Target, history: HistoryRequest, ref: int) -> bytes:
        # Not before a cancelled subscription to the same name is answered: the answer could belong to either.
        if any(other.requested == target.requested for other in self._requested.values()):
            return b""
        self._requested[ref] = target
        position = next(iter(history.streams.values()), None)
        epoch, offset = (position.epoch.encode(), position.offset) if position else (b"", 0)
        return encode(
            frames.Subscribe(
                ref,
                target.requested,
                target.match,
                epoch or (UNKNOWN_EPOCH if offset else b""),
                offset,
                history=position is not None and not epoch and not offset,
            )
        )

    # --- replies ---

    def decode(self, data: bytes) -> Iterable[ServerReply]:
        for frame in self._splitter.feed(data):
            body = decode(frame)
            if isinstance(body, Run) and not body.ref:  # nearly all frames
                target = self._by_key.get(body.key) or self._find_prefix(body.key)
                if target is not None:
                    stream = target.stream or decode_key(body.key)
                    yield DeliveredMessages(target.identifier, stream, body.epoch.decode(), body.offset, body.count, body)
            else:
                yield from self._translate(body)

    def _translate(self, body: Body) -> Sequence[ServerReply]:
        match body:
            case frames.Subscribed(ref) | frames.Refused(ref) if ref in self._requested:
                return self._answered(self._requested.pop(ref), body)
            case frames.Gap():
                return self._gap(body)
            case frames.Welcome():
                self._accepted = True
                return SessionWelcome(), body
            case frames.Error():
                return body, Goodbye(self._end_reason(body), body.reconnect, body.retry_ms or None)
            case Run() | frames.Pushed() | frames.Refused() | frames.HistoryPage() | frames.Pong():
                return (body,)
            case _:
                return ()

    def _answered(self, target: Target, answer: frames.Subscribed | frames.Refused) -> Sequence[ServerReply]:
        if self._targets.get(target.identifier) is not target:  # cancelled meanwhile
            return [
                SubscriptionSuperseded(each.identifier) for each in self._targets.values() if each.requested == target.requested
            ]
        if isinstance(answer, frames.Refused):
            self.remove(target.identifier)
            return (SubscriptionRefused(target.identifier, answer.text),)
        self._confirmed(target.match)[target.key] = target
        tip = Position(answer.epoch.decode(), answer.offset)
        return (SubscriptionConfirmed(target.identifier, {target.stream: tip}),)

    def _gap(self, gap: frames.Gap) -> Sequence[ServerReply]:
        target = self._by_key.get(gap.key) or self._find_prefix(gap.key)
        if target is None:
            return ()
        reason = GAP_REASONS.get(gap.reason, "")
        missing = StreamGap(reason, gap.epoch.decode(), gap.last + 1)
        return (HistoryRejected(target.identifier, reason, {target.stream: missing}),)

    def _find_prefix(self, key: bytes) -> Target | None:
        return next((target for prefix, target in self._by_prefix.items() if key.startswith(prefix)), None)

    def _end_reason(self, error: frames.Error) -> str:
        if error.reason is not Reason.UNAUTHORIZED:
            return error.text or error.reason.name.lower()
        # A token that was accepted before has expired.
        return TOKEN_EXPIRED.reason if self._accepted else UNAUTHORIZED.reason


def _overlap(one: Target, other: Target) -> bool:
    """Whether a delivery could belong to both: it does not name its subscription."""
    return one.key == other.key or _covers(one, other) or _covers(other, one)


def _covers(prefix: Target, target: Target) -> bool:
    return prefix.match is Match.PREFIX and target.key.startswith(prefix.key)
