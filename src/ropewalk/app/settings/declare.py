"""How a setting is declared: the kinds of value, and one function per kind to call beside the field of a section.

The flag, environment variable, TOML key and reference row of a setting derive from its declaration. For the type checker, a
declaring function returns the default; at run time it returns the dataclass field that carries the declaration.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import TypeVar

Value = str | int | float | bool | tuple[str, ...]
T = TypeVar("T", bound=Value)

# --- kinds of value --------------------------------------------------------------------------------------------------

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SIZE_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)", re.ASCII)
_MAX_NUMBER = 2**53  # floats are exact up to here
_MAX_WORKERS = 64  # each is a process with an event loop, a copy of the application and its own connections to Redis or NATS
_SWITCH_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True)
class ValueKind:
    """One way to write a value, read from text (flags, environment) or from a TOML value.

    Args:
        name: Placeholder for the value in help texts.
        wanted: Description for the reference page.
        read: Raises ValueError with a reason that can follow the name of a setting.
        show: Formats a value so that `read` accepts it.
        empty: An empty text is a value, not a missing one.
    """

    name: str
    wanted: str
    read: Callable[[object], Value]
    show: Callable[[Value], str] = str
    empty: bool = False


def nearest(word: str, known: Sequence[str]) -> str:
    """A suggestion to append to an error message; "" without a close match."""
    matches = get_close_matches(word, known, n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _read_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("wants text in quotes")  # does not show the value: it may be a secret
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
    if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= _MAX_NUMBER:
        return raw
    raise ValueError(f"wants a whole number, 0 or more, not {raw!r}")


def _read_port(raw: object) -> int:
    port = _read_count(raw)
    if port > 65535:
        raise ValueError(f"wants a port from 0 to 65535, not {port}")
    return port


def _read_workers(raw: object) -> int:
    wanted = f"a number from 1 to {_MAX_WORKERS}, or auto"
    try:
        workers = min(usable_cores(), _MAX_WORKERS) if raw == "auto" else _read_count(raw)
    except ValueError:
        raise ValueError(f"wants {wanted}, not {raw!r}") from None
    if not 1 <= workers <= _MAX_WORKERS:
        raise ValueError(f"wants {wanted}, not {workers}")
    return workers


def usable_cores() -> int:
    """The number of cores this process may run on: a container or taskset may allow fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_quantity(raw: object, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    text = str(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else raw
    found = _NUMBER_AND_UNIT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or found[2].lower() not in units:
        raise ValueError(f"wants {wanted}, not {raw!r}")
    quantity = float(found[1]) * units[found[2].lower()]
    if quantity > _MAX_NUMBER:
        raise ValueError(f"wants {wanted}, at most {_MAX_NUMBER}")
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
PORT = ValueKind("PORT", "0 to 65535; 0 takes a free port", _read_port)
WORKERS = ValueKind("COUNT|auto", "1 to 64, or `auto`: one per usable core", _read_workers)
DURATION = ValueKind("DURATION", "`500ms`, `300s`, `5m`, `1h`, or bare seconds", _read_duration, _show_duration)
MILLISECONDS = ValueKind("MILLISECONDS", "`3s`, `500ms`, or bare milliseconds", _read_milliseconds, _show_duration)
SIZE = ValueKind("SIZE", "`1MiB` (1024²), `64KB` (1000), or bare bytes", _read_size, _show_size)
WORDS = ValueKind("LIST", "comma-separated; in TOML an array", _read_words, _show_words, empty=True)
KINDS = (TEXT, SWITCH, COUNT, PORT, DURATION, MILLISECONDS, SIZE, WORDS)
"""Kinds with a name of their own in the legend of the reference page."""


def read_choice(*choices: str) -> ValueKind:
    """Text that must be one of `choices`."""

    def read(raw: object) -> str:
        if raw not in choices:
            raise ValueError(f"wants {_alternatives(choices)}, not {raw!r}")
        return str(raw)

    return ValueKind("|".join(choices), " or ".join(f"`{choice}`" for choice in choices), read)


def read_choices(*choices: str) -> ValueKind:
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


# --- declarations ----------------------------------------------------------------------------------------------------

_KEY = "setting"

# Up to the last @: a password may contain any other character, even unescaped.
_CREDENTIALS = re.compile(r"(?s)(://).*@")
_ADDRESS_CREDENTIALS = re.compile(r"(?s)^([\w+.-]*://)?.*@")
_SECRET_PARAMETER = re.compile(r"(?i)([?&][\w.-]*(?:pass|token|secret|key|auth|sig|credential)[\w.-]*=)[^&,]+")


@dataclass(frozen=True)
class Declared:
    """The declaration of one setting.

    Args:
        kind: How its value is written.
        help: One or two sentences for help and reference.
        secret: The value is never shown.
        address: One or more addresses, with or without a scheme; their credentials are never shown.
        also_env: An additional environment variable, weaker than the others.
        positive: Reject 0.
        alias: A second name for flag, variable and key.
    """

    kind: ValueKind
    help: str
    secret: bool = False
    address: bool = False
    also_env: str = ""
    positive: bool = False
    alias: str = ""

    def read(self, raw: object) -> Value:
        """Raises ValueError with a reason that can follow the name of the setting."""
        value = self.kind.read(raw)
        if self.positive and not value:
            raise ValueError(f"wants more than 0, not {raw!r}")
        return value


@dataclass(frozen=True)
class Setting:
    """A declared setting, with its section and name."""

    section: str
    name: str
    default: Value
    declared: Declared

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables, weakest first."""
        prefixed = _prefixed(self.name)
        return (self.declared.also_env, *prefixed) if self.declared.also_env else prefixed

    @property
    def alias_variables(self) -> tuple[str, ...]:
        """Environment variables of the alias, weakest first; empty without an alias."""
        return _prefixed(self.declared.alias) if self.declared.alias else ()

    @property
    def help(self) -> str:
        alias = self.declared.alias
        return f"{self.declared.help} Alias: --{alias}." if alias else self.declared.help

    def show(self, value: Value) -> str:
        """The value for display: secrets and the credentials of URLs are replaced by `(set)`."""
        if self.declared.secret:
            return "(set)" if value else ""
        shown = self.declared.kind.show(value)
        if not self.declared.address:
            return _CREDENTIALS.sub(r"\1(set)@", shown)
        return _ADDRESS_CREDENTIALS.sub(r"\1(set)@", _SECRET_PARAMETER.sub(r"\1(set)", shown))

    def hides(self, value: Value) -> bool:
        """Whether `show` leaves out a secret."""
        return self.show(value) != self.declared.kind.show(value)


def _prefixed(name: str) -> tuple[str, str]:
    return f"ANYCABLE_{name.upper()}", f"ROPEWALK_{name.upper()}"


def declared_in(section: str, holder: type) -> Iterator[Setting]:
    """The settings of a section, in the order of declaration."""
    for place in fields(holder):
        assert place.default is not MISSING, f"{section}.{place.name} has no default"
        yield Setting(section, place.name, place.default, place.metadata[_KEY])


def _declare(default: T, declared: Declared) -> T:
    # Secrets are not part of the repr, so that logging a section does not show them.
    return field(default=default, repr=not (declared.secret or declared.address), metadata={_KEY: declared})


def text(default: str, help: str, also_env: str = "") -> str:
    return _declare(default, Declared(TEXT, help, also_env=also_env))


def address(default: str, help: str, also_env: str = "") -> str:
    """One address, or several separated by commas. Credentials are never shown."""
    return _declare(default, Declared(TEXT, help, also_env=also_env, address=True))


def addresses(default: tuple[str, ...], help: str) -> tuple[str, ...]:
    return _declare(default, Declared(WORDS, help, address=True))


def secret_text(help: str) -> str:
    return _declare("", Declared(TEXT, help, secret=True))


def switch(default: bool, help: str) -> bool:
    return _declare(default, Declared(SWITCH, help))


def count(default: int, help: str, positive: bool = False, alias: str = "") -> int:
    return _declare(default, Declared(COUNT, help, positive=positive, alias=alias))


def port_number(default: int, help: str, also_env: str = "") -> int:
    return _declare(default, Declared(PORT, help, also_env=also_env))


def number_of_workers(default: int, help: str) -> int:
    return _declare(default, Declared(WORKERS, help))


def duration(default: float, help: str, positive: bool = False, alias: str = "") -> float:
    return _declare(default, Declared(DURATION, help, positive=positive, alias=alias))


def milliseconds(default: float, help: str, positive: bool = False) -> float:
    """A duration in seconds. A bare number means milliseconds, as in AnyCable."""
    return _declare(default, Declared(MILLISECONDS, help, positive=positive))


def size(default: int, help: str, positive: bool = False) -> int:
    return _declare(default, Declared(SIZE, help, positive=positive))


def words(default: tuple[str, ...], help: str) -> tuple[str, ...]:
    return _declare(default, Declared(WORDS, help))


def choice(default: str, choices: tuple[str, ...], help: str) -> str:
    return _declare(default, Declared(read_choice(*choices), help))


def choices(default: tuple[str, ...], known: tuple[str, ...], help: str, alias: str = "") -> tuple[str, ...]:
    return _declare(default, Declared(read_choices(*known), help, alias=alias))
