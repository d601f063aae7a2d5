"""Tests that cannot run here are told loudly, and under CI they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pytest_run_on_a_bare_machine(directory: Path, marker: str, ci: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """One test with the marker, in a pytest of its own that finds no program on its PATH."""
    test = directory / "test_marked.py"
    test.write_text(f"import pytest\n\n@pytest.mark.{marker}\ndef test_marked() -> None:\n    pass\n")
    environ = {**os.environ, "PATH": str(directory), "CI": ci, "CHROMIUM": ""}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), *flags, str(test)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("marker", "hint"),
    [
        ("needs_node", "sudo apt-get install nodejs npm"),
        ("needs_chromium", "sudo apt-get install chromium"),
        ("needs_curl", "sudo apt-get install curl"),
        ("needs_caddy", "sudo apt-get install caddy"),
    ],
)
class TestWhereAPrerequisiteIsMissing:
    def test_a_test_is_skipped_and_the_run_ends_with_the_hint(self, marker: str, hint: str, tmp_path: Path) -> None:
        done = pytest_run_on_a_bare_machine(tmp_path, marker, ci="")

        assert done.returncode == 0
        assert "1 skipped" in done.stdout
        assert "NOT TESTED" in done.stdout
        assert hint in done.stdout

    def test_under_ci_a_test_fails_with_the_hint(self, marker: str, hint: str, tmp_path: Path) -> None:
        done = pytest_run_on_a_bare_machine(tmp_path, marker, ci="true")

        assert done.returncode == 1
        assert "1 skipped" not in done.stdout
        assert hint in done.stdout


def test_the_hint_comes_also_from_other_processes_that_run_the_tests(tmp_path: Path) -> None:
    done = pytest_run_on_a_bare_machine(tmp_path, "needs_curl", "", "--numprocesses", "2")

    assert "1 skipped" in done.stdout
    assert "NOT TESTED" in done.stdout


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_the_installer_says_what_to_install_where_it_cannot_do_it_itself(ci: str, code: int, tmp_path: Path) -> None:
    for program in ("cat", "id"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    script = ["/bin/sh", str(ROOT / "tests" / "install_prerequisites.sh")]
    done = subprocess.run(script, env={"PATH": str(tmp_path), "CI": ci}, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert "apt-get install nodejs npm chromium curl" in done.stderr
