"""Files that a server writes: other users of the machine cannot read them, whatever the umask."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import publish, running_server


def readable_by_others(root: Path) -> list[str]:
    """Files below `root` that others can reach and read: each has a mode of its own, or is in a directory that is private."""
    return [
        f"{path.relative_to(root)} {path.stat().st_mode:o}"
        for path in sorted(root.rglob("*"))
        if path.is_file() and all(each.stat().st_mode & 0o077 for each in (path, *path.parents) if each.is_relative_to(root))
    ]


@pytest.mark.parametrize("existing", [False, True], ids=["new directory", "directory of the operator"])
async def test_data_directory_is_private(tmp_path: Path, existing: bool) -> None:
    data = tmp_path / "data"
    if existing:
        data.mkdir(0o755)
    with running_server("--public", "--data_dir", str(data)) as server:
        await publish(server, "private", "1")
        assert server.stop() == 0
    assert data.stat().st_mode & 0o777 == (0o755 if existing else 0o700)
    assert readable_by_others(data) == []
    backup = tmp_path / "backup"
    command = [sys.executable, "-m", "ropewalk", "journal", "backup", str(data), "--to", str(backup)]
    subprocess.run(command, check=True, timeout=60)
    assert readable_by_others(backup) == []


@pytest.mark.parametrize("place", ["data_dir", "enats_store_dir"])
async def test_directory_of_the_embedded_nats_server_is_private(tmp_path: Path, place: str) -> None:
    flags = ("--public", "--broker", "nats", "--embed_nats", "--enats_addr", "nats://127.0.0.1:0")
    data = tmp_path / "data"
    with running_server(*flags, f"--{place}", str(data)) as server:
        await publish(server, "private", "1")
        assert server.stop() == 0
    assert any(data.rglob("*.blk"))
    assert readable_by_others(data) == []
