"""The digest that a file of the archive carries in its name, so that every later change of the file can be found.

Invariant: a name without a digest claims nothing, and such a file counts as it is.
"""

import hashlib
import re
from io import BufferedReader

_NAMED = re.compile(r"\.([0-9a-f]{16})\.parquet$")


def digest(file: BufferedReader) -> str:
    """Of everything from the file's place to its end."""
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def digest_in(name: str) -> str:
    """The digest that a file's name tells; "" for files of other writers and older versions."""
    match = _NAMED.search(name)
    return match[1] if match else ""


def as_written(name: str, file: BufferedReader) -> bool:
    """Whether the content is what the name says. The file is not read where the name says nothing."""
    told = digest_in(name)
    return not told or digest(file) == told
