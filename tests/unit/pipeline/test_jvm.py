"""Finding a suitable Java, and the hint what to install without one."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline import jvm


def java(home: Path, version: str) -> Path:
    """Writes a `java` script that prints a version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    program.chmod(0o755)
    return program


def test_release_is_read_from_the_version_text(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int]] = [("1.8.0_392", 8), ("17.0.15", 17), ("25.0.2", 25)]
    for text, release in cases:
        with subtests.test(text=text):
            assert jvm.java_version(java(tmp_path / text, text)) == release


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    mine, other = java(tmp_path / "mine", "21.0.1"), java(tmp_path / "other", "17.0.1")

    assert jvm.find_java({"JAVA_HOME": str(tmp_path / "mine"), "PATH": str(other.parent)}) == mine


def test_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "1.8.0_392"), java(tmp_path / "new", "17.0.1")

    assert jvm.find_java({"JAVA_HOME": str(old.parents[1]), "PATH": str(new.parent)}) == new


def test_invalid_priority_is_rejected_before_the_jvm_starts(subtests: pytest.Subtests) -> None:
    for nice in ["-5", "20", "high", "1.5", ""]:
        message = r"spark\.ropewalk\.nice is a number from 0 to 19"
        with subtests.test(nice=nice), pytest.raises(UserMistake, match=message):
            jvm.start_jvm({jvm.NICE: nice})


def test_missing_java_is_reported_with_the_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "find_spec", lambda name: None)
    old = java(tmp_path / "old", "1.8.0_392")

    with pytest.raises(UserMistake, match=r"java is Java 8.*'\.\[spark,jre\]'"):
        jvm.find_java({"JAVA_HOME": str(old.parents[1]), "PATH": ""})
