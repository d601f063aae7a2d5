"""How a value is written: the kinds of setting, each read from text (flags, environment) or from a TOML value, and shown again.

A kind that cannot read what it got raises ValueError with a reason that fits after the name of a setting.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

Value = str | int | float | bool | tuple[str, ...]

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SIZE_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", re.ASCII)
_MOST = 2**53  # beyond it floats are not exact, and nothing is so many, so large or so long
_MOST_WORKERS = 64  # each is a process with an event loop, a copy of the application and its own connections to an engine
_SWITCH_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True)
class ValueKind:
    """`name` is what the help calls a value of this kind, `wanted` what the reference page says of it.

    `empty`: an empty text is a value of this kind, not its absence.
    """

    name: str
    wanted: str
    read: Callable[[object], Value]
    show: Callable[[Value], str] = str
    empty: bool = False


def nearest(word: str, known: Sequence[str]) -> str:
    """A suggestion to end an error message with, "" when nothing is near."""
    matches = get_close_matches(word, known, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _read_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("wants text in quotes")  # without the value: it may be a secret
    try:
        raw.encode()
    except UnicodeEncodeError:  # a variable or a flag may hold any bytes
        raise ValueError("wants UTF-8 text") from None
    return raw


def _read_switch(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in _SWITCH_WORDS:
        return _SWITCH_WORDS[raw.lower()]
    raise ValueError(f"wants true or false, not {raw!r}")


def _read_count(raw: object) -> int:
    if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,16}", raw.strip(), re.ASCII):
        return int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= _MOST:
        return raw
    raise ValueError(f"wants a whole number, 0 or more, not {raw!r}")


def _read_port(raw: object) -> int:
    port = _read_count(raw)
    if port > 65535:
        raise ValueError(f"wants a port from 0 to 65535, not {port}")
    return port


def _read_workers(raw: object) -> int:
    wanted = f"a number from 1 to {_MOST_WORKERS}, or auto"
    try:
        workers = min(usable_cores(), _MOST_WORKERS) if raw == "auto" else _read_count(raw)
    except ValueError:
        raise ValueError(f"wants {wanted}, not {raw!r}") from None
    if not 1 <= workers <= _MOST_WORKERS:
        raise ValueError(f"wants {wanted}, not {workers}")
    return workers


def usable_cores() -> int:
    """Those that this process may run on, which a container or taskset makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_quantity(raw: object, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    text = str(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else raw
    found = _NUMBER_AND_UNIT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[2].lower() not in units:
        raise ValueError(f"wants {wanted}, not {raw!r}")
    quantity = float(found[1]) * units[found[2].lower()]
    if quantity > _MOST:
        raise ValueError(f"wants {wanted}, and less of it")
    return quantity


def _read_duration(raw: object) -> float:
    return _read_quantity(raw, _DURATION_UNITS, "a duration such as 500ms, 300s, 5m, 1h or a number of seconds")


def _read_milliseconds(raw: object) -> float:
    units = {**_DURATION_UNITS, "": 0.001}
    return _read_quantity(raw, units, "a duration such as 500ms, 3s or a number of milliseconds")


def _read_size(raw: object) -> int:
    size = _read_quantity(raw, _SIZE_UNITS, "a size such as 1MiB, 64KB or a number of bytes")
    if size != int(size):
        raise ValueError(f"wants a whole number of bytes, not {raw!r}")
    return int(size)


def _read_words(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(word.strip() for word in raw.split(",") if word.strip())
    if isinstance(raw, list) and all(isinstance(word, str) for word in raw):
        return tuple(raw)
    raise ValueError(f"wants a list of texts, not {raw!r}")


def _show_switch(value: Value) -> str:
    return "true" if value else "false"


def _show_duration(value: Value) -> str:
    assert isinstance(value, float | int)
    milliseconds = round(value * 1000, 6)
    return f"{value:g}s" if milliseconds % 1000 == 0 or milliseconds % 1 else f"{milliseconds:g}ms"


def _show_size(value: Value) -> str:
    assert isinstance(value, int)
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value and value % bytes_ == 0:
            return f"{value // bytes_}{unit}"
    return str(value)


def _show_words(value: Value) -> str:
    assert isinstance(value, tuple)
    return ",".join(value)


TEXT = ValueKind("TEXT", "text", _read_text, empty=True)
SWITCH = ValueKind("SWITCH", "`true` or `false`; the bare flag means true", _read_switch, _show_switch)
COUNT = ValueKind("COUNT", "a whole number", _read_count)
PORT = ValueKind("PORT", "0 to 65535; 0 takes a free one", _read_port)
WORKERS = ValueKind("COUNT|auto", "1 to 64, or `auto`: the cores that may be used", _read_workers)
DURATION = ValueKind("DURATION", "`500ms`, `300s`, `5m`, `1h`, or bare seconds", _read_duration, _show_duration)
MILLISECONDS = ValueKind("MILLISECONDS", "`3s`, `500ms`, or bare milliseconds", _read_milliseconds, _show_duration)
SIZE = ValueKind("SIZE", "`1MiB` (1024²), `64KB` (1000), or bare bytes", _read_size, _show_size)
WORDS = ValueKind("LIST", "comma-separated; in TOML an array", _read_words, _show_words, empty=True)
KINDS = (TEXT, SWITCH, COUNT, PORT, DURATION, MILLISECONDS, SIZE, WORDS)


def one_of(*choices: str) -> ValueKind:
    """Text that must be one of `choices`."""

    def read(raw: object) -> str:
        if raw not in choices:
            raise ValueError(f"wants {_alternatives(choices)}, not {raw!r}")
        return str(raw)

    return ValueKind("|".join(choices), " or ".join(f"`{choice}`" for choice in choices), read)


def some_of(*choices: str) -> ValueKind:
    """A list whose items must each be one of `choices`."""

    def read(raw: object) -> tuple[str, ...]:
        words = _read_words(raw)
        for word in words:
            if word not in choices:
                raise ValueError(f"knows {_alternatives(choices)}, not {word!r}")
        return words

    return ValueKind(WORDS.name, WORDS.wanted, read, WORDS.show, empty=True)


def _alternatives(choices: tuple[str, ...]) -> str:
    return " or ".join(choices)
