"""Errors about an unusable data directory name the setting and the reason."""

import os
from pathlib import Path

import pytest

from ropewalk.app.data_directory import unusable
from ropewalk.app.journal import sessions_key
from ropewalk.app.takeover import ServerLock
from ropewalk.model.errors import UserMistake


async def errors(directory: Path) -> set[str]:
    """The errors of reading the session key and of taking the lock."""
    with pytest.raises(UserMistake) as without_secret:
        sessions_key(str(directory), b"")
    with pytest.raises(UserMistake) as with_secret:
        await ServerLock(str(directory)).take(0)
    return {str(without_secret.value), str(with_secret.value)}


async def test_file_instead_of_a_directory_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert await errors(file) == {f"--data_dir {file} cannot be used: it is not a directory"}


async def test_failure_to_create_the_directory_is_reported_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "data"
    assert await errors(inside) == {f"--data_dir {inside} cannot be used: it cannot be created: Not a directory"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root ignores permissions")
async def test_denied_permission_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    data = tmp_path / "data"
    assert await errors(data) == {f"--data_dir {data} cannot be used: it cannot be created: Permission denied"}
    assert await errors(tmp_path) == {
        f"--data_dir {tmp_path} cannot be used: {name}: Permission denied" for name in ("sessions.key", "server")
    }


def test_denied_permission_names_the_file(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", str(tmp_path / "server"))
    assert str(unusable(tmp_path, error)) == f"--data_dir {tmp_path} cannot be used: server: Permission denied"
