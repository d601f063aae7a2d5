"""What an SSE client asks for: a query, a body of commands and the last event id become subscribe commands.

Everything here was written by a stranger: it is either understood or refused with BadRequest.
"""

import re
from collections.abc import Callable, Mapping

from msgspec.json import encode
from msgspec.structs import replace

from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import BadRequest, MalformedFrame, TooDeep
from ropewalk.model.history import HistoryRequest
from ropewalk.model.refusals import Refusal
from ropewalk.protocol import cable_json
from ropewalk.protocol.event_ids import LastEventId

_TRUE = ("1", "true", "t", "y")
_SINCE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")

# In the order in which they count: parameter, and the identifier that its value stands for.
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
    """Clients repeat their first request and add the last event id, so that counts, unless the command names a later position
    of the same epoch."""
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
    """Bytes that were no UTF-8 reach us as lone surrogates; such a text could never be written again."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadRequest(f"{name} is not UTF-8")
    return value
