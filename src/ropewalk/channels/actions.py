"""Which methods of a channel its clients may call. Only those that say so; what cannot work is said at once."""

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, overload

from msgspec import Struct

_MARK = "_ropewalk_action"

ActionMethod = TypeVar("ActionMethod", bound=Callable[..., Any])


class ActionMark(Struct, frozen=True):
    """What the decorator leaves on a method. `name` is "" where the method's own name counts."""

    name: str
    takes_data: bool


class Callee(Struct, frozen=True):
    """The method behind an action."""

    method: str
    takes_data: bool


@overload
def action(method: ActionMethod, /) -> ActionMethod: ...
@overload
def action(name: str, /) -> Callable[[ActionMethod], ActionMethod]: ...
def action(given: ActionMethod | str, /) -> ActionMethod | Callable[[ActionMethod], ActionMethod]:
    """Let clients call a method of a channel: `channel.perform("speak", {text: "hi"})` calls `speak`.

        @action
        async def speak(self, data: dict[str, Any]) -> None: ...

        @action("mark-as-read")
        def mark_as_read(self) -> None: ...

    `data` is what the client sent, with the action's name under "action"; a method without that parameter does not get it.
    What the method returns is sent to the caller, as is that it failed.
    An action named `receive` gets what clients send without naming an action.
    """
    if not isinstance(given, str):
        return _marked(given, "")
    if not given:
        raise ValueError("an action's name cannot be empty")
    name = given
    return lambda method: _marked(method, name)


def actions_of(channel: type, reserved: Collection[str]) -> dict[str, Callee]:
    """Every action of a class and those it inherits, by name. `reserved`: methods that cannot be actions."""
    found: dict[str, Callee] = {}
    for method in dir(channel):
        mark = _mark_of(channel, method)
        if mark is None:
            continue
        if method in reserved:
            raise TypeError(f"{channel.__name__}.{method} cannot be an action: every channel has a method of that name")
        name = mark.name or method
        if name in found:
            taken = found[name].method
            raise ValueError(f"two methods of {channel.__name__} are the action {name!r}: {taken} and {method}")
        found[name] = Callee(method, mark.takes_data)
    return found


def _mark_of(channel: type, method: str) -> ActionMark | None:
    declared = [vars(base)[method] for base in channel.__mro__ if method in vars(base)]
    marks: list[ActionMark | None] = [getattr(each, _MARK, None) for each in declared]
    if marks and marks[0] is None and any(marks):
        raise TypeError(
            f"{channel.__name__}.{method} overrides an action: decorate it with @action too, or give it another name"
        )
    return marks[0] if marks else None


def _marked(method: ActionMethod, name: str) -> ActionMethod:
    if isinstance(method, staticmethod | classmethod | property) or not callable(method):
        raise TypeError(f"@action goes on a plain method, not on {method!r}")
    setattr(method, _MARK, ActionMark(name, _takes_data(method)))
    return method


def _takes_data(method: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(method).parameters.values())
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    starred = [each for each in parameters if each.kind is each.VAR_POSITIONAL]
    named = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
    if not places or any(each.default is each.empty for each in [*places[2:], *named]):
        raise TypeError(f"an action takes `self, data` or `self` alone: {method.__qualname__}{inspect.signature(method)}")
    return len(places) > 1 or bool(starred)
