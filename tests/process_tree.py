"""The processes of a server with several workers, as the system shows them."""

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path

import msgspec

from ropewalk.app.process_role import VARIABLE, ProcessKind, Role
from tests.server import RunningServer

ACCEPT_SECONDS = 60.0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(server: RunningServer) -> dict[int, Role]:
    """Roles by process id, as the supervisor set them."""
    pid = server.process.pid
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # it has just ended, or has not executed the program yet
            found[int(child)] = _role(int(child))
    return found


def _role(pid: int) -> Role:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    written = next((each for each in variables if each.startswith(VARIABLE.encode())), b"=")
    return msgspec.json.decode(written.partition(b"=")[2], type=Role)


def workers(server: RunningServer) -> dict[int, Role]:
    return {pid: role for pid, role in children(server).items() if role.kind is ProcessKind.WORKER}


def store(server: RunningServer) -> int:
    [pid] = [pid for pid, role in children(server).items() if role.kind is ProcessKind.STORE]
    return pid


def keeper(server: RunningServer) -> int:
    """The process that writes the journal: the only one, or the store."""
    return store(server) if children(server) else server.process.pid


def peak_memory(server: RunningServer) -> int:
    """The sum of the peak sizes of its processes, in bytes."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (server.process.pid, *children(server))]
    return sum(int(size) * 1024 for status in statuses for size in re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE))


def directory(server: RunningServer) -> Path:
    [found] = {role.directory for role in children(server).values()}
    return Path(found)


def worker_of(server: RunningServer, port: int) -> int:
    """The process that has accepted a client's connection over IPv4 from this port."""
    [pid] = _workers_of(server, port)
    return pid


async def accepted_by(server: RunningServer, port: int) -> int:
    """The same for a connection that may not be accepted yet."""
    deadline = time.monotonic() + ACCEPT_SECONDS
    while not _workers_of(server, port):
        assert time.monotonic() < deadline, "no worker has accepted the connection"
        await asyncio.sleep(0.01)
    return worker_of(server, port)


def _workers_of(server: RunningServer, port: int) -> list[int]:
    local, remote = f":{server.port:04X}", f":{port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {line[9] for line in lines if line[1].endswith(local) and line[2].endswith(remote)}
    return [pid for pid in workers(server) if inodes & _inodes(pid)]


def connections(server: RunningServer) -> dict[int, int]:
    """Number of client connections over IPv4 by worker."""
    local, established = f":{server.port:04X}", "01"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {line[9] for line in lines if line[1].endswith(local) and line[3] == established}
    return {pid: len(inodes & _inodes(pid)) for pid in workers(server)}


def _inodes(pid: int) -> set[str]:
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
    return found
