"""The two ends of the calls that methods declare: `declared` reads the types of their arguments and results for both ends of a
connection. `remote` makes the other end: an object whose methods send the calls of the same names.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar, get_type_hints

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
        sent: the result as it is encoded.
    """

    name: str
    kind: CallKind
    scope: Scope
    held: bool
    arguments: Callable[[Raw], Sequence[Any]]
    result: Callable[[Raw], Any]
    sent: Callable[[Any], object]


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
    return Call(name, *declaration, arguments.decode, msgspec.msgpack.Decoder(result).decode, _unchanged)


def _unchanged(result: object) -> object:
    return result


def names_of(argument: Any) -> Iterable[str]:
    """The streams or sids of a first argument."""
    if isinstance(argument, str):
        return (argument,)
    return [item.sid if isinstance(item, SessionWrite) else item.stream for item in argument]


# --- the other end ---------------------------------------------------------------------------------------------------


class Caller(Protocol):
    """Sends calls to a store."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Raises the error of the call, `Unavailable` if it was not sent, and `Unanswered`."""

    def note(self, method: str, *arguments: object) -> bool:
        """Without an answer. False if it was not sent."""


C = TypeVar("C")
T = TypeVar("T")


def remote(kind: Callable[[C], T], caller: C) -> T:
    """An object of the class `kind`, which derives from a port. Methods that it does not define itself are calls."""
    return _completed(kind)(caller)  # type: ignore[no-any-return]


@cache
def _completed(kind: Any) -> Any:
    members = {name: next(vars(each)[name] for each in kind.__mro__ if name in vars(each)) for name in dir(kind)}
    owners = {name: next(each for each in kind.__mro__ if name in vars(each)) for name in members}
    sent = {
        name: _sender(name, method)
        for name, method in members.items()
        if inspect.iscoroutinefunction(method) and getattr(owners[name], "_is_protocol", False)
    }
    return type(kind.__name__, (kind,), {**sent, "__doc__": kind.__doc__})


def _sender(name: str, method: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    _, *parameters = inspect.signature(method).parameters.values()
    defaults = [parameter.default for parameter in parameters]

    def send(self: Any, *arguments: object) -> Any:
        return self._caller.call(name, *arguments, *defaults[len(arguments) :])

    return send


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
