"""The lock of a data directory: takeover stops its holder, and only if the holder is identified for certain."""

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

HOLDER_PROGRAM = """
import asyncio, sys
from ropewalk.app.takeover import ServerLock
lock = ServerLock(sys.argv[1])
asyncio.run(lock.take(0))
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER_PROGRAM, str(tmp_path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"holds\n"
    yield other
    other.kill()
    other.communicate()


def assert_not_signalled(process: subprocess.Popen[bytes]) -> None:
    """The process ends by itself once it is let. A signal that was sent before would end it first."""
    process.communicate(timeout=60)
    assert process.returncode == 0


async def test_locked_directory_is_rejected(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(UserMistake, match="--takeover"):
        await ServerLock(str(tmp_path)).take(0)
    assert_not_signalled(holder)


async def test_takeover_stops_the_holder_and_waits_for_its_exit(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    lock = ServerLock(str(tmp_path))
    await lock.take(60)
    assert holder.wait(60) == -signal.SIGTERM
    assert msgspec.json.decode((tmp_path / FILE).read_bytes(), type=Holder).pid == os.getpid()
    lock.release()
    await ServerLock(str(tmp_path)).take(0)


@pytest.mark.parametrize("change", [{"started": "1"}, {"namespace": "pid:[1]"}])
async def test_process_with_a_reused_pid_is_not_stopped(
    tmp_path: Path, holder: subprocess.Popen[bytes], change: dict[str, str]
) -> None:
    known = process(holder.pid)
    assert known is not None
    (tmp_path / FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(known, **change)))
    with pytest.raises(UserMistake, match="did not end"):
        await ServerLock(str(tmp_path)).take(0.1)
    assert_not_signalled(holder)


async def test_invalid_lock_file_does_not_fail_the_takeover(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    (tmp_path / FILE).write_bytes(b"\xff nonsense")
    waiting = asyncio.create_task(ServerLock(str(tmp_path)).take(60))
    holder.terminate()
    await waiting


async def test_takeover_stops_the_supervisor_that_the_lock_names(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    lock, successor = ServerLock(str(tmp_path), supervisor.pid), ServerLock(str(tmp_path))
    await lock.take(0)
    taking = asyncio.create_task(successor.take(60))
    assert await asyncio.to_thread(supervisor.wait, 60) == -signal.SIGTERM
    supervisor.communicate()
    lock.release()
    await taking
    successor.release()


async def test_restarted_store_does_not_stop_its_own_supervisor(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    former = ServerLock(str(tmp_path), supervisor.pid)
    await former.take(0)
    with pytest.raises(UserMistake, match="did not end"):
        await ServerLock(str(tmp_path), supervisor.pid).take(0.1)
    assert_not_signalled(supervisor)
    former.release()


async def test_store_of_a_killed_supervisor_is_waited_for(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    store, successor = ServerLock(str(tmp_path), supervisor.pid), ServerLock(str(tmp_path))
    await store.take(0)
    with pytest.raises(UserMistake, match="another server uses"):
        await successor.take(0)
    supervisor.kill()
    supervisor.communicate()
    starting = asyncio.create_task(successor.take(0))
    await asyncio.sleep(0)
    assert not starting.done()
    store.release()
    await starting
    successor.release()
