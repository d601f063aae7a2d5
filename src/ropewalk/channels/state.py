"""State as handlers see it (values by key) and as the server keeps it (JSON texts by key).

Keys that begin with `$` belong to the server: they are neither shown nor accepted.
"""

from collections.abc import Mapping
from typing import Any

from ropewalk.channels.texts import json_value, lasting_text
from ropewalk.model.application import State

SERVERS_OWN = "$"


def shown(kept: State) -> dict[str, Any]:
    """A fresh dict; changing it changes nothing by itself."""
    return {key: json_value(text) for key, text in kept.items() if not key.startswith(SERVERS_OWN)}


def changes(kept: State, now: Mapping[str, Any], owner: str) -> State:
    """What must be kept from now on, a deleted key as "". `owner` is for the error of what cannot be kept."""
    answer = {key: "" for key in kept if key not in now and not key.startswith(SERVERS_OWN)}
    for key, value in now.items():
        text = lasting_text(value, f"{owner}[{_checked(key, owner)!r}]")
        if kept.get(key) != text:
            answer[key] = text
    return answer


def _checked(key: object, owner: str) -> str:
    if not isinstance(key, str) or key.startswith(SERVERS_OWN):
        raise TypeError(f"{owner} has a key {key!r}: keys are strings that do not begin with {SERVERS_OWN!r}")
    return key
