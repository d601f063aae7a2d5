"""Settings, each declared once in `sections` or `store_sections`. Flags, variables, TOML keys and help derive from that."""

from ropewalk.app.settings.check import has_application, require_startable, startup_warnings
from ropewalk.app.settings.load import SettingsCopy, load, preset_choices, settings_file
from ropewalk.app.settings.reference import help_text
from ropewalk.app.settings.sections import Settings

__all__ = [
    "Settings",
    "SettingsCopy",
    "has_application",
    "help_text",
    "load",
    "preset_choices",
    "require_startable",
    "settings_file",
    "startup_warnings",
]
