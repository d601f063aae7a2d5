"""Virtual environments of their own, as users make them."""

import os
import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = re.compile(r"__pycache__|\.egg-info")


def installed(place: Path, *words: str) -> Path:
    """A new virtual environment, into which pip has installed these."""
    venv.create(place, with_pip=False, symlinks=True)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    outer = sys.executable if find_spec("pip") else "python3"  # an environment made without ensurepip has no pip of its own
    pip = [outer, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet", *words]
    ended = subprocess.run(pip, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return place
