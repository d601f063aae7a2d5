"""Finding the app of `module:attribute`, and the errors if there is none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.adapters.apps.python.loader import load_app, put_on_path
from ropewalk.channels import App
from ropewalk.model.errors import UserMistake
from tests.unit.adapters.apps.python.modules import Project, project


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Project]:
    with project(tmp_path) as files:
        yield files


def mistake(spec: str) -> UserMistake:
    with pytest.raises(UserMistake) as caught:
        load_app(spec)
    return caught.value


GOOD = "from ropewalk import App\napp = App()\nother = App()\nnumber = 7\nclass place:\n    inner = App()\n"


def test_app_is_found_by_module_and_attribute(files: Project) -> None:
    files.write("chat_a.py", GOOD)
    module = __import__("chat_a")
    assert load_app("chat_a:app") is module.app
    assert load_app("chat_a") is module.app
    assert load_app("chat_a:other") is module.other
    assert load_app("chat_a:place.inner") is module.place.inner


def test_app_is_found_in_a_package(files: Project) -> None:
    files.write("house/__init__.py", "")
    files.write("house/rooms/chat.py", GOOD)
    assert isinstance(load_app("house.rooms.chat:app"), App)


def test_missing_module_is_named(files: Project) -> None:
    files.write("cabin/__init__.py", "")
    assert str(mistake("nowhere_at_all:app")).startswith(f"there is no module nowhere_at_all in {files.root} ")
    assert str(mistake("cabin.nowhere:app")).startswith("there is no module cabin.nowhere in ")


def test_missing_dependency_of_a_module_is_named(files: Project) -> None:
    files.write("chat_b.py", "import not_installed.deep\n")
    error = mistake("chat_b:app")
    assert str(error) == "module chat_b needs not_installed, which is not installed"
    assert isinstance(error.__cause__, ModuleNotFoundError)


def test_module_that_fails_to_import_is_reported_with_reason_and_line(files: Project, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str, int]] = [
        ("chat_c", "a = 1\nb = a / 0\n", "ZeroDivisionError: division by zero", 2),
        ("chat_d", "\n\ndef oops(:\n", "SyntaxError: invalid syntax", 3),
        ("chat_e", "raise SystemExit('bye')\n", "SystemExit: bye", 1),
        ("chat_k", "raise KeyboardInterrupt\n", "KeyboardInterrupt", 1),
    ]
    for name, text, reason, line in rows:
        with subtests.test(name=name, text=text, reason=reason, line=line):
            path = files.write(f"{name}.py", text)
            assert str(mistake(f"{name}:app")) == f"module {name} cannot be imported: {reason} ({path}, line {line})"


def test_missing_attribute_is_reported_with_the_apps_of_the_module(files: Project) -> None:
    files.write("chat_f.py", GOOD)
    assert str(mistake("chat_f:application")) == "module chat_f has no variable 'application'; use chat_f:app or chat_f:other"
    files.write("chat_g.py", "")
    assert str(mistake("chat_g")) == "module chat_g has no variable 'app'; write app = ropewalk.App()"


def test_attribute_that_is_not_an_app_is_refused(files: Project) -> None:
    files.write("chat_h.py", GOOD)
    assert str(mistake("chat_h:number")) == "chat_h:number is a int, not a ropewalk.App; use chat_h:app or chat_h:other"


def test_file_name_is_refused_with_the_module_name() -> None:
    assert str(mistake("house/chat.py:app")) == "house/chat.py is a file: name the module, house.chat:app"


def test_invalid_module_names_are_refused(subtests: pytest.Subtests) -> None:
    for spec in ["", ":app", "a b:app", "a..b", "/tmp/chat:app"]:
        with subtests.test(spec=spec):
            assert "use module:attribute" in str(mistake(spec))


def test_directory_is_put_first_on_the_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    monkeypatch.chdir(tmp_path)
    put_on_path(".")
    put_on_path(str(tmp_path))
    assert sys.path == [str(tmp_path.resolve()), "elsewhere"]
