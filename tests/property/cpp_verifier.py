"""The verifier that FlatBuffers generates for C++, as a program: reads sized frames, answers "1" for each valid one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ropewalk.protocol.broky import splitter

SCHEMA = Path(splitter.__file__).with_name("broky.fbs")
SOURCE = Path(__file__).with_name("broky_verifier.cpp")


def build_verifier(directory: Path) -> Path:
    """For tests marked `needs_flatc`. Skips the test without a C++ compiler."""
    compiler, flatc = shutil.which("g++"), shutil.which("flatc")
    assert flatc is not None
    if compiler is None:
        pytest.skip("apt-get install g++")
    subprocess.run([flatc, "--cpp", "-o", directory, SCHEMA], check=True)
    program = directory / "verifier"
    subprocess.run([compiler, "-O1", "-I", directory, "-o", program, SOURCE], check=True)
    return program
