"""The page on testing adapters: its example archive passes the suite, and it lists every suite and hook parameter."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ropewalk.testing.application_rig import ApplicationSetup
from ropewalk.testing.backend_rig import BackendSetup
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "test-adapters.md"
NAME = re.compile(r"# (\S+\.(?:py|ini))\n")


@pytest.mark.tier("standard")
def test_the_example_archive_passes_the_suite(tmp_path: Path) -> None:
    files = {match[1]: block.text for block in blocks(PAGE) if (match := NAME.match(block.text))}
    assert files.keys() == {"pytest.ini", "conftest.py", "lines.py", "test_lines.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)
    assert "Warning" not in done.stdout + done.stderr


def test_every_conformance_suite_is_on_the_page() -> None:
    page = PAGE.read_text()
    for module in ("application", "archive", "auth", "backend", "journal", "rows", "staging"):
        name = f"ropewalk.testing.{module}"
        shipped = import_module(name)
        own = [each for each, value in vars(shipped).items() if isinstance(value, type) and value.__module__ == name]
        suites = [each for each in getattr(shipped, "__all__", own) if each.endswith(("Conformance", "Suite"))]
        assert suites
        assert [suite for suite in suites if f"{suite}`" not in page] == []


def test_every_field_of_a_setup_hook_is_on_the_page() -> None:
    page = PAGE.read_text()
    fields = (*BackendSetup.__struct_fields__, *ApplicationSetup.__struct_fields__)
    assert [field for field in fields if f"`{field}`" not in page] == []
