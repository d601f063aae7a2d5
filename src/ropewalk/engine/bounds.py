"""Limits on what an application may ask for. It is trusted, but its results often contain what a client sent.

Everything here raises ApplicationError before the result is applied.
"""

from collections.abc import Collection, Sequence

import msgspec
from msgspec import Raw

from ropewalk.model.application import CommandResult, ConnectResult, RestoreResult, State, merge_state
from ropewalk.model.errors import ApplicationError
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep
from ropewalk.ports import Publisher

MAX_STREAMS = 1000  # of one subscription
MAX_STATE_BYTES = 65536  # characters that a session keeps for its connection, and for each subscription

_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class BoundedPublisher:
    """The `Publisher` that an application gets."""

    def __init__(self, publisher: Publisher, limits: Limits) -> None:
        self._publisher = publisher
        self._limits = limits

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        check_publications(publications, self._limits)
        return await self._publisher.publish(publications)

    async def disconnect(self, request: RemoteDisconnect) -> int:
        return await self._publisher.disconnect(request)


def check_connect_result(connect_result: ConnectResult, limits: Limits) -> ConnectResult:
    _check_state({}, {"ids": connect_result.ids, **connect_result.state})
    _check_transmissions(connect_result.transmissions, limits)
    return connect_result


def check_command_result(
    answer: CommandResult, limits: Limits, state: State, own: State, streams: Collection[str] = ()
) -> CommandResult:
    """`state` and `own`: the current state of the connection and the subscription; `streams`: its current streams."""
    _check_streams(answer, streams)
    _check_names(answer.streams, limits)
    check_publications(answer.publications, limits)
    _check_transmissions(answer.transmissions, limits)
    _check_state(state, answer.state)
    _check_state(own, answer.own)
    if answer.presence_update is not None:
        longest = limits.max_member_info
        if answer.presence_update.member.max_field_bytes() > longest:
            raise ApplicationError(f"the id or info of a member is longer than {longest} bytes")
    if answer.reply is not None and len(answer.reply.result) > limits.max_payload:
        raise ApplicationError(f"the result of an action is larger than {limits.max_payload} bytes")
    return answer


def check_restore_result(restore_result: RestoreResult, limits: Limits, state: State, own: dict[str, State]) -> RestoreResult:
    check_publications(restore_result.publications, limits)
    _check_transmissions(restore_result.transmissions, limits)
    _check_state(state, restore_result.state)
    for identifier, changes in restore_result.own.items():
        _check_state(own.get(identifier, {}), changes)
    return restore_result


def check_publications(publications: Sequence[Publication], limits: Limits) -> None:
    _check_names([each.stream for each in publications], limits)
    if any(len(each.payload) > limits.max_payload for each in publications):
        raise ApplicationError(f"a publication is larger than {limits.max_payload} bytes")


def _check_streams(answer: CommandResult, before: Collection[str]) -> None:
    kept = () if answer.stop_all else set(before).difference(answer.stopped)
    if len(answer.streams) > MAX_STREAMS or len({*kept, *answer.streams}) > MAX_STREAMS:
        raise ApplicationError(f"more than {MAX_STREAMS} streams of one subscription")


def _check_transmissions(texts: Sequence[str], limits: Limits) -> None:
    """A transmission is an object around the message that it carries."""
    if any(len(text) > limits.max_payload for text in texts):
        raise ApplicationError(f"a transmission is larger than {limits.max_payload} bytes")
    if any(is_too_deep(text, MAX_DEPTH + 1) for text in texts):
        raise ApplicationError(f"a transmission is {TOO_DEEP}")
    if not all(map(_is_json_object, texts)):
        raise ApplicationError("a transmission is not a JSON object")


def _is_json_object(text: str) -> bool:
    try:
        _fields(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _check_names(streams: Sequence[str], limits: Limits) -> None:
    longest = limits.max_stream_name
    if not all(streams) or any(len(stream.encode("utf-8", "surrogatepass")) > longest for stream in streams):
        raise ApplicationError(f"the name of a stream is empty or longer than {longest} bytes")


def _check_state(kept: State, changes: State) -> None:
    if changes and sum(len(key) + len(value) for key, value in merge_state(kept, changes).items()) > MAX_STATE_BYTES:
        raise ApplicationError(f"more than {MAX_STATE_BYTES} characters of state")
