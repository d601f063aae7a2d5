"""The directory of `--data_dir`: what is written there is for the server alone, and what is said where it cannot be used."""

import os
from pathlib import Path

from ropewalk.model.errors import UserMistake


def private_opener(path: str, flags: int) -> int:
    """For `open`: a new file that no other user can read."""
    return os.open(path, flags, 0o600)


def unusable(directory: Path, error: OSError) -> UserMistake:
    """As the user is told that `error` came of making this directory, or of a file in it."""
    reason = error.strerror or str(error)
    if os.path.isdir(directory):
        why = f"{Path(os.fsdecode(error.filename)).name if error.filename else 'a file in it'}: {reason}"
    elif os.path.exists(directory):
        why = "it is not a directory"
    else:
        why = f"it cannot be made: {reason}"
    return UserMistake(f"--data_dir {directory} cannot be used: {why}")
