"""Loads Settings from command line, environment and file. Precedence, weakest first:

defaults, presets and modes, the file, PORT, ANYCABLE_* variables, ROPEWALK_* variables, flags.

Each source returns (value, origin) by setting name, for the settings it contains. Presets and modes only fill settings that no
source contains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tomllib import TOMLDecodeError, loads

from ropewalk.app.settings.declare import COUNT, DURATION, SWITCH, TEXT, Setting, Value, ValueKind, nearest, read_choice
from ropewalk.app.settings.sections import SECTIONS, SETTINGS, Settings
from ropewalk.model.errors import UserMistake
from ropewalk.model.rules import SinceGaps, SlowPolicy, StreamRule

# --- sources of values -----------------------------------------------------------------------------------------------

FoundValues = dict[str, tuple[Value, str]]

CONFIG_FLAG = "config_path"
CONFIG_VARIABLE = "ROPEWALK_CONFIG_PATH"
ALIASES = {setting.declared.alias: setting.name for setting in SETTINGS.values() if setting.declared.alias}
STANDARD_FILES = ("ropewalk.toml", "/etc/ropewalk/ropewalk.toml")


def read(setting: Setting, raw: object, origin: str) -> Value:
    try:
        return setting.declared.read(raw)
    except ValueError as error:
        raise UserMistake(f"{origin} {error}") from None


def require_one_name(names: Sequence[str], where: str) -> None:
    """`names`: the names used for one setting in one source."""
    if len(names) > 1:
        raise UserMistake(f"{where}: {' and '.join(names)} are the same setting; set only one of them")


# --- flags -----------------------------------------------------------------------------------------------------------


def split_flags(argv: Sequence[str]) -> dict[str, str]:
    """`--name value`, `--name=value`, and `--name` alone for a switch; `-` and `_` are equivalent. The last repetition wins."""
    given: dict[str, str] = {}
    spelled: dict[str, str] = {}
    waiting = list(reversed(argv))
    while waiting:
        word = waiting.pop()
        name, equals, value = word.removeprefix("--").partition("=")
        written = name.replace("-", "_")
        name = _known_flag(word, written)
        require_one_name(list(dict.fromkeys((f"--{spelled.setdefault(name, written)}", f"--{written}"))), "flags")
        if not equals:
            value = _value_after(name, waiting)
        given[name] = value
    return given


def _known_flag(word: str, name: str) -> str:
    if not word.startswith("--"):
        raise UserMistake(f"unexpected argument {word!r}: settings have the form --name value")
    name = ALIASES.get(name, name)
    if name in SETTINGS or name == CONFIG_FLAG:
        return name
    raise UserMistake(f"unknown flag --{name}" + nearest(f"--{name}", [f"--{known}" for known in (*SETTINGS, CONFIG_FLAG)]))


def _value_after(name: str, waiting: list[str]) -> str:
    if name in SETTINGS and SETTINGS[name].declared.kind is SWITCH:
        return "true"
    if not waiting or waiting[-1].startswith("--"):
        raise UserMistake(f"flag --{name} needs a value")
    return waiting.pop()


def from_flags(given: Mapping[str, str]) -> FoundValues:
    return {
        name: (read(SETTINGS[name], value, f"flag --{name}"), f"flag --{name}")
        for name, value in given.items()
        if name in SETTINGS
    }


# --- environment -----------------------------------------------------------------------------------------------------


def from_environment(environ: Mapping[str, str]) -> FoundValues:
    """Ignores unknown variables with our prefix, because container platforms set some."""
    found: FoundValues = {}
    for setting in SETTINGS.values():
        other = [variable for variable in setting.alias_variables if _is_set(setting, environ.get(variable))]
        usual = [variable for variable in setting.variables if _is_set(setting, environ.get(variable))]
        require_one_name([*other[-1:], *usual[-1:]], "variables")
        for variable in (*other, *usual):
            found[setting.name] = (read(setting, environ[variable], f"variable {variable}"), f"variable {variable}")
    return found


def _is_set(setting: Setting, value: str | None) -> bool:
    return bool(value) or (value == "" and setting.declared.kind.empty)


# --- the file --------------------------------------------------------------------------------------------------------


def find_file(given: Mapping[str, str], environ: Mapping[str, str], here: Path) -> Path | None:
    """The named file, else the first standard file that exists. An empty name means no file."""
    named = given.get(CONFIG_FLAG, environ.get(CONFIG_VARIABLE))
    if named is not None:
        return here / named if named else None
    return next((path for name in STANDARD_FILES if (path := here / name).is_file()), None)


@dataclass(frozen=True)
class SettingsCopy:
    """A copy of the settings file, read instead of it.

    Args:
        path: The copy.
        original: The file to name in errors, which may no longer exist; None if unknown.
    """

    path: Path
    original: Path | None


def from_file(path: Path, read_from: Path | None = None) -> tuple[FoundValues, tuple[StreamRule, ...]]:
    """`read_from`: a copy of the file, read instead of it."""
    found: FoundValues = {}
    tables = _tables(path, read_from or path)
    rules = stream_rules(tables.pop("streams", []), str(path))
    tables.pop("pipeline", None)  # read by `ropewalk pipeline`
    for section, table in tables.items():
        if section not in SECTIONS:
            raise UserMistake(f"{path}: {_misplaced(section, table)}")
        if not isinstance(table, dict):
            raise UserMistake(f"{path}: {section} is a section: write [{section}]")
        for key, raw in table.items():
            setting = _setting_at(section, key, str(path))
            keys = [other for other in table if other.replace("-", "_") in (setting.declared.alias, setting.name)]
            require_one_name(keys, f"{path}: [{section}]")
            found[setting.name] = (read(setting, raw, f"{path}: [{section}] {key}"), f"file {path}")
    return found, rules


def _tables(path: Path, read_from: Path) -> dict[str, object]:
    try:
        return loads(read_from.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserMistake(f"cannot read {read_from}: {error.strerror}") from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not TOML: {error}") from None


def _misplaced(word: str, value: object) -> str:
    if not isinstance(value, dict) and word in SETTINGS:
        return f"{word} belongs in the section [{SETTINGS[word].section}]"
    if isinstance(value, dict):
        return f"unknown section [{word}]" + nearest(word, (*SECTIONS, "streams"))
    return f"unknown key {word}" + nearest(word, tuple(SETTINGS))


def _setting_at(section: str, key: str, origin: str) -> Setting:
    name = key.replace("-", "_")
    setting = SETTINGS.get(ALIASES.get(name, name))
    if setting is None:
        raise UserMistake(f"{origin}: unknown key {key} in [{section}]" + nearest(name, tuple(SETTINGS)))
    if setting.section != section:
        raise UserMistake(f"{origin}: {key} belongs in the section [{setting.section}], not in [{section}]")
    return setting


# --- rules for streams: [[streams]] tables; the first with a matching pattern applies -----------------------------------


@dataclass(frozen=True)
class RuleKey:
    """A key of a rule. A rule has only the keys that differ from the sections."""

    kind: ValueKind
    help: str


RULE_KEYS = {
    "pattern": RuleKey(TEXT, "Stream names the rule applies to; `*` and `?` as in shell globs."),
    "history_limit": RuleKey(COUNT, "Messages kept; 0 keeps none."),
    "history_ttl": RuleKey(DURATION, "How long a message is kept; 0 keeps none."),
    "slow_consumer": RuleKey(
        read_choice(*SlowPolicy),
        "If a connection is too slow for the stream: `disconnect` it, or `drop` to the newest message with a gap notice.",
    ),
    "since_gaps": RuleKey(
        read_choice(*SinceGaps),
        "If a request by time (`since`) reaches further back than the history: `confirm` it with the gap, or `reject` it, so "
        "that client libraries report the gap.",
    ),
}


def stream_rules(tables: object, origin: str) -> tuple[StreamRule, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserMistake(f"{origin}: streams must be tables, each under [[streams]]")
    rules = tuple(_rule(table, f"{origin}: [[streams]] {number}") for number, table in enumerate(tables, 1))
    for number, rule in enumerate(rules, 1):
        if any(rule.pattern == earlier.pattern for earlier in rules[: number - 1]):
            raise UserMistake(f"{origin}: [[streams]] {number}: an earlier rule has the same pattern {rule.pattern!r}")
    return rules


def _rule(table: dict[str, object], origin: str) -> StreamRule:
    for key in table:
        if key not in RULE_KEYS:
            raise UserMistake(f"{origin}: unknown key {key}" + nearest(key, tuple(RULE_KEYS)))
    pattern = _text(table, "pattern", origin)
    if not pattern:
        raise UserMistake(f"{origin}: a rule needs a pattern")
    limit, ttl, policy, gaps = (_read(table, key, origin) for key in RULE_KEYS if key != "pattern")
    return StreamRule(
        pattern,
        history_limit=limit if isinstance(limit, int) else None,
        history_ttl=ttl if isinstance(ttl, float) else None,
        slow_consumer=SlowPolicy(policy) if isinstance(policy, str) else None,
        since_gaps=SinceGaps(gaps) if isinstance(gaps, str) else None,
    )


def _read(table: dict[str, object], key: str, origin: str) -> Value | None:
    if key not in table:
        return None
    try:
        return RULE_KEYS[key].kind.read(table[key])
    except ValueError as error:
        raise UserMistake(f"{origin}: {key} {error}") from None


def _text(table: dict[str, object], key: str, origin: str) -> str:
    return str(_read(table, key, origin) or "")


# --- presets and modes, which imply other settings -------------------------------------------------------------------


@dataclass(frozen=True)
class PresetCase:
    """The settings that a preset fills if one of the settings `given` has a value. Empty `given`: always."""

    given: tuple[str, ...]
    values: Mapping[str, Value]

    def reason(self, found: FoundValues) -> str | None:
        """Why the case applies; None if it does not."""
        if not self.given:
            return "neither Redis nor NATS is configured"
        return next((f"{name} is set by {found[name][1]}" for name in self.given if name in found and found[name][0]), None)


_ON_NATS: dict[str, Value] = {"broker": "nats", "broadcast_adapter": ("http", "nats")}
PRESETS: dict[str, tuple[PresetCase, ...]] = {
    "broker": (
        # First, as in AnyCable: a platform may set REDIS_URL for others, but --embed_nats is always intended.
        PresetCase(("embed_nats",), _ON_NATS),
        PresetCase(("redis_url", "redis_sentinels"), {"broker": "redis", "broadcast_adapter": ("http", "redisx", "redis")}),
        PresetCase(("nats_servers",), _ON_NATS),
        PresetCase((), {"broker": "memory", "broadcast_adapter": ("http",)}),
    ),
}
MODES: dict[str, dict[str, Value]] = {
    # In this order, because a mode may enable the next.
    "demo": {"public": True, "sse": True},
    "public": {"noauth": True, "public_streams": True},
    "debug": {"log_level": "debug"},
}


def filled(written: FoundValues) -> FoundValues:
    """The values found, with those that presets and modes add."""
    found = dict(written)
    presets, _ = found.get("presets", ((), ""))
    for preset in presets if isinstance(presets, tuple) else ():
        values, reason = _matching_case(PRESETS[preset], found)
        _fill(found, values, f"preset {preset}: {reason}")
    for mode, meant in MODES.items():
        if mode in found and found[mode][0]:
            _fill(found, meant, f"mode {mode}")
    return found


def _matching_case(cases: Sequence[PresetCase], found: FoundValues) -> tuple[Mapping[str, Value], str]:
    """The values of the first case that applies, and the reason."""
    return next((case.values, reason) for case in cases if (reason := case.reason(found)) is not None)


def preset_choices(settings: Settings) -> list[str]:
    """One line for each preset that filled a setting: its reason and its choices."""
    chosen: dict[str, list[str]] = {}
    for name, origin in settings.origins.items():
        if origin.startswith("preset ") and (setting := SETTINGS.get(name)):
            value = getattr(getattr(settings, setting.section), name)
            chosen.setdefault(origin, []).append(f"--{name}={setting.show(value)}")
    return [f"{origin}; so {' '.join(sorted(flags))}" for origin, flags in chosen.items()]


def _fill(found: FoundValues, values: Mapping[str, Value], origin: str) -> None:
    for name, value in values.items():
        found.setdefault(name, (value, origin))


# --- one Settings from all sources -----------------------------------------------------------------------------------


def settings_file(argv: Sequence[str], environ: Mapping[str, str]) -> Path | None:
    """The settings file that `load` would read. Raises UserMistake."""
    return find_file(split_flags(argv), environ, Path())


def load(
    argv: Sequence[str], environ: Mapping[str, str], here: Path | None = None, instead: SettingsCopy | None = None
) -> Settings:
    """Raises UserMistake.

    Args:
        here: Directory of a relative settings file, the working directory by default.
        instead: A copy to read instead of the settings file.
    """
    given = split_flags(argv)
    path = (instead.original or instead.path) if instead else find_file(given, environ, here or Path())
    from_path, rules = from_file(path, instead.path if instead else None) if path else ({}, ())
    written = from_path | from_environment(environ) | from_flags(given)
    return _settings(filled(written), rules, f"file {path}")


def _settings(found: FoundValues, rules: tuple[StreamRule, ...], file_origin: str) -> Settings:
    chosen: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for name, (value, _) in found.items():
        chosen[SETTINGS[name].section][name] = value
    sections = {section: holder(**chosen[section]) for section, holder in SECTIONS.items()}
    origins = {name: found[name][1] if name in found else "default" for name in SETTINGS}
    origins["streams"] = file_origin if rules else "default"
    return Settings(**sections, streams=rules, origins=origins)
