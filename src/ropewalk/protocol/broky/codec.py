"""The codecs of Broky. Deliveries name their key and no subscription, so that one frame serves all subscribers of a stream.

A session's codec remembers the refs of what its client asked for: commands are handled one after another, and what is answered
is mostly the last one that was decoded.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from ropewalk.model import commands
from ropewalk.model.application import Reply
from ropewalk.model.closing import Closing
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.history import Gap, GapReason, HistoryRequest, Tip
from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import PresencePage
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Match, Reason, Run
from ropewalk.protocol.broky.runs import decode, encode_run
from ropewalk.protocol.broky.tables import encode, malformed
from ropewalk.protocol.broky.texts import key_of, name_of, payload_of

EVERYTHING = 1e-9
"""As `since` of a history request: all that is kept."""

MICROSECONDS = 1_000_000

_GAPS = {
    GapReason.TRIMMED: Reason.TRIMMED,
    GapReason.EPOCH_CHANGED: Reason.EPOCH_CHANGED,
    GapReason.AHEAD: Reason.AHEAD,
    GapReason.DROPPED: Reason.SLOW,
}

_CLOSINGS = {
    "unauthorized": Reason.UNAUTHORIZED,
    "token_expired": Reason.UNAUTHORIZED,
    "server_restart": Reason.DRAINING,
    "too_slow": Reason.SLOW,
}
_CODES = {
    1002: Reason.MALFORMED,
    1003: Reason.MALFORMED,
    1007: Reason.MALFORMED,
    1008: Reason.OVERFLOW,
    1009: Reason.TOO_BIG,
    1011: Reason.UNAVAILABLE,
}


@lru_cache(maxsize=1024)
def _key(stream: str) -> bytes:
    """An application may sign a name that no key has: it is shown as it is."""
    try:
        return key_of(stream)
    except ValueError:
        return stream.encode("utf-8", "replace")


class BrokyMessages:
    """The `MessageCodec`: one for all sessions."""

    def head(self, identifier: str) -> bytes:
        return b""

    def message(self, head: bytes, message: Registered) -> bytes:
        """What is said in words of the cable only, such as who came and went, is not for these clients."""
        if message.broadcast_type and not message.offset:
            return b""
        payload, format = payload_of(message.payload)
        at, key, epoch = int(message.timestamp * MICROSECONDS), _key(message.stream), message.epoch.encode()
        return encode_run(Run(0, 1, message.offset, at, key, b"", (), (), b"", epoch, payload, format))

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return b"".join(map(_gap, gaps))


def _gap(gap: Gap) -> bytes:
    last = gap.tip if gap.reason is GapReason.AHEAD else gap.oldest - 1
    first = 1 if gap.reason is GapReason.EPOCH_CHANGED else 0
    return encode(frames.Gap(_key(gap.stream), _GAPS.get(gap.reason, Reason.NONE), gap.epoch.encode(), first, last))


MESSAGES = BrokyMessages()


class BrokyCodec:
    """The `SessionCodec` of one connection. `welcomed`: what its client is welcomed with. `signed`: the keys of subscriptions
    are signed names, and this tells the name in one."""

    messages = MESSAGES
    one_way = True
    native_pings = False
    tells_positions = True
    shows_tips = True
    confirms_with_tips = True

    def __init__(self, welcomed: frames.Welcome, signed: Callable[[str], str | None] | None) -> None:
        self._welcomed = welcomed
        self._signed = signed
        self._ping = 0
        self._refs: dict[str, int] = {}

    def decode(self, frame: bytes) -> commands.Command:
        match decode(frame):
            case frames.Subscribe(ref, key, Match.EXACT, epoch, offset, history):
                return self._subscribe(ref, name_of(key), epoch, offset, history)
            case frames.Unsubscribe(_, key, Match.EXACT):
                return commands.Unsubscribe(self._identifier(name_of(key)))
            case frames.Ping(ref):
                self._ping = ref
                return commands.Ping()
            case frames.Subscribe() | frames.Unsubscribe():
                raise malformed("subscriptions are to one key exactly")
            case body:
                raise malformed(f"{type(body).__name__} is not for a server, or not now")

    def _subscribe(self, ref: int, name: str, epoch: bytes, offset: int, history: bool) -> commands.Subscribe:
        identifier = self._identifier(name)
        self._refs[identifier] = ref
        if epoch:
            try:
                position = Position(epoch.decode(), min(offset, 2**63 - 1))
            except UnicodeDecodeError:
                raise malformed("an epoch that is none") from None
            stream = name if self._signed is None else self._signed(name) or ""
            return commands.Subscribe(identifier, HistoryRequest(None, {stream: position}))
        return commands.Subscribe(identifier, HistoryRequest(EVERYTHING) if history else None)

    def _identifier(self, name: str) -> str:
        field = "stream_name" if self._signed is None else "signed_stream_name"
        return msgspec.json.encode({"channel": "$pubsub", field: name}).decode()

    # --- answers ------------------------------------------------------------------------------------------------------

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        return encode(msgspec.structs.replace(self._welcomed, now=int(time.time() * MICROSECONDS)))

    def confirm_subscription(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        position = tips[0][1] if tips else Position("", 0)
        return encode(frames.Subscribed(self._refs.pop(identifier, 0), position.epoch.encode(), position.offset))

    def reject_subscription(self, identifier: str) -> bytes:
        ref = self._refs.pop(identifier, 0)
        return encode(frames.Refused(ref, 0, Reason.FORBIDDEN, "this key may not be subscribed to"))

    def confirm_history(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return b""

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return self.messages.reject_history(identifier, gaps)

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        return b""

    def fitting(self, page: PresencePage, room: int) -> PresencePage:
        return page

    def ping(self, timestamp: int) -> bytes:
        return b""

    def pong(self) -> bytes:
        return pong(self._ping)

    def disconnect(self, closing: Closing) -> bytes:
        reason = _CLOSINGS.get(closing.reason) or _CODES.get(closing.code, Reason.NONE)
        return encode(frames.Error(reason, closing.text, closing.reconnect, closing.reconnect_in or 0))

    def readable(self, data: bytes) -> str:
        return f"{len(data)} bytes"

    # --- an application lets a client in, and has no other word with it ---------------------------------------------------

    def transmission(self, text: str) -> bytes:
        return b""

    def accepted(self, sid: str, texts: Sequence[str]) -> list[bytes]:
        return [self.welcome(sid, None)]

    def refused(self, texts: Sequence[str]) -> list[bytes]:
        return []

    def around_confirmation(self, identifier: str, texts: Sequence[str]) -> tuple[list[bytes], list[bytes]]:
        return [], []

    def rejected(self, identifier: str, texts: Sequence[str]) -> list[bytes]:
        return [self.reject_subscription(identifier)]

    def reply(self, identifier: str, reply: Reply) -> bytes:
        return b""


def pong(ref: int) -> bytes:
    return encode(frames.Pong(ref, int(time.time() * MICROSECONDS)))


def error(reason: Reason, text: str, reconnect: bool = False) -> bytes:
    return encode(frames.Error(reason, text, reconnect))


def error_of(mistake: MalformedFrame) -> bytes:
    return error(_CODES[mistake.code], mistake.reason)
