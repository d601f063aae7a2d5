"""Modules on disk, written to a temporary directory and removed from `sys.modules` afterwards."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent


class Project:
    """A directory on the path. Every written file has a later modification time than the one before."""

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
