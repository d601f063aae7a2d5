"""Server-sent events: encodes records as events, and parses the requests of SSE clients.

Line ends in names and payloads are escaped, so they cannot begin another event. Requests come from untrusted clients: invalid
ones raise BadRequest.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.json import encode
from msgspec.structs import replace

from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command, Subscribe
from ropewalk.model.errors import BadRequest, MalformedFrame, TooDeep
from ropewalk.model.history import Gap, GapReason, HistoryPart, HistoryRequest, Tip
from ropewalk.model.messages import Deliverable, Registered, expand_runs
from ropewalk.model.presence import PresencePage
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import NotGranted
from ropewalk.protocol import cable_json, transmissions
from ropewalk.protocol.cable_json import IdentifierReply
from ropewalk.protocol.codec import MessageCodec
from ropewalk.protocol.event_ids import LastEventId, id_line, subscription_key
from ropewalk.protocol.transmissions import TransmissionCodec

NEVER = 31_536_000_000
"""Milliseconds, a year: the `retry` that keeps an EventSource from reconnecting."""

_LINE_END = re.compile(rb"\r\n|\r|\n")


class SseCodec(TransmissionCodec):
    """Both codecs of an SSE connection.

    An event that advances positions has an id line for each of them. `EventIds` merges these into the one line that the client
    receives.

    Args:
        unwrap: send data messages as their bare message (GET).
        raw: omit every message with a type.
        keyed: id lines have the key of their subscription.
        positions: confirmations have the positions of their streams, and every gap is a rejection.
    """

    one_way = True
    shows_tips = True
    confirms_with_tips = False
    answers_repeats = False

    def __init__(self, unwrap: bool, raw: bool, keyed: bool = False, positions: bool = False) -> None:
        self.reports_positions = positions
        self._unwrap = unwrap
        self._raw = raw
        self._keyed = keyed
        self._head_start = len(self._key(""))
        self.native_pings = False
        self.meter = None

    @property
    def messages(self) -> MessageCodec:
        return self

    def decode(self, frame: bytes) -> Command:
        return cable_json.decode(frame)

    def head(self, identifier: str) -> bytes:
        return self._key(identifier) + cable_json.message_head(identifier)

    def message(self, head: bytes, message: Registered) -> bytes:
        key, head = head[: self._head_start], head[self._head_start :]
        position = id_line(message.stream, message.epoch, message.offset, key) if message.offset else b""
        if message.broadcast_type:
            return self._typed(message.broadcast_type, cable_json.message_json(head, message), position)
        data = _bare(message.payload) if self._unwrap else cable_json.message_json(head, message)
        return _event(b"", data, position)

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        return b"".join([self.message(head, each) for each in expand_runs(messages)])

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        return self._typed("welcome", cable_json.welcome_json(sid, restored_ids))

    def confirm_subscription(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return self._about("confirm_subscription", identifier, tips)

    def reject_subscription(self, identifier: str, why: NotGranted | None = None) -> bytes:
        return self._about("reject_subscription", identifier)

    def confirm_history(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return self._about("confirm_history", identifier, tips)

    def _about(self, kind: IdentifierReply, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        key = self._key(identifier)
        positions = b"".join(id_line(stream, tip.epoch, tip.offset, key) for stream, tip in tips)
        return self._typed(kind, cable_json.about_json(kind, identifier, tips if self.reports_positions else ()), positions)

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        key = self._key(identifier)
        positions = b"".join(id_line(gap.stream, gap.epoch, gap.tip, key) for gap in gaps)
        return self._typed("confirm_history", cable_json.confirm_trimmed_json(identifier, gaps), positions)

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        """The id is the end of the gap, so that a client that disconnects here does not resume before it. A client that is
        ahead continues at the tip."""
        key = self._key(identifier)
        # A gap without an epoch changes no position: the client resumes at its old one.
        ends = [(gap, gap.tip if gap.reason is GapReason.AHEAD else gap.oldest - 1) for gap in gaps if gap.epoch]
        positions = b"".join(id_line(gap.stream, gap.epoch, end, key) for gap, end in ends)
        return self._typed("reject_history", cable_json.reject_history_json(identifier, gaps), positions)

    def history_part(self, part: HistoryPart | NotGranted) -> Iterator[bytes]:
        return iter(())

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        return self._typed("presence", cable_json.presence_json(identifier, page, records))

    def fitting(self, page: PresencePage, room: int) -> PresencePage:
        return cable_json.fitting(page, room)

    def transmission(self, text: str) -> bytes:
        parsed = transmissions.read(text)
        if parsed.type:
            return self._typed(parsed.type, text.encode())
        return _event(b"", _bare(bytes(parsed.message)) if self._unwrap and parsed.message else text.encode(), b"")

    def ping(self, timestamp: int) -> bytes:
        return self._typed("ping", cable_json.ping_json(timestamp))

    def pong(self) -> bytes:
        return self._typed("pong", cable_json.pong_json())

    def disconnect(self, closing: Closing) -> bytes:
        if not closing.reason:
            return b""
        last = b"" if closing.reconnect else b"retry: %d\n" % NEVER
        return self._typed("disconnect", cable_json.disconnect_json(closing), last)

    def readable(self, data: bytes) -> str:
        return data.decode(errors="replace")

    def _typed(self, kind: str, data: bytes, last: bytes = b"") -> bytes:
        """The page does not receive an event without data, but the EventSource applies its id and retry time."""
        if self._raw:
            return last and last + b"\n"
        return _event(b"event: %b\n" % _LINE_END.sub(b" ", kind.encode()), data, last)

    def _key(self, identifier: str) -> bytes:
        return b"%b:" % subscription_key(identifier).encode() if self._keyed else b""


def _event(start: bytes, data: bytes, last: bytes) -> bytes:
    lines = b"".join(b"data: %b\n" % line for line in _LINE_END.split(data))
    return b"%b%b%b\n" % (start, lines, last)


def _bare(payload: bytes) -> bytes:
    """The text of a JSON string; any other JSON unchanged."""
    return msgspec.json.decode(payload, type=str).encode() if payload.startswith(b'"') else payload


_TRUE = ("1", "true", "t", "y")
_SINCE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")

# In order of precedence: the parameter, and the identifier for its value.
_SELECTORS: dict[str, Callable[[str], dict[str, str]]] = {
    "channel": lambda value: {"channel": value},
    "stream": lambda value: {"channel": "$pubsub", "stream_name": value},
    "signed_stream": lambda value: {"channel": "$pubsub", "signed_stream_name": value},
    "turbo_signed_stream_name": lambda value: {"channel": "Turbo::StreamsChannel", "signed_stream_name": value},
}


def wants_raw(params: Mapping[str, str]) -> bool:
    return params.get("raw", "").lower() in _TRUE


def subscription_of_query(params: Mapping[str, str], last: LastEventId) -> Subscribe:
    """The one subscription of a GET."""
    since = _since(params.get("history_since", ""))
    history = HistoryRequest(since) if since else None
    return _resumed(Subscribe(_identifier(params), history), last)


def subscriptions_of_body(body: bytes, last: LastEventId, limit: int) -> list[Subscribe]:
    """The subscriptions of a POST: one subscribe command a line; empty lines do not count."""
    lines = [line for line in body.split(b"\n") if line.strip()]
    if not 1 <= len(lines) <= limit:
        raise BadRequest(f"the body must hold 1 to {limit} subscribe commands, one a line; this one holds {len(lines)}")
    return [_resumed(_subscribe(line, number), last) for number, line in enumerate(lines, 1)]


def _subscribe(line: bytes, number: int) -> Subscribe:
    try:
        command = cable_json.decode(line)
    except MalformedFrame as error:
        if error.refusal is Refusal.NESTING:
            raise TooDeep(f"command {number}") from None
        raise BadRequest(f"command {number}: {error.reason}") from None
    if not isinstance(command, Subscribe) or not command.identifier:
        raise BadRequest(f"command {number}: not a subscribe command with an identifier")
    return command


def _resumed(subscribe: Subscribe, last: LastEventId) -> Subscribe:
    """Clients repeat their first request with the last event id, which counts unless the command has a later position of the
    same epoch."""
    positions = last.of(subscribe.identifier)
    if not positions:
        return subscribe
    asked = subscribe.history or HistoryRequest()
    later = {
        stream: position
        for stream, position in asked.streams.items()
        if (seen := positions.get(stream)) is None or (position.epoch == seen.epoch and position.offset > seen.offset)
    }
    return replace(subscribe, history=HistoryRequest(asked.since, {**positions, **later}))


def _identifier(params: Mapping[str, str]) -> str:
    if identifier := params.get("identifier"):
        return _text(identifier, "identifier")
    for name, build in _SELECTORS.items():
        if value := params.get(name):
            return encode(build(_text(value, name))).decode()
    raise BadRequest(f"one of these parameters is needed: identifier, {', '.join(_SELECTORS)}")


def _since(text: str) -> float | None:
    if not text:
        return None
    if not _SINCE.fullmatch(text):
        raise BadRequest("history_since must be UNIX seconds")
    return float(text)


def _text(value: str, name: str) -> str:
    """Bytes that are not UTF-8 are lone surrogates here, which cannot be encoded."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadRequest(f"{name} is not UTF-8")
    return value
