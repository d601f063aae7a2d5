"""Settings that fill others: presets, and the modes that mean several settings at once.

They only fill what nobody wrote: a value from the file, the environment or a flag always stands.
"""

from collections.abc import Mapping

from ropewalk.app.settings.sources import FoundValues
from ropewalk.app.settings.values import Value

PRESETS: dict[str, dict[str, Value]] = {
    "broker": {"broker": "memory", "broadcast_adapter": ("http",), "pubsub": "none"},
}
MODES: dict[str, dict[str, Value]] = {
    # In this order, for one mode may switch on the next.
    "demo": {"public": True, "sse": True},
    "public": {"noauth": True, "public_streams": True},
    "debug": {"log_level": "debug"},
}


def filled(written: FoundValues) -> FoundValues:
    """What was written, and what it fills."""
    found = dict(written)
    presets, _ = found.get("presets", ((), ""))
    for preset in presets if isinstance(presets, tuple) else ():
        _fill(found, PRESETS[preset], f"preset {preset}")
    for mode, meant in MODES.items():
        if mode in found and found[mode][0]:
            _fill(found, meant, f"mode {mode}")
    return found


def _fill(found: FoundValues, values: Mapping[str, Value], origin: str) -> None:
    for name, value in values.items():
        found.setdefault(name, (value, origin))
