"""What `make dist` builds, once for all tests here."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import GENERATED, ROOT


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build context of the container: the files that .dockerignore includes."""
    place = tmp_path_factory.mktemp("context")
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            copy = shutil.copytree if path.is_dir() else shutil.copy2
            copy(path, place / path.name)
    for path in [path for path in place.rglob("*") if GENERATED.search(path.name)]:
        shutil.rmtree(path, ignore_errors=True)
    return place


@pytest.fixture(scope="session")
def built(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution."""
    place = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(context)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return place


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found
