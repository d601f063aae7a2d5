"""Loads the App that `module:attribute` names. Errors tell its author what to correct."""

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ropewalk.channels import App
from ropewalk.model.errors import UserMistake

DEFAULT_ATTRIBUTE = "app"


def load_app(spec: str) -> App:
    """Raises UserMistake; its cause, if it has one, is what the author's own code raised."""
    module_name, attribute = split(spec)
    return _app_in(_imported(module_name), attribute)


def load_from(spec: str, directory: str) -> App:
    if directory:
        put_on_path(directory)
    return load_app(spec)


def split(spec: str) -> tuple[str, str]:
    """The module and the attribute of `chat:app`; `chat` alone is the same."""
    module, _, attribute = spec.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if module.endswith(".py"):
        dotted = ".".join(Path(module).with_suffix("").parts)
        raise UserMistake(f"{module} is a file: say the module, {dotted}:{attribute}")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UserMistake(f"{spec!r} names no app: say module:attribute, such as chat:app")
    return module, attribute


def put_on_path(directory: str) -> None:
    """Let modules of this directory be imported, before all others of the same name."""
    path = str(Path(directory).resolve())
    if sys.path[:1] != [path]:
        sys.path.insert(0, path)


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if _is_part(name, error.name or ""):
            raise UserMistake(
                f"there is no module {error.name} in {Path(sys.path[0]).absolute()} or elsewhere on the path"
            ) from None
        raise UserMistake(f"module {name} needs {error.name}, which is not there: is it installed?") from error
    except BaseException as error:  # sys.exit() in a module must not take a running server along
        raise UserMistake(f"module {name} cannot be imported: {_reason(error)}") from error


def _is_part(name: str, missing: str) -> bool:
    return name == missing or name.startswith(f"{missing}.")


def _reason(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1] + _place(error)


def _place(error: BaseException) -> str:
    """Where the author's own code was, which is where the traceback ends."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _app_in(module: ModuleType, attribute: str) -> App:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    there = f"; it has {', '.join(f'{module.__name__}:{name}' for name in apps)}" if apps else "; there is no App in it"
    found: object = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UserMistake(f"module {module.__name__} has no {attribute}{there}") from None
    if not isinstance(found, App):
        raise UserMistake(f"{module.__name__}:{attribute} is no ropewalk.App but a {type(found).__name__}{there}")
    return found
