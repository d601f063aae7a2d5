"""The files that an app was loaded from, and importing them anew. For development.

Which: the app's own module, and what it imported from under the same root directory, later imports included. Not what is
installed, and not what was there before the app was loaded: others hold on to that.
"""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType

Stamp = tuple[int, int] | None

INSTALLED = frozenset({"site-packages", "dist-packages"})
SERVER = __name__.partition(".")[0]


class Sources:
    """Make it before the module is imported."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._others = frozenset(sys.modules) - {module}
        self._suspects: set[Path] = set()
        self._stamps: dict[Path, Stamp] = {}

    def changed(self) -> list[Path]:
        """Files that are not as they were at the last call. One that is seen for the first time has not changed."""
        before, self._stamps = self._stamps, {path: _stamp(path) for path in self._files()}
        return [path for path, stamp in self._stamps.items() if path in before and before[path] != stamp]

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Within it the modules are imported anew. If it is left by an error the old ones are back in their places."""
        old = self._modules()
        self._drop(old)
        try:
            yield
        except BaseException as error:
            self._suspects = {*self._files(), *(path for path in _mentioned(error) if self._is_ours(path))}
            self._drop(self._modules())
            sys.modules.update(old)
            raise
        self._suspects.clear()

    def _drop(self, modules: dict[str, ModuleType]) -> None:
        for name, module in modules.items():
            del sys.modules[name]
            _forget_bytecode(module)
        importlib.invalidate_caches()

    def _modules(self) -> dict[str, ModuleType]:
        """In the order in which they were imported."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if name not in self._others and name.partition(".")[0] != SERVER and self._is_ours(_file_of(module))
        }

    def _files(self) -> set[Path]:
        return self._suspects.union(map(_file_of, self._modules().values()))

    @cached_property
    def _root(self) -> Path:
        """The directory that holds the app's outermost package, or its module."""
        outermost = sys.modules[self._module.partition(".")[0]]
        places = list(getattr(outermost, "__path__", ()))
        return Path(places[0]).parent if places else _file_of(outermost).parent

    def _is_ours(self, file: Path) -> bool:
        return file.is_relative_to(self._root) and INSTALLED.isdisjoint(file.parts) and file.suffix == ".py"


def _file_of(module: ModuleType) -> Path:
    """A path of no file for a module that came from none."""
    return Path(getattr(module, "__file__", None) or "")


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _forget_bytecode(module: ModuleType) -> None:
    # Python trusts it if the source has the same size and was written in the same second.
    cached = getattr(module, "__cached__", None)
    if cached:
        with suppress(OSError):
            Path(cached).unlink(missing_ok=True)


def _mentioned(error: BaseException | None) -> Iterator[Path]:
    """Files in which an import failed: they may be in no module, and are where its author will put it right."""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            yield Path(frame.filename)
        if isinstance(error, SyntaxError) and error.filename:
            yield Path(error.filename)
        error = error.__cause__
