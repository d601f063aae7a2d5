"""From command line, environment and file to one Settings. Precedence, weakest first:

defaults, presets and modes, the file, PORT, ANYCABLE_* variables, ROPEWALK_* variables, flags.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ropewalk.app.settings.presets import filled
from ropewalk.app.settings.sections import SECTIONS, SETTINGS, Settings
from ropewalk.app.settings.sources import FoundValues, find_file, from_environment, from_file, from_flags, split_flags
from ropewalk.model.rules import StreamRule


def load(argv: Sequence[str], environ: Mapping[str, str], here: Path | None = None) -> Settings:
    """Raises UserMistake. `here` is where a relative settings file is looked for, the working directory by default."""
    given = split_flags(argv)
    path = find_file(given, environ, here or Path())
    from_path, rules = from_file(path) if path else ({}, ())
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
