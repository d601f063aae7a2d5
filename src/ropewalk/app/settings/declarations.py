"""How a setting is declared: one call beside its field, from which flag, environment variable, TOML key and reference derive.

Each call returns the default, as the type checker sees it; at run time it is the dataclass field that carries the declaration.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import TypeVar

from ropewalk.app.settings import values
from ropewalk.app.settings.values import Value, ValueKind

T = TypeVar("T", bound=Value)
_KEY = "setting"

# Up to the last @: a password may hold every other character, also those that it should not.
_CREDENTIALS = re.compile(r"(?s)(://).*@")
_ADDRESS_CREDENTIALS = re.compile(r"(?s)^([\w+.-]*://)?.*@")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&]password=)[^&,]+")  # of a redis:// URL


@dataclass(frozen=True)
class Declared:
    """What was said of one setting. `also_env`: a variable of another name that is heard too, weakest of all variables.

    `positive`: 0 would make the server useless, and is refused. `alias`: a name that works in its place. `address`: one or more
    addresses with or without a scheme, which may have credentials.
    """

    kind: ValueKind
    help: str
    secret: bool = False
    address: bool = False
    also_env: str = ""
    positive: bool = False
    alias: str = ""

    def read(self, raw: object) -> Value:
        """Raises ValueError with a reason that fits after the name of the setting."""
        value = self.kind.read(raw)
        if self.positive and not value:
            raise ValueError(f"wants more than 0, not {raw!r}")
        return value


@dataclass(frozen=True)
class Setting:
    """One declared setting, with its place."""

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
        """The same under the other name, if there is one."""
        return _prefixed(self.declared.alias) if self.declared.alias else ()

    @property
    def help(self) -> str:
        alias = self.declared.alias
        return f"{self.declared.help} --{alias} is another name for it." if alias else self.declared.help

    def show(self, value: Value) -> str:
        """The value as a person may see it: a secret, and who a URL logs in as, only say that they are set."""
        if self.declared.secret:
            return "(set)" if value else ""
        shown = self.declared.kind.show(value)
        if not self.declared.address:
            return _CREDENTIALS.sub(r"\1(set)@", shown)
        return _ADDRESS_CREDENTIALS.sub(r"\1(set)@", _PASSWORD_PARAMETER.sub("(set)", shown))

    def hides(self, value: Value) -> bool:
        """Whether what `show` gives is not the value."""
        return self.show(value) != self.declared.kind.show(value)


def _prefixed(name: str) -> tuple[str, str]:
    return f"ANYCABLE_{name.upper()}", f"ROPEWALK_{name.upper()}"


def declared_in(section: str, holder: type) -> Iterator[Setting]:
    """The settings of one section's class, in the order they were written."""
    for place in fields(holder):
        assert place.default is not MISSING, "a setting is declared with its default"
        yield Setting(section, place.name, place.default, place.metadata[_KEY])


def _declare(default: T, declared: Declared) -> T:
    # A secret stays out of the repr, so that no log line or traceback of a whole section can show it.
    return field(default=default, repr=not (declared.secret or declared.address), metadata={_KEY: declared})


def text(default: str, help: str, also_env: str = "") -> str:
    return _declare(default, Declared(values.TEXT, help, also_env=also_env))


def address(default: str, help: str, also_env: str = "") -> str:
    """Or several, separated by commas. The credentials in it are never shown."""
    return _declare(default, Declared(values.TEXT, help, also_env=also_env, address=True))


def addresses(default: tuple[str, ...], help: str) -> tuple[str, ...]:
    return _declare(default, Declared(values.WORDS, help, address=True))


def secret_text(help: str) -> str:
    return _declare("", Declared(values.TEXT, help, secret=True))


def switch(default: bool, help: str) -> bool:
    return _declare(default, Declared(values.SWITCH, help))


def count(default: int, help: str, positive: bool = False, alias: str = "") -> int:
    return _declare(default, Declared(values.COUNT, help, positive=positive, alias=alias))


def port_number(default: int, help: str, also_env: str = "") -> int:
    return _declare(default, Declared(values.PORT, help, also_env=also_env))


def number_of_workers(default: int, help: str) -> int:
    return _declare(default, Declared(values.WORKERS, help))


def duration(default: float, help: str, positive: bool = False) -> float:
    return _declare(default, Declared(values.DURATION, help, positive=positive))


def milliseconds(default: float, help: str, positive: bool = False) -> float:
    """In seconds, like a duration; but whoever writes a bare number means milliseconds, as users of AnyCable do here."""
    return _declare(default, Declared(values.MILLISECONDS, help, positive=positive))


def size(default: int, help: str, positive: bool = False) -> int:
    return _declare(default, Declared(values.SIZE, help, positive=positive))


def words(default: tuple[str, ...], help: str) -> tuple[str, ...]:
    return _declare(default, Declared(values.WORDS, help))


def choice(default: str, choices: tuple[str, ...], help: str) -> str:
    return _declare(default, Declared(values.one_of(*choices), help))


def choices(default: tuple[str, ...], known: tuple[str, ...], help: str, alias: str = "") -> tuple[str, ...]:
    return _declare(default, Declared(values.some_of(*known), help, alias=alias))
