"""Declares calls that other processes make of a store.

`call` marks the method that carries a call out. Its name, and the types of its arguments and of its result, are those of the
call.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, TypeVar


class CallKind(Enum):
    """How a call is answered."""

    NOW = auto()  # in the same step
    READ = auto()  # of history: one at a time for a process, and only while it has read the last answer
    APPEND = auto()  # `NOW`, unless a journal is written first
    TASK = auto()  # in a task of its own


class Scope(Enum):
    """Which node of a ring serves a call."""

    ANY = auto()  # every node, for itself
    SHARD = auto()  # the holder of the shard of the first argument: a stream, a sid, or a list of items with one
    ALL = auto()  # every node, unless a shard with a session of these sids or this identity is moving


class Declaration(NamedTuple):
    """`held`: the answer waits while a process is behind with reading."""

    kind: CallKind
    scope: Scope
    held: bool


M = TypeVar("M", bound=Callable[..., object])


def call(kind: CallKind = CallKind.NOW, scope: Scope = Scope.ANY, held: bool = False) -> Callable[[M], M]:
    def declare(method: M) -> M:
        method.__dict__["declaration"] = Declaration(kind, scope, held)
        return method

    return declare
