"""Child processes of the supervisor: one that runs, and one that is started again whenever it ends.

The supervisor calls `look` after SIGCHLD; nothing else here waits for processes.
"""

import asyncio
import logging
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import msgspec

from ropewalk.app.control_channel import Alive, ControlChannel, Failed, ProcessOrder, Word
from ropewalk.app.parent_death import killed_with_parent
from ropewalk.app.process_role import ProcessKind, Role, written
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import ServerError, UserMistake

logger = logging.getLogger("ropewalk.supervisor")

SOON_SECONDS = 15.0
"""A process that ends within so long after its start did not really run."""

BETWEEN_STARTS = Backoff(0.1, 5.0)


ENDED_ALONE = "%s was told to end by a signal; starting it again. To end the server, send the signal to its supervisor"


class StartFailed(ServerError):
    """A process that cannot be started, or ended before it was ready without saying why: its own log tells."""


def how_it_ended(code: int) -> str:
    """In words, of an exit code as `subprocess` tells it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ended_by_operator(code: int) -> bool:
    """Of a process that nobody has retired: it ends in order only on a signal, which ends it at once while it is starting."""
    return code in (0, -signal.SIGTERM, -signal.SIGINT)


def delay_before_start(failures: int, chance: Callable[[], float]) -> float:
    """`failures`: how many times in a row it has ended soon after its start. Once may happen, and is mended at once."""
    return BETWEEN_STARTS.delay(failures - 2, chance) if failures > 1 else 0.0


def noticed(future: "asyncio.Future[None]") -> None:
    """Keeps asyncio from complaining that nobody asked for its exception."""
    if not future.cancelled():
        future.exception()


class Child:
    """This program once more, with the same command line and a role. `ready` fails with UserMistake or StartFailed. `answers`
    counts how many times it has said that it is alive.

    A worker is killed when the supervisor dies, however that ends, so that the port is free. The store ends in order: the next
    server waits for its lock."""

    def __init__(self, role: Role) -> None:
        loop = asyncio.get_running_loop()
        self.name = role.name
        self.began = loop.time()
        self.answers = 0
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()
        self.ready.add_done_callback(noticed)
        ours, theirs = socket.socketpair()
        with theirs:
            role = msgspec.structs.replace(role, control=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                pass_fds=role.descriptors,
                env=os.environ | written(role),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the supervisor
                preexec_fn=killed_with_parent() if role.kind is ProcessKind.WORKER else None,
            )
        self._channel = ControlChannel(ours)
        self._channel.watch(self._heard, lambda: None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def serves(self) -> bool:
        return self.ready.done() and self.ready.exception() is None and not self.ended.done()

    def tell(self, order: ProcessOrder) -> None:
        self._channel.say(order)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def look(self) -> None:
        """Whether it has ended."""
        code = self._process.poll()
        if code is None or self.ended.done():
            return
        self._channel.close()
        logger.debug("%s has ended", self.name, extra={"pid": self.pid, "how": how_it_ended(code)})
        if not self.ready.done():
            self.ready.set_exception(StartFailed(f"the process {self.name} did not start: {how_it_ended(code)}"))
        self.ended.set_result(code)

    def _heard(self, word: Word) -> None:
        if isinstance(word, Alive):
            self.answers += 1
        elif self.ready.done():
            return
        elif isinstance(word, Failed):
            self.ready.set_exception(UserMistake(word.reason))
        else:
            self.ready.set_result(None)


class KeptProcess:
    """A child that is started again whenever it ends, until it is retired. `start` once, then `retire`."""

    def __init__(self, launch: Callable[[], Child]) -> None:
        self._launch = launch
        self._keeping: asyncio.Task[None] | None = None
        self._retired = False
        self.child: Child | None = None

    async def start(self) -> None:
        """Until it is ready. Raises UserMistake or StartFailed, and then it is not started again."""
        try:
            self.child = self._launch()
        except OSError as error:
            raise StartFailed(f"a process cannot be started: {error}") from None
        await self.child.ready
        logger.info("%s serves", self.child.name, extra={"pid": self.child.pid})
        if not self._retired:
            self._keeping = asyncio.get_running_loop().create_task(self._keep(self.child))

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            code = await asyncio.shield(child.ended)
            failures = 1 if loop.time() - child.began > SOON_SECONDS else failures + 1
            delay = delay_before_start(failures, random.random)
            told = {"pid": child.pid, "how": how_it_ended(code), "delay": delay}
            if ended_by_operator(code):
                logger.warning(ENDED_ALONE, child.name, extra={**told, "supervisor": os.getpid()})
            else:
                logger.error("%s has ended; starting it again", child.name, extra=told)
            await asyncio.sleep(delay)
            self.child = child = await self._launched(child.name)
            child.ready.add_done_callback(partial(_tell, child))

    async def _launched(self, name: str) -> Child:
        """However long it takes until the system has room for one more process."""
        while True:
            try:
                return self._launch()
            except OSError as error:
                logger.error("%s cannot be started again", name, extra={"reason": str(error)})
                await asyncio.sleep(BETWEEN_STARTS.cap)

    def tell(self, order: ProcessOrder) -> None:
        if self.child is not None:
            self.child.tell(order)

    def look(self) -> None:
        if self.child is not None:
            self.child.look()

    def kill(self) -> None:
        if self.child is not None:
            self.child.signal(signal.SIGKILL)

    async def retire(self, timeout: float | None) -> None:
        """Tell it to stop and wait until it has ended. After `timeout` it is killed."""
        self._retired = True
        if self._keeping is not None:
            self._keeping.cancel()
        if self.child is None:
            return
        self.child.tell(ProcessOrder.STOP)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self.child.ended)
        except TimeoutError:
            logger.error("%s does not end, and is killed", self.child.name, extra={"pid": self.child.pid})
            self.child.signal(signal.SIGKILL)
            await asyncio.shield(self.child.ended)


def _tell(child: Child, ready: "asyncio.Future[None]") -> None:
    error = None if ready.cancelled() else ready.exception()
    if error is None:
        logger.info("%s serves again", child.name, extra={"pid": child.pid})
    else:
        logger.error("%s cannot be started again", child.name, extra={"reason": str(error)})
