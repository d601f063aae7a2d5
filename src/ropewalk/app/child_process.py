"""Child processes of the supervisor: `Child` runs once, `KeptProcess` is restarted whenever it ends.

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

from ropewalk.app.control_channel import Alive, ControlChannel, ControlMessage, Failed, ProcessCommand
from ropewalk.app.process_end import killed_with_parent
from ropewalk.app.process_role import ProcessKind, Role, written
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import ServerError, UserMistake

logger = logging.getLogger("ropewalk.supervisor")

SOON_SECONDS = 15.0
"""A process that ends within this time counts as a failed start."""

BETWEEN_STARTS = Backoff(0.1, 5.0)


ENDED_ALONE = "%s was ended by a signal; starting it again. To end the server, send the signal to its supervisor"


class StartFailed(ServerError):
    """A process cannot be started, or ended before it was ready without a reason. Its log has the cause."""


def describe_exit(code: int) -> str:
    """An exit code of `subprocess` as text."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ended_by_operator(code: int) -> bool:
    """Whether a process that was not retired was ended by a signal from outside."""
    return code in (0, -signal.SIGTERM, -signal.SIGINT)


def delay_before_start(failures: int, chance: Callable[[], float]) -> float:
    """`failures`: failed starts in a row. The first is retried at once."""
    return BETWEEN_STARTS.delay(failures - 2, chance) if failures > 1 else 0.0


def noticed(future: "asyncio.Future[None]") -> None:
    """Avoids asyncio's warning about an exception that was never retrieved."""
    if not future.cancelled():
        future.exception()


class Child:
    """Another process of this program, with the same command line and a role.

    The kernel kills a worker when the supervisor dies, so that the port is free. The store ends in order, and the next server
    waits for its lock.

    Attributes:
        ready: fails with UserMistake or StartFailed.
        answers: number of `Alive` messages received.
    """

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
        self._channel.watch(self._received, lambda: None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def serves(self) -> bool:
        return self.ready.done() and self.ready.exception() is None and not self.ended.done()

    def send(self, order: ProcessCommand) -> None:
        self._channel.send(order)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def look(self) -> None:
        """Detect its end."""
        code = self._process.poll()
        if code is None or self.ended.done():
            return
        self._channel.close()
        logger.debug("%s has ended", self.name, extra={"pid": self.pid, "how": describe_exit(code)})
        if not self.ready.done():
            self.ready.set_exception(StartFailed(f"the process {self.name} did not start: {describe_exit(code)}"))
        self.ended.set_result(code)

    def _received(self, message: ControlMessage) -> None:
        if isinstance(message, Alive):
            self.answers += 1
        elif self.ready.done():
            return
        elif isinstance(message, Failed):
            self.ready.set_exception(UserMistake(message.reason))
        else:
            self.ready.set_result(None)


class KeptProcess:
    """A child that is restarted whenever it ends, until it is retired. Call `start` once, then `retire`."""

    def __init__(self, launch: Callable[[], Child]) -> None:
        self._launch = launch
        self._keeping: asyncio.Task[None] | None = None
        self._retired = False
        self.child: Child | None = None

    async def start(self) -> None:
        """Wait until it is ready. After UserMistake or StartFailed it is not restarted."""
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
            fields = {"pid": child.pid, "how": describe_exit(code), "delay": delay}
            if ended_by_operator(code):
                logger.warning(ENDED_ALONE, child.name, extra={**fields, "supervisor": os.getpid()})
            else:
                logger.error("%s has ended; starting it again", child.name, extra=fields)
            await asyncio.sleep(delay)
            self.child = child = await self._launched(child.name)
            child.ready.add_done_callback(partial(_log_restart, child))

    async def _launched(self, name: str) -> Child:
        """Retry until the system can start another process."""
        while True:
            try:
                return self._launch()
            except OSError as error:
                logger.error("%s cannot be started again", name, extra={"reason": str(error)})
                await asyncio.sleep(BETWEEN_STARTS.cap)

    def send(self, order: ProcessCommand) -> None:
        if self.child is not None:
            self.child.send(order)

    def look(self) -> None:
        if self.child is not None:
            self.child.look()

    def kill(self) -> None:
        if self.child is not None:
            self.child.signal(signal.SIGKILL)

    async def retire(self, timeout: float | None) -> None:
        """Stop it and wait for its end. After `timeout` it is killed."""
        self._retired = True
        if self._keeping is not None:
            self._keeping.cancel()
        if self.child is None:
            return
        self.child.send(ProcessCommand.STOP)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self.child.ended)
        except TimeoutError:
            logger.error("%s does not end; killing it", self.child.name, extra={"pid": self.child.pid})
            self.child.signal(signal.SIGKILL)
            await asyncio.shield(self.child.ended)


def _log_restart(child: Child, ready: "asyncio.Future[None]") -> None:
    error = None if ready.cancelled() else ready.exception()
    if error is None:
        logger.info("%s serves again", child.name, extra={"pid": child.pid})
    else:
        logger.error("%s cannot be started again", child.name, extra={"reason": str(error)})
