"""Reload: a changed file replaces the app, a broken one keeps it, and sessions continue."""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.apps.python.application import PythonApplication
from ropewalk.core.stats import Stats
from ropewalk.model.application import Action, CallContext, CommandCall
from ropewalk.model.errors import UserMistake
from tests.unit.adapters.apps.python.modules import Project, project
from tests.unit.adapters.apps.python.running_apps import FakePublisher

CONTEXT = CallContext("s-1", ids="{}")
events: list[str] = []


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Project]:
    events.clear()
    with project(tmp_path) as files:
        yield files


def chat(stream: str, more: str = "") -> str:
    return f"""
from ropewalk import App, Channel
import {__name__} as test
from rooms_reloaded import suffix
app = App()
@app.on_startup
def up(): test.events.append("up {stream}")
@app.on_shutdown
def down(): test.events.append("down {stream}")
@app.channel
class Room(Channel):
    def subscribed(self): self.stream_from("{stream}" + suffix)
{more}
"""


@asynccontextmanager
async def running(files: Project, spec: str = "chat_reloaded:app") -> AsyncIterator[PythonApplication]:
    application = PythonApplication(spec, Stats(), reload=True, directory=str(files.root))
    await application.start(FakePublisher())
    try:
        yield application
    finally:
        await application.stop()


async def streams(application: PythonApplication) -> tuple[str, ...]:
    return (await application.command(CommandCall(CONTEXT, Action.SUBSCRIBE, '{"channel":"Room"}'))).streams


@pytest.fixture
def written(files: Project) -> Project:
    files.write("rooms_reloaded.py", "suffix = ''")
    files.write("chat_reloaded.py", chat("a"))
    return files


async def test_unchanged_files_cause_no_reload(written: Project) -> None:
    async with running(written) as application:
        assert not await application.reload_if_changed()
        assert events == ["up a"]
    assert events == ["up a", "down a"]


async def test_changed_file_reloads_the_app(written: Project) -> None:
    async with running(written) as application:
        assert await streams(application) == ("a",)
        written.write("chat_reloaded.py", chat("b"))
        assert await application.reload_if_changed()
        assert await streams(application) == ("b",)
        assert events == ["up a", "up b", "down a"]
        assert not await application.reload_if_changed()


async def test_changed_import_reloads_the_app(written: Project) -> None:
    async with running(written) as application:
        written.write("rooms_reloaded.py", "suffix = '!'")
        assert await application.reload_if_changed()
        assert await streams(application) == ("a!",)


