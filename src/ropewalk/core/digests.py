"""The checksum in the name of an archive file, which detects later changes of the file.

Invariant: a file without a checksum in its name is accepted as it is.
"""

import hashlib
import re
from io import BufferedReader

_NAMED = re.compile(r"\.([0-9a-f]{16})\.parquet$")


def digest(file: BufferedReader) -> str:
    """The checksum of the file from its current position to its end."""
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def parse_digest(name: str) -> str:
    """The checksum in a file's name; "" for files of other writers and older versions."""
    match = _NAMED.search(name)
    return match[1] if match else ""


def is_unchanged(name: str, file: BufferedReader) -> bool:
    """False for a checksum mismatch. A file without a checksum in its name is not read."""
    expected = parse_digest(name)
    return not expected or digest(file) == expected
