"""The codecs of Broky. Deliveries name their key but no subscription, so one frame serves all subscribers of a stream.

A session's codec stores the refs of the client's commands until they are answered. Commands are handled one after another.
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
from ropewalk.protocol.broky.credit import CreditMeter, frames_in, with_ref
from ropewalk.protocol.broky.frames import DEFAULT_PAGE, MAX_PAGE, Format, Match, Reason, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, parse_ksuid
from ropewalk.protocol.broky.runs import decode, encode_run
from ropewalk.protocol.broky.tables import encode, malformed
from ropewalk.protocol.broky.texts import decode_text
from ropewalk.protocol.stream_keys import decode_key, shown_key

EVERYTHING = 1e-9
"""The `since` of a request for the whole history."""

MICROSECONDS = 1_000_000

MAX_RUN_BYTES = 256 * 1024
"""Maximum size of a run of several messages: their payloads, uids and times."""

FIELD_BYTES = KSUID_BYTES + 8
"""Size of the uid and the time of a message."""

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
        """Encode the messages in as few runs as possible. Messages that only the cable has, such as presence events, are
        dropped."""
        if len(messages) == 1 and isinstance(messages[0], TransientRun):
            return messages[0].frame
        written: list[bytes] = []
        run: list[bytes] = []  # payloads of the unfinished run
        fields: list[MessageFields] = []  # of its messages, if they have any
        first = last = Registered("", b"", 0.0)
        format, room = Format.BYTES, 0
        for message in messages:
            if isinstance(message, TransientRun):
                if run:
                    written.append(_run(first, run, format, fields))
                    run, fields = [], []
                written.append(message.frame)
                continue
            if message.broadcast_type and not message.offset:
                continue
            payload, kind = decode_text(message.payload)
            if run and not (kind is format and len(payload) <= room and _follows(last, message)):
                written.append(_run(first, run, format, fields))
                run, fields = [], []
            if not run:
                first, format, room = message, kind, MAX_RUN_BYTES
            run.append(payload)
            room -= len(payload)
            last = message
            if message.fields is not None:
                fields.append(message.fields)
                room -= FIELD_BYTES
        if run:
            written.append(_run(first, run, format, fields))
        return written[0] if len(written) == 1 else b"".join(written)

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return b"".join(map(_gap, gaps))


def _follows(last: Registered, message: Registered) -> bool:
    """Whether both can be in one run."""
    dense = message.offset == last.offset + 1 if last.offset else not message.offset
    return (
        dense
        and message.timestamp == last.timestamp
        and message.epoch == last.epoch
        and (message.fields is last.fields or _alike(message.fields, last.fields))
    )


def _alike(one: MessageFields | None, other: MessageFields | None) -> bool:
    """Whether both or neither have a uid, and a time. All messages of a run share one partition key."""
    if one is None or other is None:
        return False  # a record has at least one field
    return (
        (not one.uid) is (not other.uid)
        and (not one.ts_producer) is (not other.ts_producer)
        and one.partition_key == other.partition_key
    )


def _run(first: Registered, payloads: list[bytes], format: Format, fields: list[MessageFields]) -> bytes:
    """`fields`: of all messages, or empty. All have the same fields as the first one."""
    at = int(first.timestamp * MICROSECONDS)
    count = len(payloads)
    sizes = tuple(map(len, payloads)) if count > 1 else ()
    key, epoch = shown_key(first.stream), first.epoch.encode()
    partition = uid = b""
    times: tuple[int, ...] = ()
    if fields:
        partition = shown_key(fields[0].partition_key)
        times = tuple([each.ts_producer for each in fields]) if fields[0].ts_producer else ()
        uid = b"".join([parse_ksuid(each.uid) for each in fields]) if fields[0].uid else b""
    return encode_run(Run(0, count, first.offset, at, key, partition, sizes, times, uid, epoch, b"".join(payloads), format))


def _gap(gap: Gap) -> bytes:
    last = gap.tip if gap.reason is GapReason.AHEAD else gap.oldest - 1
    first = 1 if gap.reason is GapReason.EPOCH_CHANGED and gap.epoch else 0
    return encode(frames.Gap(shown_key(gap.stream), _GAPS.get(gap.reason, Reason.NONE), gap.epoch.encode(), first, last))


MESSAGES = BrokyMessages()


class BrokyCodec:
    """The `SessionCodec` of one connection.

    Args:
        welcomed: the Welcome for the client.
        signed: returns the stream name in a signed name; None if subscriptions need no signature.
        meter: counts the credit of the client, if it uses credit.
    """

    messages = MESSAGES
    one_way = True
    native_pings = False
    reports_positions = True
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
                return self._subscribe(ref, decode_key(key), epoch, offset, history)
            case frames.Unsubscribe(_, key, Match.EXACT):
                return commands.Unsubscribe(self._identifier(decode_key(key)))
            case frames.Ping(ref):
                self._ping = ref
                return commands.Ping()
            case frames.History(ref, key, epoch, offset, limit):
                return self._read_history(ref, decode_key(key), epoch, offset, limit)
            case frames.Credit():
                raise malformed("Credit without credit in the Hello")
            case frames.Subscribe(ref, prefix, Match.PREFIX, epoch, offset, history):
                return self._subscribe_prefix(ref, prefix, bool(epoch or offset or history))
            case frames.Unsubscribe(_, prefix, Match.PREFIX):
                return commands.Unsubscribe(_prefix_identifier(prefix))
            case body:
                raise malformed(f"unexpected {type(body).__name__}")

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
        return commands.SubscribePrefix(identifier, decode_key(prefix), prefix, refused)

    def _read_history(self, ref: int, name: str, epoch: bytes, offset: int, limit: int) -> commands.ReadHistory:
        if not ref:
            raise malformed("a History needs a ref, which its runs repeat")
        self._history = ref
        return commands.ReadHistory(self._identifier(name), _position(epoch, offset), min(limit or DEFAULT_PAGE, MAX_PAGE))

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

    # --- an application can accept a client of Broky, but not transmit to it ------------------------------------------------

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
    """Different from the identifier of any stream."""
    return msgspec.json.encode({"channel": "$pubsub", "prefix": decode_key(prefix)}).decode()


def _position(epoch: bytes, offset: int) -> Position:
    try:
        return Position(epoch.decode(), min(offset, 2**63 - 1))
    except UnicodeDecodeError:
        raise malformed("the epoch is not UTF-8") from None


def _refused(ref: int, why: NotGranted) -> bytes:
    return encode(frames.Refused(ref, 0, Reason[why.reason.upper()], why.text))


def pong(ref: int) -> bytes:
    return encode(frames.Pong(ref, int(time.time() * MICROSECONDS)))


def error(reason: Reason, text: str, reconnect: bool = False) -> bytes:
    return encode(frames.Error(reason, text, reconnect))


def encode_error(mistake: MalformedFrame) -> bytes:
    return error(_CODES[mistake.code], mistake.reason)