async def test_change_within_the_same_second_and_of_the_same_size_is_detected(
    written: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    async with running(written) as application:
        path = written.write("chat_reloaded.py", chat("b"))
        assert await application.reload_if_changed()
        path.write_text(chat("c"))
        os.utime(path, ns=(path.stat().st_atime_ns, 1_700_000_003 * 10**9 + 7))
        assert await application.reload_if_changed()
        assert await streams(application) == ("c",)


@pytest.mark.parametrize("broken", ["def (:\n", "1 / 0\n", "import not_there_at_all\n", "app = 7\n", ""])
async def test_broken_file_keeps_the_running_app(written: Project, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running(written) as application:
        modules = {name: sys.modules[name] for name in ("chat_reloaded", "rooms_reloaded")}
        written.write("chat_reloaded.py", broken)
        assert not await application.reload_if_changed()
        assert await streams(application) == ("a",)
        assert "app not reloaded" in caplog.text
        assert modules == {name: sys.modules[name] for name in modules}
        caplog.clear()
        assert not await application.reload_if_changed()
        assert caplog.text == ""
        written.write("chat_reloaded.py", chat("b"))
        assert await application.reload_if_changed()
        assert await streams(application) == ("b",)


async def test_import_error_is_logged_with_its_traceback(written: Project, caplog: pytest.LogCaptureFixture) -> None:
    async with running(written) as application:
        written.write("chat_reloaded.py", "def boom():\n    1 / 0\nboom()\n")
        assert not await application.reload_if_changed()
    assert "in boom" in caplog.text


async def test_failed_startup_handler_keeps_the_running_app(written: Project) -> None:
    async with running(written) as application:
        old = sys.modules["chat_reloaded"]
        written.write("chat_reloaded.py", chat("b", "@app.on_startup\ndef bad(): raise OSError('no pool')"))
        assert not await application.reload_if_changed()
        assert await streams(application) == ("a",)
        assert sys.modules["chat_reloaded"] is old


async def test_new_file_of_a_failed_import_is_watched(written: Project) -> None:
    async with running(written) as application:
        written.write("fresh_reloaded.py", "def (:\n")
        written.write("chat_reloaded.py", chat("b", "import fresh_reloaded"))
        assert not await application.reload_if_changed()
        assert not await application.reload_if_changed()
        written.write("fresh_reloaded.py", "")
        assert await application.reload_if_changed()
        assert await streams(application) == ("b",)


async def test_file_removed_and_restored_reloads_the_app(written: Project) -> None:
    async with running(written) as application:
        (written.root / "rooms_reloaded.py").unlink()
        assert not await application.reload_if_changed()
        written.write("rooms_reloaded.py", "suffix = '?'")
        assert await application.reload_if_changed()
        assert await streams(application) == ("a?",)


async def test_installed_modules_and_earlier_imports_are_not_reloaded(files: Project) -> None:
    files.write("others_reloaded.py", "suffix = ''")
    others = __import__("others_reloaded")
    files.write("site-packages/library_reloaded.py", "")
    sys.path.insert(0, str(files.root / "site-packages"))
    files.write("rooms_reloaded.py", "from others_reloaded import suffix")
    files.write("chat_reloaded.py", chat("a", "import library_reloaded"))
    async with running(files) as application:
        library = sys.modules["library_reloaded"]
        files.write("others_reloaded.py", "suffix = 'x'")
        files.write("site-packages/library_reloaded.py", "changed = 1")
        assert not await application.reload_if_changed()
        files.write("chat_reloaded.py", chat("b", "import library_reloaded"))
        assert await application.reload_if_changed()
        assert sys.modules["library_reloaded"] is library
        assert sys.modules["others_reloaded"] is others


async def test_package_is_reloaded_as_a_whole(files: Project) -> None:
    files.write("rooms_reloaded.py", "suffix = ''")
    files.write("house_reloaded/__init__.py", "from house_reloaded.names import stream")
    files.write("house_reloaded/names.py", "stream = 'one'")
    files.write(
        "house_reloaded/chat.py",
        """
        from ropewalk import App, Channel
        from house_reloaded import stream
        from rooms_reloaded import suffix
        app = App()
        @app.channel
        class Room(Channel):
            def subscribed(self): self.stream_from(stream + suffix)
        """,
    )
    async with running(files, "house_reloaded.chat") as application:
        assert await streams(application) == ("one",)
        files.write("house_reloaded/names.py", "stream = 'two'")
        assert await application.reload_if_changed()
        assert await streams(application) == ("two",)
        files.write("rooms_reloaded.py", "suffix = '!'")
        assert await application.reload_if_changed()
        assert await streams(application) == ("two!",)


async def test_module_imported_by_a_handler_is_watched(written: Project) -> None:
    written.write("later_reloaded.py", "stream = 'x'")
    handler = "    def unsubscribed(self):\n        import later_reloaded\n        self.broadcast(later_reloaded.stream, 1)"
    written.write("chat_reloaded.py", chat("a", handler))
    leaving = CommandCall(CONTEXT, Action.UNSUBSCRIBE, '{"channel":"Room"}')
    async with running(written) as application:
        assert (await application.command(leaving)).publications[0].stream == "x"
        assert not await application.reload_if_changed()
        written.write("later_reloaded.py", "stream = 'y'")
        assert await application.reload_if_changed()
        assert (await application.command(leaving)).publications[0].stream == "y"


async def test_app_that_cannot_be_imported_prevents_the_start(files: Project, caplog: pytest.LogCaptureFixture) -> None:
    files.write("chat_reloaded.py", "1 / 0")
    application = PythonApplication("chat_reloaded:app", Stats(), reload=True, directory=str(files.root))
    with pytest.raises(UserMistake, match="ZeroDivisionError"):
        await application.start(FakePublisher())
    assert "Traceback" in caplog.text
