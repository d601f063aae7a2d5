"""The command that installs an extra. Error messages and docs get it from here, so that there is one place to change.

docs/install.md says the same at length. The one file of `make dist` cannot be added to: its errors say so.
"""

import sys
from pathlib import Path


def one_file() -> Path | None:
    """Where the one file has unpacked what it carries, when that is what runs."""
    place = getattr(sys, "_MEIPASS", None)
    return Path(place) if getattr(sys, "frozen", False) and place else None


def install(*extras: str) -> str:
    """The command that brings these extras."""
    command = f"pip install '.[{','.join(extras)}]' (in a clone of Ropewalk)"
    return f"this one file does not carry it; use a Ropewalk installed with {command} instead" if one_file() else command
