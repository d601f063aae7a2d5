"""The page on testing channels: its tests pass unchanged, next to the chat example and without settings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "test-channels.md"
CHAT = ROOT / "examples" / "chat_channels" / "chat.py"


@pytest.mark.tier("standard")
def test_tests_of_the_page_pass(tmp_path: Path) -> None:
    shutil.copy(CHAT, tmp_path)
    (tmp_path / "test_chat.py").write_text(next(block.text for block in blocks(PAGE) if block.language == "python"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
