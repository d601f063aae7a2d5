"""The application port, filled by an App of Python channels in the server's own process."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ropewalk.adapters.apps.python.containment import ContainedTasks, Watchdog, run_contained
from ropewalk.adapters.apps.python.loader import Sources, load_app, put_on_path, split_spec
from ropewalk.adapters.apps.python.threads import Threads
from ropewalk.adapters.apps.slots import StillWanted, always
from ropewalk.channels import App, Runner
from ropewalk.channels.replies import failure_reply
from ropewalk.core.stats import Stats
from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError, RopewalkError, ServerError, Unanswered, Unavailable, UserMistake
from ropewalk.model.limits import APP_LIMITS, AppLimits
from ropewalk.ports import Publisher

logger = logging.getLogger("ropewalk.channels")

POLL_SECONDS = 0.5

T = TypeVar("T")


class PythonApplication:
    """Calls an App of Python channels.

    Args:
        load: where the App is (`module:attribute`), or a function that returns it.
        limits: how many threads there are, and how long a call may take.
        reload: load the app again when a source file changes. Sessions continue with the new code, since channels keep no
            objects between calls.
        directory: where modules are looked for first; "" for the Python path only.
    """

    def __init__(
        self,
        load: Callable[[], App] | str,
        stats: Stats,
        limits: AppLimits = APP_LIMITS,
        *,
        reload: bool = False,
        directory: str = ".",
    ) -> None:
        if reload and not isinstance(load, str):
            raise UserMistake("an app can be reloaded only if it is named as module:attribute")
        self._spec = load if isinstance(load, str) else ""
        self._load: Callable[[], App] = partial(load_app, load) if isinstance(load, str) else load
        self._stats = stats
        self._threads = Threads(limits.threads, stats, limits.wait_timeout)
        self._timeout = limits.timeout
        self._reload = reload
        self._directory = directory
        self._calls = 0
        self._publisher: Publisher | None = None
        self._serving: RunningApp | None = None
        self._sources: Sources | None = None
        self._watching: asyncio.Task[None] | None = None
        self._contained: ContainedTasks | None = None
        self._watchdog: Watchdog | None = None

    async def start(self, publisher: Publisher) -> None:
        """Raises UserMistake if the app cannot be loaded, or one of its startup handlers fails."""
        self._publisher = publisher
        if self._spec and self._directory:
            put_on_path(self._directory)
        if self._reload:
            self._sources = Sources(split_spec(self._spec)[0])
        self._contained, self._watchdog = ContainedTasks(), Watchdog()
        try:
            self._serving = await self._begin(publisher)
        except BaseException as error:
            self._release()
            if isinstance(error, ServerError):
                raise UserMistake(f"the app cannot start: {error}") from None
            raise
        fields = {"threads": self._threads.size, "timeout": self._timeout, "reload": self._reload}
        logger.info("app %s", self._spec or "given", extra=fields)
        if self._sources is not None:
            self._sources.changed()
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.end(self._timeout)
        self._release()

    def _release(self) -> None:
        self._threads.stop()
        if self._contained is not None and self._watchdog is not None:
            self._contained.remove()
            self._watchdog.stop()

    # --- calls --------------------------------------------------------------------------------------------------------

    async def connect(self, context: CallContext, wanted: StillWanted = always) -> ConnectResult:
        return await self._call(lambda app, runner: app.handle_connect(context, runner), wanted=wanted)

    async def command(self, call: CommandCall) -> CommandResult:
        """An error carries the reply to the action's caller."""
        try:
            return await self._call(lambda app, runner: app.handle_command(call, runner))
        except ServerError as error:
            error.reply = failure_reply(call.data, error) if call.action is Action.PERFORM else None
            raise

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        return await self._call(lambda app, runner: app.handle_restored(restore_call, runner))

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        """Raises `Unavailable` only before the handlers run: they must not run again for the same session."""
        await self._call(lambda app, runner: self._disconnect(app, disconnect_call, runner), timed_out=ApplicationError)

    async def _disconnect(self, app: App, disconnect_call: DisconnectCall, runner: Runner) -> None:
        self._threads.check()  # while the call can still be retried
        publications = await app.handle_disconnect(disconnect_call, runner)
        if publications and self._publisher is not None:
            try:
                await self._publisher.publish(publications)
            except Unavailable as error:
                raise ApplicationError(f"the broadcasts of a disconnect are lost: {error}") from None

    async def _call(
        self,
        call: Callable[[App, Runner], Coroutine[Any, Any, T]],
        timed_out: type[ServerError] = Unanswered,
        wanted: StillWanted = always,
    ) -> T:
        self._stats.app_calls += 1
        self._calls += 1
        try:
            with self._current().call() as app:
                async with asyncio.timeout(self._timeout) as limit:
                    return await run_contained(call(app, self._threads.within(limit, wanted)))
        except TimeoutError:
            self._stats.app_calls_failed += 1
            raise timed_out(f"the app did not respond within {self._timeout:g} s") from None
        except Exception:
            self._stats.app_calls_failed += 1
            raise
        finally:
            self._calls -= 1

    def _current(self) -> "RunningApp":
        if self._serving is None:
            raise Unavailable("the app is not running")
        return self._serving

    # --- loading and reloading ----------------------------------------------------------------------------------------

    async def reload_if_changed(self) -> bool:
        """Load the app again if one of its files has changed. If that fails, the old one keeps running."""
        sources, publisher, old = self._sources, self._publisher, self._serving
        if sources is None or publisher is None or old is None or not (changed := sources.changed()):
            return False
        try:
            with sources.fresh():
                self._serving = await self._begin(publisher)
        except RopewalkError as error:
            logger.error("app not reloaded: the previous version keeps running", extra={"reason": str(error)})
            return False
        logger.info("app reloaded", extra={"changed": " ".join(sorted(path.name for path in changed))})
        await old.end(self._timeout)
        return True

    async def _begin(self, publisher: Publisher) -> "RunningApp":
        try:
            app = self._load()
        except UserMistake as mistake:
            if mistake.__cause__ is not None:
                logger.error("the app cannot be loaded", exc_info=mistake.__cause__)
            raise
        return await RunningApp.begin(app, self._threads, publisher)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.reload_if_changed()
            except Exception:
                logger.exception("the app's files cannot be watched")

    # --- health and metrics -------------------------------------------------------------------------------------------

    def health(self) -> str:
        if self._serving is None:
            return "the app is not running"
        return "all threads of the app are held by handlers that do not return" if self._threads.exhausted() else ""

    def gauges(self) -> dict[str, float]:
        waiting = self._threads.waiting()
        return {"app_calls_active": float(max(self._calls - waiting, 0)), "app_calls_waiting": float(waiting)}


class RunningApp:
    """An App from its start to its stop, and the calls in progress. Made by `begin`; takes no calls after `end`."""

    def __init__(self, app: App, runner: Runner) -> None:
        self.app = app
        self._runner = runner
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def begin(cls, app: App, runner: Runner, publisher: Publisher) -> "RunningApp":
        """Raises ServerError if the app cannot start."""
        await run_contained(app.start(publisher.publish, runner))
        return cls(app, runner)

    @contextmanager
    def call(self) -> Iterator[App]:
        self._calls += 1
        self._idle.clear()
        try:
            yield self.app
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def end(self, timeout: float) -> None:
        """Wait for calls in progress, then shut the app down. `timeout` applies to each."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("the app shuts down with calls in progress", extra={"calls": self._calls})
        try:
            async with asyncio.timeout(timeout):
                await run_contained(self.app.stop(self._runner))
        except TimeoutError:
            logger.warning("the app did not shut down in time", extra={"seconds": timeout})
