"""Java is found where people keep it, and where there is none they are told what to install."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline import jvm


def java(home: Path, version: str) -> Path:
    """A `java` that knows nothing but its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("said", "release"), [("1.8.0_392", 8), ("17.0.15", 17), ("25.0.2", 25)])
def test_the_release_is_read_from_what_java_says(said: str, release: int, tmp_path: Path) -> None:
    assert jvm.java_version(java(tmp_path, said)) == release


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    mine, other = java(tmp_path / "mine", "21.0.1"), java(tmp_path / "other", "17.0.1")

    assert jvm.find_java({"JAVA_HOME": str(tmp_path / "mine"), "PATH": str(other.parent)}) == mine


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "1.8.0_392"), java(tmp_path / "new", "17.0.1")

    assert jvm.find_java({"JAVA_HOME": str(old.parents[1]), "PATH": str(new.parent)}) == new


@pytest.mark.parametrize("nice", ["-5", "20", "high", "1.5", ""])
def test_what_is_no_priority_is_refused_before_anything_starts(nice: str) -> None:
    with pytest.raises(UserMistake, match=r"spark\.ropewalk\.nice is a number from 0 to 19"):
        jvm.start_jvm({jvm.NICE: nice})


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "find_spec", lambda name: None)
    old = java(tmp_path / "old", "1.8.0_392")

    with pytest.raises(UserMistake, match=r"java is Java 8.*'\.\[spark,jre\]'"):
        jvm.find_java({"JAVA_HOME": str(old.parents[1]), "PATH": ""})
