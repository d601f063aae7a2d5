"""The directory of `--data_dir`: files private to the server, and the error message for an unusable directory."""

import os
from pathlib import Path

from ropewalk.model.errors import UserMistake


def private_opener(path: str, flags: int) -> int:
    """For `open`: a new file that no other user can read."""
    return os.open(path, flags, 0o600)


def unusable(directory: Path, error: OSError) -> UserMistake:
    """The user's error for an OSError about this directory or a file in it."""
    reason = error.strerror or str(error)
    if os.path.isdir(directory):
        why = f"{Path(os.fsdecode(error.filename)).name if error.filename else 'a file in it'}: {reason}"
    elif os.path.exists(directory):
        why = "it is not a directory"
    else:
        why = f"it cannot be created: {reason}"
    return UserMistake(f"--data_dir {directory} cannot be used: {why}")
