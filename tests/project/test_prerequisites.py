"""A missing program skips the tests that need it and is reported at the end of the run. With CI=true those tests fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.tier("standard")


HINTS = {
    "needs_node": "sudo apt-get install nodejs npm",
    "needs_chromium": "sudo apt-get install chromium",
    "needs_curl": "sudo apt-get install curl",
    "needs_caddy": "sudo apt-get install caddy",
}


def run_marked_tests(directory: Path, ci: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, with a test for each marker, that finds no program on its PATH."""
    test = directory / "test_marked.py"
    tests = (f"@pytest.mark.{marker}\ndef test_{marker}() -> None:\n    pass\n" for marker in HINTS)
    test.write_text("\n".join(["import pytest", *tests]))
    environ = {**os.environ, "PATH": str(directory), "CI": ci, "CHROMIUM": ""}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), *flags, str(test)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_tests_without_their_program_are_skipped_and_the_run_ends_with_the_hints(tmp_path: Path) -> None:
    done = run_marked_tests(tmp_path, "", "--numprocesses", "2")

    assert done.returncode == 0
    assert f"{len(HINTS)} skipped" in done.stdout
    assert "NOT TESTED" in done.stdout
    assert [hint for hint in HINTS.values() if hint not in done.stdout] == []


def test_tests_without_their_program_fail_under_ci_with_the_hint(tmp_path: Path) -> None:
    done = run_marked_tests(tmp_path, "true")

    assert done.returncode == 1
    assert f"{len(HINTS)} errors" in done.stdout
    assert [hint for hint in HINTS.values() if hint not in done.stdout] == []


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_the_installer_lists_the_packages_where_it_cannot_install_them(ci: str, code: int, tmp_path: Path) -> None:
    for program in ("cat", "id"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    script = ["/bin/sh", str(ROOT / "tests" / "install_prerequisites.sh")]
    done = subprocess.run(script, env={"PATH": str(tmp_path), "CI": ci}, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert "apt-get install nodejs npm chromium curl" in done.stderr
