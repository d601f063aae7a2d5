"""The codecs of Broky. Deliveries name their key and no subscription, so that one frame serves all subscribers of a stream.

A session's codec remembers the refs of what its client asked for: commands are handled one after another, and what is answered
is mostly the last one that was decoded.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ropewalk.model import commands
from ropewalk.model.application import Reply
from ropewalk.model.closing import Closing
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.history import Gap, GapReason, HistoryPart, HistoryRequest, Tip
from ropewalk.model.messages import Deliverable, MessageFields, Position, Registered, TransientRun
from ropewalk.model.presence import PresencePage
from ropewalk.model.sessions import NotGranted
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.credit import CreditMeter
from ropewalk.protocol.broky.frames import LARGEST_PAGE, USUAL_PAGE, Format, Match, Reason, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_of
from ropewalk.protocol.broky.runs import decode, encode_run
from ropewalk.protocol.broky.tables import encode, malformed
from ropewalk.protocol.broky.texts import payload_of
from ropewalk.protocol.broky.written import frames_in, with_ref
from ropewalk.protocol.stream_keys import name_of, shown_key

EVERYTHING = 1e-9
"""As `since` of a history request: all that is kept."""

MICROSECONDS = 1_000_000

MOST_TOGETHER = 256 * 1024
"""Bytes of a run that is made of several messages: their payloads, uids and times."""

FIELD_BYTES = KSUID_BYTES + 8
"""Of the uid and the time of one message."""

FORBIDDEN = NotGranted("forbidden", "this key may not be subscribed to")
NOT_PUBLIC = NotGranted("forbidden", "subscriptions by prefix are for servers whose streams are public")
LIVE_ONLY = NotGranted("malformed", "a subscription by prefix has no history: leave out epoch, offset and history")

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
    "too_many_connections": Reason.OVERFLOW,
}
_CODES = {
    1002: Reason.MALFORMED,
    1003: Reason.MALFORMED,
    1007: Reason.MALFORMED,
    1008: Reason.OVERFLOW,
    1009: Reason.TOO_BIG,
    1011: Reason.UNAVAILABLE,
}


class BrokyMessages:
    """The `MessageCodec`: one for all sessions."""

    def head(self, identifier: str) -> bytes:
        return b""

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        """In as few runs as they fit in. What is said in words of the cable only, such as who came and went, is not for these
        clients."""
        if len(messages) == 1 and isinstance(messages[0], TransientRun):
            return messages[0].frame
        written: list[bytes] = []
        run: list[bytes] = []  # payloads of a run that goes on
        told: list[MessageFields] = []  # of its messages, where they have any
        first = last = Registered("", b"", 0.0)
        format, room = Format.BYTES, 0
        for message in messages:
            if isinstance(message, TransientRun):
                if run:
                    written.append(_run(first, run, format, told))
                    run, told = [], []
                written.append(message.frame)
                continue
            if message.broadcast_type and not message.offset:
                continue
            payload, kind = payload_of(message.payload)
            if run and not (kind is format and len(payload) <= room and _follows(last, message)):
                written.append(_run(first, run, format, told))
                run, told = [], []
            if not run:
                first, format, room = message, kind, MOST_TOGETHER
            run.append(payload)
            room -= len(payload)
            last = message
            if message.fields is not None:
                told.append(message.fields)
                room -= FIELD_BYTES
        if run:
            written.append(_run(first, run, format, told))
        return written[0] if len(written) == 1 else b"".join(written)

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return b"".join(map(_gap, gaps))


def _follows(last: Registered, message: Registered) -> bool:
    """Whether it may be in the same run."""
    dense = message.offset == last.offset + 1 if last.offset else not message.offset
    return (
        dense
        and message.timestamp == last.timestamp
        and message.epoch == last.epoch
        and (message.fields is last.fields or _alike(message.fields, last.fields))
    )


def _alike(one: MessageFields | None, other: MessageFields | None) -> bool:
    """Whether both have a uid or none has, and so with the time. The partition key is one for all of a run."""
    if one is None or other is None:
        return False  # no record is without any field
    return (
        (not one.uid) is (not other.uid)
        and (not one.ts_producer) is (not other.ts_producer)
        and one.partition_key == other.partition_key
    )


def _run(first: Registered, payloads: list[bytes], format: Format, fields: list[MessageFields]) -> bytes:
    """`fields`: of none of its messages or of all, and then all have what the first one has."""
    at = int(first.timestamp * MICROSECONDS)
    count = len(payloads)
    sizes = tuple(map(len, payloads)) if count > 1 else ()
    key, epoch = shown_key(first.stream), first.epoch.encode()
    partition = uid = b""
    times: tuple[int, ...] = ()
    if fields:
        partition = shown_key(fields[0].partition_key)
        times = tuple([each.ts_producer for each in fields]) if fields[0].ts_producer else ()
        uid = b"".join([ksuid_of(each.uid) for each in fields]) if fields[0].uid else b""
    return encode_run(Run(0, count, first.offset, at, key, partition, sizes, times, uid, epoch, b"".join(payloads), format))


def _gap(gap: Gap) -> bytes:
    last = gap.tip if gap.reason is GapReason.AHEAD else gap.oldest - 1
    first = 1 if gap.reason is GapReason.EPOCH_CHANGED and gap.epoch else 0
    return encode(frames.Gap(shown_key(gap.stream), _GAPS.get(gap.reason, Reason.NONE), gap.epoch.encode(), first, last))


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
    answers_repeats = True

    def __init__(
        self, welcomed: frames.Welcome, signed: Callable[[str], str | None] | None, meter: CreditMeter | None = None
    ) -> None:
        self.meter = meter
        self._welcomed = welcomed
        self._signed = signed
        self._ping = self._history = 0
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
            case frames.History(ref, key, epoch, offset, limit):
                return self._read_history(ref, name_of(key), epoch, offset, limit)
            case frames.Credit():
                raise malformed("credit is granted only where the Hello asked for it")
            case frames.Subscribe(ref, prefix, Match.PREFIX, epoch, offset, history):
                return self._subscribe_prefix(ref, prefix, bool(epoch or offset or history))
            case frames.Unsubscribe(_, prefix, Match.PREFIX):
                return commands.Unsubscribe(_prefix_identifier(prefix))
            case body:
                raise malformed(f"{type(body).__name__} is not for a server, or not now")

    def _subscribe(self, ref: int, name: str, epoch: bytes, offset: int, history: bool) -> commands.Subscribe:
        identifier = self._identifier(name)
        self._refs[identifier] = ref
        if epoch:
            stream = name if self._signed is None else self._signed(name) or ""
            return commands.Subscribe(identifier, HistoryRequest(None, {stream: _position(epoch, offset)}))
        return commands.Subscribe(identifier, HistoryRequest(EVERYTHING) if history else None)

    def _subscribe_prefix(self, ref: int, prefix: bytes, past: bool) -> commands.SubscribePrefix:
        identifier = _prefix_identifier(prefix)
        self._refs[identifier] = ref
        refused = NOT_PUBLIC if self._signed is not None else LIVE_ONLY if past else None
        return commands.SubscribePrefix(identifier, name_of(prefix), prefix, refused)

    def _read_history(self, ref: int, name: str, epoch: bytes, offset: int, limit: int) -> commands.ReadHistory:
        if not ref:
            raise malformed("a History needs a ref, by which its runs are known")
        self._history = ref
        return commands.ReadHistory(self._identifier(name), _position(epoch, offset), min(limit or USUAL_PAGE, LARGEST_PAGE))

    def _identifier(self, name: str) -> str:
        field = "stream_name" if self._signed is None else "signed_stream_name"
        return msgspec.json.encode({"channel": "$pubsub", field: name}).decode()

    # --- answers ------------------------------------------------------------------------------------------------------

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        return encode(msgspec.structs.replace(self._welcomed, now=int(time.time() * MICROSECONDS)))

    def confirm_subscription(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        position = tips[0][1] if tips else Position("", 0)
        return encode(frames.Subscribed(self._refs.pop(identifier, 0), position.epoch.encode(), position.offset))

    def reject_subscription(self, identifier: str, why: NotGranted | None = None) -> bytes:
        return _refused(self._refs.pop(identifier, 0), why or FORBIDDEN)

    def confirm_history(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return b""

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return self.messages.reject_history(identifier, gaps)

    def history_part(self, part: HistoryPart | NotGranted) -> Iterator[bytes]:
        ref = self._history
        if isinstance(part, NotGranted):
            yield _refused(ref, part)
            return
        runs = self.messages.batch(b"", part.messages) if part.messages else b""
        for start, stop in frames_in(runs):
            yield with_ref(runs[start:stop], ref)
        reason = Reason.NONE if part.reason is None else _GAPS[part.reason]
        yield encode(frames.HistoryPage(ref, reason, part.epoch.encode(), part.oldest, part.last, part.tip))

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


def _prefix_identifier(prefix: bytes) -> str:
    """Not that of any stream."""
    return msgspec.json.encode({"channel": "$pubsub", "prefix": name_of(prefix)}).decode()


def _position(epoch: bytes, offset: int) -> Position:
    try:
        return Position(epoch.decode(), min(offset, 2**63 - 1))
    except UnicodeDecodeError:
        raise malformed("an epoch that is none") from None


def _refused(ref: int, why: NotGranted) -> bytes:
    return encode(frames.Refused(ref, 0, Reason[why.reason.upper()], why.text))


def pong(ref: int) -> bytes:
    return encode(frames.Pong(ref, int(time.time() * MICROSECONDS)))


def error(reason: Reason, text: str, reconnect: bool = False) -> bytes:
    return encode(frames.Error(reason, text, reconnect))


def error_of(mistake: MalformedFrame) -> bytes:
    return error(_CODES[mistake.code], mistake.reason)
