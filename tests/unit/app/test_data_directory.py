"""A directory that cannot be used is told with the setting that names it, and with the reason."""

import os
from pathlib import Path

import pytest

from ropewalk.app.data_directory import unusable
from ropewalk.app.journal import sessions_key
from ropewalk.app.takeover import ServerLock
from ropewalk.model.errors import UserMistake


async def refusals(directory: Path) -> set[str]:
    """Of the file that the key of kept sessions is in, and of the lock."""
    with pytest.raises(UserMistake) as without_secret:
        sessions_key(str(directory), b"")
    with pytest.raises(UserMistake) as with_secret:
        await ServerLock(str(directory)).take(0)
    return {str(without_secret.value), str(with_secret.value)}


async def test_a_file_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert await refusals(file) == {f"--data_dir {file} cannot be used: it is not a directory"}


async def test_a_directory_that_cannot_be_made_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    inside = tmp_path / "file" / "data"
    assert await refusals(inside) == {f"--data_dir {inside} cannot be used: it cannot be made: Not a directory"}


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is denied to root")
async def test_a_denial_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    data = tmp_path / "data"
    assert await refusals(data) == {f"--data_dir {data} cannot be used: it cannot be made: Permission denied"}
    assert await refusals(tmp_path) == {
        f"--data_dir {tmp_path} cannot be used: {name}: Permission denied" for name in ("sessions.key", "server")
    }


def test_a_denial_names_the_file(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", str(tmp_path / "server"))
    assert str(unusable(tmp_path, error)) == f"--data_dir {tmp_path} cannot be used: server: Permission denied"
