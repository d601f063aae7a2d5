"""The calls that the obedient application received, as lines of JSON in a file that other processes can read."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

States = dict[str, dict[str, str]]

PARTS = {"disconnect": "unsubscribe", "restored": "restored"}
"""The kinds of events that channels receive one by one and other applications in one call."""


class ApplicationEvent(Struct, frozen=True, omit_defaults=True):
    """`kind`: connect (let in), refused, subscribe, message, unsubscribe, restored, disconnect.

    `state` is that of the connection and `own` that of the subscription, as they came, without the server's own keys.
    `subscriptions` is `own` by identifier, where an event concerns all of them.
    """

    kind: str
    sid: str
    ids: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    state: dict[str, str] = {}
    identifier: str = ""
    own: dict[str, str] = {}
    data: str = ""
    former: str = ""
    subscriptions: States = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ApplicationEvent).decode


def note(path: Path, event: ApplicationEvent) -> None:
    with path.open("ab") as log:
        log.write(_encode(event) + b"\n")


def read(path: Path) -> list[ApplicationEvent]:
    """Skips an incomplete last line."""
    if not path.exists():
        return []
    return [_decode(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def folded(events: Iterable[ApplicationEvent]) -> list[ApplicationEvent]:
    """Joins the events that channels receive one by one into one event, as other applications receive it.

    A channel cannot distinguish an unsubscribe of its client from the end of the session. So those right before a
    disconnect count as part of it, and a test lets something else happen after an unsubscribe of its own.
    """
    found: list[ApplicationEvent] = []
    for event in events:
        if event.kind in PARTS:
            parts = [*_latest(found, event.sid, PARTS[event.kind]), event]
            told = event if event.kind == "disconnect" else parts[0]
            event = replace(told, identifier="", own={}, subscriptions=_merged(parts))
        found.append(event)
    return found


def _latest(found: list[ApplicationEvent], sid: str, kind: str) -> list[ApplicationEvent]:
    """The latest events of a session as long as they are of this kind, taken out of what was found."""
    run: list[ApplicationEvent] = []
    for place in reversed([index for index, event in enumerate(found) if event.sid == sid]):
        if found[place].kind != kind:
            break
        run.insert(0, found.pop(place))
    return run


def _merged(parts: Iterable[ApplicationEvent]) -> States:
    states: States = {}
    for part in parts:
        states |= part.subscriptions
        if part.identifier:
            states[part.identifier] = part.own
    return states
