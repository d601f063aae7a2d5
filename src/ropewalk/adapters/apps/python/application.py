"""The application port, filled by an App of Python channels in the server's own process."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ropewalk.adapters.apps.python.containment import ContainedTasks, run_contained
from ropewalk.adapters.apps.python.loader import load_app, put_on_path, split
from ropewalk.adapters.apps.python.running_app import RunningApp
from ropewalk.adapters.apps.python.sources import Sources
from ropewalk.adapters.apps.python.threads import Threads
from ropewalk.adapters.apps.python.watchdog import Watchdog
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
from ropewalk.model.limits import APP_LIMITS
from ropewalk.ports import Publisher

logger = logging.getLogger("ropewalk.channels")

POLL_SECONDS = 0.5

T = TypeVar("T")


class PythonApplication:
    """Asks the App that `load` names (`module:attribute`) or returns.

    `threads` is how many handlers that are plain functions run at once, `wait_timeout` how many seconds one may wait for its
    thread, `timeout` how many a call may take without that. `directory` is where modules are looked for first, "" for nowhere
    but on the path. With `reload` a changed source file brings the app anew: sessions go on with the new code, since channels
    keep no objects between calls.
    """

    def __init__(
        self,
        load: Callable[[], App] | str,
        stats: Stats,
        *,
        threads: int = APP_LIMITS.threads,
        timeout: float = APP_LIMITS.timeout,
        wait_timeout: float = APP_LIMITS.wait_timeout,
        reload: bool = False,
        directory: str = ".",
    ) -> None:
        if reload and not isinstance(load, str):
            raise UserMistake("an app can be reloaded only if it is named as module:attribute")
        self._spec = load if isinstance(load, str) else ""
        self._load: Callable[[], App] = partial(load_app, load) if isinstance(load, str) else load
        self._stats = stats
        self._threads = Threads(threads, stats, wait_timeout)
        self._timeout = timeout
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
        """Raises UserMistake where the app cannot be loaded, or one of its startup handlers fails."""
        self._publisher = publisher
        if self._spec and self._directory:
            put_on_path(self._directory)
        if self._reload:
            self._sources = Sources(split(self._spec)[0])
        self._contained, self._watchdog = ContainedTasks(), Watchdog()
        try:
            self._serving = await self._begin(publisher)
        except BaseException as error:
            self._let_go()
            if isinstance(error, ServerError):
                raise UserMistake(f"the app cannot start: {error}") from None
            raise
        shown = {"threads": self._threads.size, "timeout": self._timeout, "reload": self._reload}
        logger.info("app %s", self._spec or "given", extra=shown)
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
        self._let_go()

    def _let_go(self) -> None:
        self._threads.stop()
        if self._contained is not None and self._watchdog is not None:
            self._contained.remove()
            self._watchdog.stop()

    # --- calls --------------------------------------------------------------------------------------------------------

    async def connect(self, context: CallContext, wanted: StillWanted = always) -> ConnectResult:
        return await self._ask(lambda app, runner: app.handle_connect(context, runner), wanted=wanted)

    async def command(self, call: CommandCall) -> CommandResult:
        """Whoever called an action that fails may be waiting: the error says what to reply."""
        try:
            return await self._ask(lambda app, runner: app.handle_command(call, runner))
        except ServerError as error:
            error.reply = failure_reply(call.data, error) if call.action is Action.PERFORM else None
            raise

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        return await self._ask(lambda app, runner: app.handle_restored(restore_call, runner))

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        """Never `Unavailable` once it has been asked: its handlers have run, and must not run again for the same session."""
        await self._ask(lambda app, runner: self._dismiss(app, disconnect_call, runner), overdue=ApplicationError)

    async def _dismiss(self, app: App, disconnect_call: DisconnectCall, runner: Runner) -> None:
        self._threads.check()  # while it can still be said later
        publications = await app.handle_disconnect(disconnect_call, runner)
        if publications and self._publisher is not None:
            try:
                await self._publisher.publish(publications)
            except Unavailable as error:
                raise ApplicationError(f"what was broadcast at a disconnect is lost: {error}") from None

    async def _ask(
        self,
        ask: Callable[[App, Runner], Coroutine[Any, Any, T]],
        overdue: type[ServerError] = Unanswered,
        wanted: StillWanted = always,
    ) -> T:
        self._stats.app_calls += 1
        self._calls += 1
        try:
            with self._current().call() as app:
                async with asyncio.timeout(self._timeout) as limit:
                    return await run_contained(ask(app, self._threads.within(limit, wanted)))
        except TimeoutError:
            self._stats.app_calls_failed += 1
            raise overdue(f"the app gave no answer within {self._timeout:g} s") from None
        except Exception:
            self._stats.app_calls_failed += 1
            raise
        finally:
            self._calls -= 1

    def _current(self) -> RunningApp:
        if self._serving is None:
            raise Unavailable("the app does not run")
        return self._serving

    # --- loading and reloading ----------------------------------------------------------------------------------------

    async def reload_if_changed(self) -> bool:
        """Serve the app anew if one of its files has changed. An app that cannot be loaded or started leaves the old one."""
        sources, publisher, old = self._sources, self._publisher, self._serving
        if sources is None or publisher is None or old is None or not (changed := sources.changed()):
            return False
        try:
            with sources.fresh():
                self._serving = await self._begin(publisher)
        except RopewalkError as error:
            logger.error("the app stays as it was", extra={"reason": str(error)})
            return False
        logger.info("app reloaded", extra={"changed": " ".join(sorted(path.name for path in changed))})
        await old.end(self._timeout)
        return True

    async def _begin(self, publisher: Publisher) -> RunningApp:
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

    # --- what is seen of it -------------------------------------------------------------------------------------------

    def health(self) -> str:
        if self._serving is None:
            return "the app does not run"
        return "every thread of the app is held by a handler that does not return" if self._threads.exhausted() else ""

    def gauges(self) -> dict[str, float]:
        waiting = self._threads.waiting()
        return {"app_calls_active": float(max(self._calls - waiting, 0)), "app_calls_waiting": float(waiting)}
