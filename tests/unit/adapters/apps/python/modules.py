"""Modules on disk for tests, written under a temporary root and taken out of `sys.modules` afterwards."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent


class Project:
    """A directory on the path. Each writing of a file has a later time than the one before, without waiting for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._time = 1_700_000_000

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        self._time += 1
        os.utime(path, (self._time, self._time))
        return path


@contextmanager
def project(root: Path) -> Iterator[Project]:
    path, modules = sys.path[:], set(sys.modules)
    sys.path.insert(0, str(root))
    try:
        yield Project(root)
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(root) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
