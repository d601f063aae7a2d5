"""Settings, declared once in `sections`; flags, variables, TOML keys, help and the reference page derive from there."""

from ropewalk.app.settings.coherence import has_application, require_startable
from ropewalk.app.settings.engines import doubts
from ropewalk.app.settings.loader import SettingsCopy, load, preset_choices, settings_file
from ropewalk.app.settings.reference import help_text
from ropewalk.app.settings.sections import Settings

__all__ = [
    "Settings",
    "SettingsCopy",
    "doubts",
    "has_application",
    "help_text",
    "load",
    "preset_choices",
    "require_startable",
    "settings_file",
]
