"""Loads the App that `module:attribute` names, and imports it again when its source files change. Errors name the fix."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType

from ropewalk.channels import App
from ropewalk.model.errors import UserMistake

DEFAULT_ATTRIBUTE = "app"
INSTALLED = frozenset({"site-packages", "dist-packages"})
SERVER = __name__.partition(".")[0]

Stamp = tuple[int, int] | None


def load_app(spec: str) -> App:
    """Raises UserMistake; its cause, if it has one, is the exception of the author's own code."""
    module_name, attribute = split_spec(spec)
    return _find_app(_import(module_name), attribute)


def load_from(spec: str, directory: str) -> App:
    if directory:
        put_on_path(directory)
    return load_app(spec)


def split_spec(spec: str) -> tuple[str, str]:
    """The module and the attribute of `chat:app`; `chat` alone is the same."""
    module, _, attribute = spec.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if module.endswith(".py"):
        dotted = ".".join(Path(module).with_suffix("").parts)
        raise UserMistake(f"{module} is a file: name the module, {dotted}:{attribute}")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UserMistake(f"{spec!r} does not name an app: use module:attribute, such as chat:app")
    return module, attribute


def put_on_path(directory: str) -> None:
    """Import modules from this directory first."""
    path = str(Path(directory).resolve())
    if sys.path[:1] != [path]:
        sys.path.insert(0, path)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if _is_part(name, error.name or ""):
            raise UserMistake(
                f"there is no module {error.name} in {Path(sys.path[0]).absolute()} or elsewhere on the path"
            ) from None
        raise UserMistake(f"module {name} needs {error.name}, which is not installed") from error
    except BaseException as error:  # sys.exit() in a module must not end a running server
        raise UserMistake(f"module {name} cannot be imported: {_reason(error)}") from error


def _is_part(name: str, missing: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


def _reason(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1] + _place(error)


def _place(error: BaseException) -> str:
    """The line of the author's own code: the end of the traceback."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _find_app(module: ModuleType, attribute: str) -> App:
    apps = [f"{module.__name__}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
    hint = f"; use {' or '.join(apps)}" if apps else f"; write {attribute} = ropewalk.App()"
    found: object = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UserMistake(f"module {module.__name__} has no variable {attribute!r}{hint}") from None
    if not isinstance(found, App):
        raise UserMistake(f"{module.__name__}:{attribute} is a {type(found).__name__}, not a ropewalk.App{hint}")
    return found


class Sources:
    """The source files of an app, for reloading it during development. Make it before the module is imported.

    These are the app's own module, and the modules that it imported from under the same root directory, later imports
    included. Installed modules and those imported before the app are excluded: other code holds references to them.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._others = frozenset(sys.modules) - {module}
        self._suspects: set[Path] = set()
        self._stamps: dict[Path, Stamp] = {}

    def changed(self) -> list[Path]:
        """Files that have changed since the last call. A file that is new to the list has not changed."""
        before, self._stamps = self._stamps, {path: _stamp(path) for path in self._files()}
        return [path for path, stamp in self._stamps.items() if path in before and before[path] != stamp]

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Within it the modules are imported again. An error restores the old ones."""
        old = self._modules()
        self._drop(old)
        try:
            yield
        except BaseException as error:
            self._suspects = {*self._files(), *(path for path in _mentioned_files(error) if self._is_ours(path))}
            self._drop(self._modules())
            sys.modules.update(old)
            raise
        self._suspects.clear()

    def _drop(self, modules: dict[str, ModuleType]) -> None:
        for name, module in modules.items():
            del sys.modules[name]
            _delete_bytecode(module)
        importlib.invalidate_caches()

    def _modules(self) -> dict[str, ModuleType]:
        """In the order of their import."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if name not in self._others and name.partition(".")[0] != SERVER and self._is_ours(_source_file(module))
        }

    def _files(self) -> set[Path]:
        return self._suspects.union(map(_source_file, self._modules().values()))

    @cached_property
    def _root(self) -> Path:
        """The directory that holds the app's outermost package, or its module."""
        outermost = sys.modules[self._module.partition(".")[0]]
        places = list(getattr(outermost, "__path__", ()))
        return Path(places[0]).parent if places else _source_file(outermost).parent

    def _is_ours(self, file: Path) -> bool:
        return file.is_relative_to(self._root) and INSTALLED.isdisjoint(file.parts) and file.suffix == ".py"


def _source_file(module: ModuleType) -> Path:
    """An empty path for a module without a file."""
    return Path(getattr(module, "__file__", None) or "")


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _delete_bytecode(module: ModuleType) -> None:
    # Python uses it if the source has the same size and was written in the same second.
    cached = getattr(module, "__cached__", None)
    if cached:
        with suppress(OSError):
            Path(cached).unlink(missing_ok=True)


def _mentioned_files(error: BaseException | None) -> Iterator[Path]:
    """The files in which an import failed. They may belong to no loaded module, and their author will correct them."""
    while error is not None:
        for frame in traceback.extract_tb(error.__traceback__):
            yield Path(frame.filename)
        if isinstance(error, SyntaxError) and error.filename:
            yield Path(error.filename)
        error = error.__cause__
