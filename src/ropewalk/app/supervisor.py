"""The supervisor of a server with several processes: one store, and workers that all listen on the same port.

It starts and restarts them, kills workers that hang, replaces all workers on SIGHUP, and stops them in order: workers first,
since they save their sessions in the store. It has no clients itself. Child processes detect when it ends.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from ropewalk import __version__
from ropewalk.adapters.endpoints.sockets import (
    UNIX_PREFIX,
    Listening,
    bound_sockets,
    inherited_sockets,
    listening_urls,
    reserved_sockets,
)
from ropewalk.app import embedded_nats, logs
from ropewalk.app.child_process import Child, KeptProcess, noticed
from ropewalk.app.control_channel import ProcessCommand
from ropewalk.app.process_end import StopSignals
from ropewalk.app.process_role import ProcessKind, Role, own_settings
from ropewalk.app.settings import Settings, SettingsCopy, require_startable
from ropewalk.model.errors import RopewalkError, UserMistake

logger = logging.getLogger("ropewalk.supervisor")

SPARE_SECONDS = 10.0
"""After --shutdown_timeout, before a worker is killed."""


class Supervisor:
    """Runs until a signal ends it.

    Args:
        find: returns the path of the settings file.
        load: reads the settings with a copy of that file.
        announce: called with the addresses once all processes serve.
    """

    def __init__(
        self,
        settings: Settings,
        find: Callable[[], Path | None],
        load: Callable[[SettingsCopy], Settings],
        announce: Callable[[list[str]], None],
    ) -> None:
        self._settings = settings
        self._find = find
        self._load = load
        self._announce = announce
        self._store = KeptProcess(self._launch_store)
        self._kept: list[KeptProcess] = []
        self._workers: list[KeptProcess] = []
        self._watch = HangWatch[Child]()
        self._last_number = 0
        self._stop_signals = StopSignals()
        self._hung_up = asyncio.Event()

    async def run(self) -> None:
        """If the first start of a process fails, stops all and raises UserMistake or StartFailed."""
        loop = asyncio.get_running_loop()
        with _listening(self._settings) as sockets, _private_directory() as directory, _pipe() as (reading, writing):
            self._others = reading, writing
            self._role = self._role_of_all(sockets, directory)
            self._copy_settings_file()
            own = self._settings.server
            urls = listening_urls(sockets, bool(own.ssl_cert), own.host, own.tcp_port)
            serving = loop.create_task(self._serve(urls))
            loop.add_signal_handler(signal.SIGCHLD, self._look)
            loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._signalled, serving)
            try:
                await asyncio.wait([serving])
                if not serving.cancelled():
                    serving.result()
            finally:
                self._workers = []  # from now on `_retire` kills workers that hang
                await self._stop()

    def _role_of_all(self, sockets: list[Listening], directory: str) -> Role:
        settings, shared = self._settings, sockets[0].listens
        return Role(
            directory=directory,
            host=settings.server.host,
            port=0 if shared else sockets[0].sock.getsockname()[1],
            sockets=tuple(each.sock.fileno() for each in sockets) if shared else (),
            supervisor=os.getpid(),
            data_dir=settings.journal.data_dir,
            nats_address=embedded_nats.client_url(settings) if settings.enats.embed_nats else "",
        )

    async def _serve(self, addresses: list[str]) -> None:
        workers = self._settings.server.workers
        logger.info("ropewalk %s", __version__, extra={"addresses": " ".join(addresses), "workers": workers})
        self._kept.append(self._store)
        await self._store.start()
        self._workers = await self._started(workers)
        self._announce(addresses)
        self._ping_workers()
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            await self._renew()

    def _launch_store(self) -> Child:
        return Child(replace(self._role, kind=ProcessKind.STORE, others=self._others[0], sockets=()))

    def _launch_worker(self, number: int, workers: int) -> Child:
        role = replace(self._role, kind=ProcessKind.WORKER, number=number, workers=workers, others=self._others[1])
        return Child(role)

    async def _started(self, count: int) -> list[KeptProcess]:
        """Start `count` workers and wait until all are ready. If one fails, stop all of them and raise its error."""
        fresh = []
        for _ in range(count):
            self._last_number += 1
            fresh.append(KeptProcess(partial(self._launch_worker, self._last_number, count)))
        self._kept += fresh
        starting = [asyncio.ensure_future(worker.start()) for worker in fresh]
        for start in starting:
            start.add_done_callback(noticed)  # only one failure is reported: the others most likely have the same cause
        await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
        if failures := [error for start in starting if start.done() and (error := start.exception())]:
            await self._retire(fresh)
            await asyncio.wait(starting)
            raise next((error for error in failures if isinstance(error, UserMistake)), failures[0])
        return fresh

    async def _retire(self, workers: list[KeptProcess]) -> None:
        longest = self._settings.operations.shutdown_timeout + SPARE_SECONDS
        await asyncio.gather(*(worker.retire(longest) for worker in workers))
        self._kept = [each for each in self._kept if each not in workers]

    def _ping_workers(self) -> None:
        """Repeats itself. Starting workers are not pinged, nor retired ones, whose end `_retire` bounds."""
        loop = asyncio.get_running_loop()
        loop.call_later(LOOK_SECONDS, self._ping_workers)
        serving = [worker.child for worker in self._workers if worker.child is not None and worker.child.serves]
        for child in self._watch.look(loop.time(), {child: child.answers for child in serving}):
            logger.error(
                "%s hangs; killing it",
                child.name,
                extra={"pid": child.pid, "seconds": LOOK_SECONDS * MAX_UNANSWERED},
            )
            child.signal(signal.SIGKILL)
        for child in serving:
            child.send(ProcessCommand.PING)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """On SIGCHLD, which may stand for several children."""
        for each in self._kept:
            each.look()

    def _signalled(self, serving: "asyncio.Task[None]") -> None:
        if self._stop_signals.means_now(asyncio.get_running_loop().time()):
            for each in self._kept:
                each.kill()
            raise SystemExit(1)
        serving.cancel()

    async def _stop(self) -> None:
        workers = [each for each in self._kept if each is not self._store]
        for worker in workers:
            worker.send(ProcessCommand.SERVER_ENDS)
        await self._retire(workers)
        await self._store.retire(None)  # never cut short: it seals the journal

    async def _renew(self) -> None:
        """On SIGHUP: replace all workers, with the current settings. Invalid settings do not stop the server."""
        logger.info("replacing all workers")
        role, copy = self._role, self._role.settings_copy.path
        before = copy.read_bytes()
        try:
            self._copy_settings_file()
            settings = self._checked()
            fresh = await self._started(settings.server.workers)
        except (RopewalkError, OSError) as error:
            self._role = role
            copy.write_bytes(before)
            logger.error("settings not reloaded, the old ones stay in effect", extra={"reason": str(error)})
            return
        different = " ".join(self._changed(settings)) or "nothing"
        self._settings, old, self._workers = settings, self._workers, fresh
        self._store.send(ProcessCommand.RELOAD)
        # All of them, before the first one disconnects its clients, so that these reconnect to new workers.
        for worker in old:
            worker.send(ProcessCommand.STOP_LISTENING)
        for worker in old:
            await self._retire([worker])
        logger.info("all workers were replaced", extra={"workers": len(fresh), "changed": different})

    def _copy_settings_file(self) -> None:
        """For processes started from now on."""
        path = self._find()
        self._role.settings_copy.path.write_bytes(b"" if path is None else path.read_bytes())
        self._role = replace(self._role, settings_file="" if path is None else str(path))

    def _changed(self, settings: Settings) -> list[str]:
        from ropewalk.app.reload import changed  # late: imports all parts of a server

        return changed(self._settings, settings)

    def _checked(self) -> Settings:
        from ropewalk.app.reload import needs_full_restart, require_reloadable  # late: imports all parts of a server

        settings = self._load(self._role.settings_copy)
        require_startable(settings)
        if names := needs_full_restart(self._settings, settings):
            raise UserMistake(f"these settings need a full restart: {' '.join(names)}")
        store = replace(self._role, kind=ProcessKind.STORE)
        require_reloadable(own_settings(store, self._settings), own_settings(store, settings), whole=False)
        logging_settings = settings.logging
        logs.configure(logging_settings.log_level, logging_settings.log_format, payloads=logging_settings.debug)
        return settings


# --- shared by the processes -----------------------------------------------------------------------------------------


@contextmanager
def _listening(settings: Settings) -> Iterator[list[Listening]]:
    """The sockets of the server. Either they only reserve the port and each worker binds its own, or all workers accept from
    them. The second port (--tcp_port) is only reserved.

    A server that takes over must listen before the other one ends, and so before it has workers. Only Linux spreads connections
    evenly over sockets that share a port. Raises UserMistake.
    """
    server = settings.server
    sockets = inherited_sockets(os.environ)
    if sockets:
        logger.info("sockets were inherited; --host and --port are ignored")
    elif server.takeover or server.host.startswith(UNIX_PREFIX) or sys.platform != "linux":
        sockets = bound_sockets(server.host, server.port, server.takeover)
    else:
        sockets = reserved_sockets(server.host, server.port)
    with ExitStack() as closing:
        for each in sockets:
            closing.enter_context(_kept(each))
        if server.tcp_port and not server.takeover:  # the former server has it until it ends
            for each in reserved_sockets(server.host, server.tcp_port, "tcp_port"):
                closing.enter_context(_kept(each))
        yield sockets


@contextmanager
def _kept(listening: Listening) -> Iterator[None]:
    loop, claim = asyncio.get_running_loop(), listening.claim
    if claim is not None:
        loop.add_reader(claim, listening.drain_claim)
    try:
        yield
    finally:
        if claim is not None:
            loop.remove_reader(claim)
        listening.close()


MAX_DIRECTORY_BYTES = 90
"""Socket paths in it are limited to about 100 bytes."""


@contextmanager
def _private_directory() -> Iterator[str]:
    """Raises UserMistake."""
    directory = tempfile.mkdtemp(prefix="ropewalk-")
    try:
        if len(os.fsencode(directory)) > MAX_DIRECTORY_BYTES:
            raise UserMistake(f"{directory} is too long for sockets in it: set TMPDIR to a shorter directory")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


# --- hanging workers -------------------------------------------------------------------------------------------------

WatchedWorker = TypeVar("WatchedWorker", bound=Hashable)

LOOK_SECONDS = 5.0
"""Interval of the pings to all workers."""

MAX_UNANSWERED = 6
"""Unanswered pings in a row after which a worker counts as hanging: 30 seconds."""

LATE_LOOKS = 2
"""A look this many intervals late means that the supervisor itself did not run. Workers are not blamed for it."""


class _Silence(NamedTuple):
    answers: int
    unanswered: int


class HangWatch(Generic[WatchedWorker]):
    """Finds workers that hang: they left too many pings unanswered. Workers answer from their event loop.

    Call `look` every LOOK_SECONDS, and then ping all workers. Pings are counted, not seconds: while a machine is suspended,
    time passes but no ping is sent. `now` is a monotonic time.
    """

    def __init__(self) -> None:
        self._silences: dict[WatchedWorker, _Silence] = {}
        self._last_look: float | None = None
        self._spared = False

    def look(self, now: float, answers: Mapping[WatchedWorker, int]) -> list[WatchedWorker]:
        """The workers that hang. `answers`: by serving worker, its answers since its start."""
        late = self._last_look is not None and now - self._last_look > LATE_LOOKS * LOOK_SECONDS
        self._last_look = now
        former = {} if late else self._silences
        self._silences = {worker: _next(former.get(worker), given) for worker, given in answers.items()}
        unanswered = [silence.unanswered for silence in self._silences.values()]
        if not all(unanswered):
            self._spared = False
        elif max(unanswered, default=0) >= MAX_UNANSWERED and not self._spared:
            # No worker answers: more likely the machine stalled. If not, they hang after the same number of pings again.
            self._spared = True
            self._silences = {worker: _Silence(given, 0) for worker, given in answers.items()}
        return [worker for worker, silence in self._silences.items() if silence.unanswered >= MAX_UNANSWERED]


def _next(former: _Silence | None, answers: int) -> _Silence:
    if former is None or former.answers != answers:
        return _Silence(answers, 0)
    return _Silence(answers, former.unanswered + 1)
