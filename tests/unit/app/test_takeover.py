"""One server a data directory: who holds it is known for sure, or nobody is told to end."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ropewalk.app.takeover import FILE, Holder, ServerLock, process
from ropewalk.model.errors import UserMistake

HOLD = """
import asyncio, sys
from ropewalk.app.takeover import ServerLock
lock = ServerLock(sys.argv[1])
asyncio.run(lock.take(0))
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the directory."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"holds\n"
    yield other
    other.kill()
    other.communicate()


async def test_a_directory_that_is_held_is_refused(tmp_path: Path, holding: subprocess.Popen[bytes]) -> None:
    with pytest.raises(UserMistake, match="--takeover"):
        await ServerLock(str(tmp_path)).take(0)
    assert holding.poll() is None


async def test_who_holds_it_is_told_to_end_and_waited_for(tmp_path: Path, holding: subprocess.Popen[bytes]) -> None:
    lock = ServerLock(str(tmp_path))
    await lock.take(15)
    assert holding.wait(15) == -signal.SIGTERM
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=Holder).pid == os.getpid()
    lock.release()
    await ServerLock(str(tmp_path)).take(0)


@pytest.mark.parametrize("change", [{"started": "1"}, {"namespace": "pid:[1]"}])
async def test_a_process_that_only_has_the_same_number_is_left_alone(
    tmp_path: Path, holding: subprocess.Popen[bytes], change: dict[str, str]
) -> None:
    known = process(holding.pid)
    assert known is not None
    (tmp_path / FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(known, **change)))
    with pytest.raises(UserMistake, match="did not end"):
        await ServerLock(str(tmp_path)).take(0.1)
    assert holding.poll() is None


async def test_what_the_file_says_cannot_make_it_fail(tmp_path: Path, holding: subprocess.Popen[bytes]) -> None:
    (tmp_path / FILE).write_bytes(b"\xff nonsense")
    waiting = asyncio.create_task(ServerLock(str(tmp_path)).take(15))
    holding.terminate()
    await waiting


async def test_another_process_can_be_named_as_the_one_to_tell(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    lock, next_one = ServerLock(str(tmp_path), supervisor.pid), ServerLock(str(tmp_path))
    await lock.take(0)
    taking = asyncio.create_task(next_one.take(15))
    assert await asyncio.to_thread(supervisor.wait, 15) == -signal.SIGTERM
    supervisor.communicate()
    lock.release()
    await taking
    next_one.release()


async def test_a_store_that_is_started_again_does_not_end_its_own_supervisor(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    former = ServerLock(str(tmp_path), supervisor.pid)
    await former.take(0)
    with pytest.raises(UserMistake, match="did not end"):
        await ServerLock(str(tmp_path), supervisor.pid).take(0.1)
    assert supervisor.poll() is None
    supervisor.kill()
    supervisor.communicate()
    former.release()
