"""Locks a data directory for one server, and takes it over from a running server.

A running server locks the file `server` in the data directory, which has its process id. A server that takes over first listens
on the same port, then ends the other server, and opens the journal once the lock is free. Connections that arrive meanwhile
wait in the queue of its socket.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from pathlib import Path

import msgspec

from ropewalk.app.data_directory import unusable
from ropewalk.model.errors import UserMistake

logger = logging.getLogger("ropewalk.server")

FILE = "server"
POLL_SECONDS = 0.02
ENDING_SECONDS = 30.0
"""How long the start waits for the store process of a killed server, which seals the journal."""

_MAX_BYTES = 4096


class Holder(msgspec.Struct, frozen=True):
    """A process, distinct from a later one with the same id or one in another container."""

    pid: int
    started: str = ""
    namespace: str = ""


def process(pid: int) -> Holder | None:
    """None without such a process (zombies included), or if the system has no /proc."""
    try:
        # The name of the program is in parentheses and may hold anything; the state is field 3, the start time field 22.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else Holder(pid, fields[19], os.readlink("/proc/self/ns/pid"))
    except (OSError, IndexError):
        return None


class ServerLock:
    """`take` it, then `release` it as the last step of a shutdown. `pid`: the process to signal for a takeover, by default this
    one."""

    def __init__(self, data_dir: str, pid: int = 0) -> None:
        self._path = Path(data_dir) / FILE
        self._pid = pid or os.getpid()
        self._fd = -1

    async def take(self, timeout: float) -> None:
        """End the server that holds the lock and wait for it. Raises UserMistake after `timeout` seconds. With 0, do not end a
        running server, and wait only for remaining processes of a killed one."""
        if self._try():
            return
        if timeout:
            self._request_end()
        elif self._is_left_over():
            logger.info("waiting for the processes of a killed server to end")
        else:
            raise UserMistake(f"another server uses {self._path.parent}; end it first, or start both with --takeover")
        seconds = timeout or ENDING_SECONDS
        try:
            async with asyncio.timeout(seconds):
                while not self._try():  # noqa: ASYNC110 - the kernel has no event for a free lock
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise UserMistake(f"the server that uses {self._path.parent} did not end within {seconds:g} s") from None
        logger.info("took over", extra={"data_dir": str(self._path.parent)})

    def _is_left_over(self) -> bool:
        """Whether the process named in the lock is dead, although another one holds the lock. Known only within our own PID
        namespace."""
        holder, ours = self._holder(), process(os.getpid())
        known = holder is not None and ours is not None and holder.namespace == ours.namespace
        return known and holder is not None and process(holder.pid) != holder

    def _try(self) -> bool:
        try:
            self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(self._path.parent, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, msgspec.json.encode(process(self._pid) or Holder(self._pid)), 0)
        self._fd = fd
        return True

    def _request_end(self) -> None:
        holder = self._holder()
        if holder is None or holder.pid == self._pid or process(holder.pid) != holder:
            logger.warning("waiting for the other server to end; it cannot be signalled from here, so send it SIGTERM")
            return
        logger.info("taking over", extra={"pid": holder.pid})
        try:
            os.kill(holder.pid, signal.SIGTERM)
        except OSError as error:
            logger.warning("the other server cannot be signalled", extra={"pid": holder.pid, "reason": str(error)})

    def _holder(self) -> Holder | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._path.read_bytes()[:_MAX_BYTES], type=Holder)
        return None

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
