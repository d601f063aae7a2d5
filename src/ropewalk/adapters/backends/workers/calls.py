"""Reads declared calls: the types of their arguments and results, for both ends of a connection."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Raw, Struct

from ropewalk.adapters.backends.memory.calls import CallKind, Declaration, Scope
from ropewalk.model.history import Gap, GapReason, Replay, split_at_gaps
from ropewalk.model.messages import Registered
from ropewalk.model.sessions import SessionWrite


class Call(NamedTuple):
    """A declared call.

    Attributes:
        held: its answer waits while a process is behind with reading.
        arguments: decodes them.
        result: decodes it.
        sent: converts the result to the one that is encoded; None if that is the same.
    """

    name: str
    kind: CallKind
    scope: Scope
    held: bool
    arguments: Callable[[Raw], Sequence[Any]]
    result: Callable[[Raw], Any]
    sent: Callable[[Any], object] | None


_DECLARED: dict[type, dict[str, Call]] = {}


def declared(calls: type) -> dict[str, Call]:
    """The calls of a class by name. A method that overrides a call is the same call."""
    if (known := _DECLARED.get(calls)) is not None:
        return known
    found = _DECLARED[calls] = {}
    for each in calls.__mro__:
        for name, method in vars(each).items():
            if (declaration := getattr(method, "declaration", None)) is not None:
                found.setdefault(name, _read(name, method, declaration))
    return found


def _read(name: str, method: Callable[..., object], declaration: Declaration) -> Call:
    types = get_type_hints(method)
    result = types.pop("return")
    arguments = msgspec.msgpack.Decoder(tuple[tuple(types.values())])  # type: ignore[misc]
    if result == Replay | Gap:
        pieces = msgspec.msgpack.Decoder(list[HistoryPiece])
        return Call(name, *declaration, arguments.decode, lambda body: join_pieces(pieces.decode(body)), split_pieces)
    return Call(name, *declaration, arguments.decode, msgspec.msgpack.Decoder(result).decode, None)


def names_of(argument: Any) -> Iterable[str]:
    """The streams or sids of a first argument."""
    if isinstance(argument, str):
        return (argument,)
    return [item.sid if isinstance(item, SessionWrite) else item.stream for item in argument]


# --- history ---------------------------------------------------------------------------------------------------------


class HistoryPiece(Struct, frozen=True, array_like=True):
    """A `Replay`, or a `Gap` if it has a reason. What follows a gap is the next piece."""

    stream: str
    epoch: str
    tip: int
    messages: tuple[Registered, ...] = ()
    reason: str = ""
    oldest: int = 0
    more: bool = False


def split_pieces(answer: Replay | Gap) -> list[HistoryPiece]:
    return [
        HistoryPiece(each.stream, each.epoch, each.tip, each.messages, each.reason.value, each.oldest)
        if isinstance(each, Gap)
        else HistoryPiece(each.stream, each.epoch, each.tip, each.messages, more=each.more)
        for each in split_at_gaps(answer)
    ]


def join_pieces(pieces: Sequence[HistoryPiece]) -> Replay | Gap:
    answer: Replay | Gap | None = None
    for piece in reversed(pieces):
        if piece.reason:
            reason = GapReason(piece.reason)
            answer = Gap(piece.stream, reason, piece.epoch, piece.oldest, piece.tip, piece.messages, answer)
        else:
            answer = Replay(piece.stream, piece.epoch, piece.tip, piece.messages, piece.more)
    assert answer is not None
    return answer
