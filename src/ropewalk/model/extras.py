"""The command that installs an extra, for error messages; docs/install.md explains it.

Extras cannot be added to the standalone binary of `make dist`: its errors suggest an installation instead.
"""

import sys
from pathlib import Path


def bundle_directory() -> Path | None:
    """The directory of the unpacked files in the standalone binary, else None."""
    place = getattr(sys, "_MEIPASS", None)
    return Path(place) if getattr(sys, "frozen", False) and place else None


def install_command(*extras: str) -> str:
    """Returns the command that installs these extras."""
    command = f"pip install '.[{','.join(extras)}]' (in a clone of Ropewalk)"
    return f"the standalone binary does not include it; use {command} instead" if bundle_directory() else command
