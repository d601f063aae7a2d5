"""The application port over an app in this process: bounded and counted calls, and clear errors at the start."""

import asyncio
import threading

import pytest

from ropewalk.adapters.apps.python.application import PythonApplication
from ropewalk.channels import App, Channel, Connection, action
from ropewalk.core.stats import Stats
from ropewalk.model.application import (
    Action,
    CommandCall,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError, Unavailable, UserMistake
from ropewalk.model.limits import AppLimits
from ropewalk.model.messages import Publication
from ropewalk.ports import Application
from tests.unit.adapters.apps.python.running_apps import BO, ROOM, FakePublisher, perform, running


def chat() -> App:
    app = App()

    @app.on_connect
    def connect(connection: Connection) -> None:
        connection.identify(thread=threading.current_thread() is not threading.main_thread())

    @app.channel
    class Room(Channel):
        def subscribed(self) -> None:
            self.stream_from("room")

        def restored(self) -> None:
            self.state["back"] = True

        def unsubscribed(self) -> None:
            self.broadcast("room", "left")

        @action
        def fail(self) -> None:
            raise ValueError

        @action
        async def hang(self) -> None:
            await asyncio.Event().wait()

        @action
        def publish(self) -> None:
            app.publish_sync("room", "now")

    return app


async def test_application_that_was_not_started_is_unhealthy() -> None:
    application: Application = PythonApplication(chat, Stats())
    assert application.health() == "the app is not running"
    assert application.gauges() == {"app_calls_active": 0.0, "app_calls_waiting": 0.0}


async def test_every_call_is_answered_and_counted() -> None:
    stats, publisher = Stats(), FakePublisher()
    async with running(chat(), stats, publisher) as application:
        assert application.health() == ""
        assert await application.connect(BO) == ConnectResult(True, '{"name":"Bo","thread":true}')
        assert (await application.command(CommandCall(BO, Action.SUBSCRIBE, ROOM))).streams == ("room",)
        assert await application.restored(RestoreCall(BO, "s-0", {ROOM: {}})) == RestoreResult(own={ROOM: {"back": "true"}})
        await application.disconnect(DisconnectCall(BO, {ROOM: {}}))
    assert publisher.published == [Publication("room", b'"left"')]
    assert (stats.app_calls, stats.app_calls_failed, stats.app_calls_retried) == (4, 0, 0)


async def test_failed_call_is_counted() -> None:
    stats = Stats()
    async with running(chat(), stats) as application:
        with pytest.raises(ApplicationError, match=r"Room\.fail failed"):
            await application.command(perform("fail"))
        with pytest.raises(ApplicationError, match="no action 'nothing'"):
            await application.command(perform("nothing"))
    assert (stats.app_calls, stats.app_calls_failed) == (2, 2)


async def test_call_timeout_is_unavailable_and_logs_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    stats = Stats()
    caplog.set_level("INFO", "ropewalk.channels")
    async with running(chat(), stats, limits=AppLimits(timeout=0)) as application:
        with pytest.raises(Unavailable, match="did not respond within 0 s"):
            await application.command(perform("hang"))
    assert stats.app_calls_failed == 1
    assert any(vars(record).get("handler") == "Room.hang" for record in caplog.records)


async def test_disconnect_call_timeout_is_not_retried() -> None:
    app = App()

    @app.on_disconnect
    async def gone(connection: Connection) -> None:
        await asyncio.Event().wait()

    async with running(app, limits=AppLimits(timeout=0)) as application:
        with pytest.raises(ApplicationError, match="did not respond"):
            await application.disconnect(DisconnectCall(BO))


async def test_disconnect_call_whose_broadcasts_fail_is_not_retried() -> None:
    async with running(chat(), publisher=FakePublisher(down=True)) as application:
        with pytest.raises(ApplicationError, match="lost: publisher is down"):
            await application.disconnect(DisconnectCall(BO, {ROOM: {}}))


async def test_gauges_count_active_and_waiting_calls() -> None:
    app, begun, open = App(), threading.Semaphore(0), threading.Event()

    @app.on_connect
    def connect(connection: Connection) -> None:
        begun.release()
        assert open.wait(60)

    async with running(app, limits=AppLimits(threads=1)) as application:
        calls = [asyncio.get_running_loop().create_task(application.connect(BO)) for _ in range(3)]
        await asyncio.to_thread(begun.acquire)
        assert application.gauges() == {"app_calls_active": 1.0, "app_calls_waiting": 2.0}
        assert application.health() == ""
        open.set()
        assert all([(await call).accepted for call in calls])


async def test_app_whose_threads_all_hang_is_unhealthy() -> None:
    app, begun, open = App(), threading.Semaphore(0), threading.Event()

    @app.on_connect
    def connect(connection: Connection) -> None:
        begun.release()
        assert open.wait(60)

    @app.channel
    class Room(Channel):
        @action
        async def think(self) -> None: ...

    async with running(app, limits=AppLimits(threads=1)) as application:
        call = asyncio.get_running_loop().create_task(application.connect(BO))
        await asyncio.to_thread(begun.acquire)
        call.cancel()
        await asyncio.wait([call])
        assert "all threads" in application.health()
        with pytest.raises(Unavailable, match="held by handlers"):
            await application.connect(BO)
        with pytest.raises(Unavailable, match="held by handlers"):
            await application.disconnect(DisconnectCall(BO))
        assert (await application.command(perform("think"))).accepted
        open.set()


async def test_action_in_a_thread_publishes_synchronously() -> None:
    publisher = FakePublisher()
    async with running(chat(), publisher=publisher) as application:
        await application.command(perform("publish"))
        assert publisher.published == [Publication("room", b'"now"')]


async def test_call_to_an_app_that_does_not_run_is_unavailable() -> None:
    application, stats = PythonApplication(chat, Stats()), Stats()
    with pytest.raises(Unavailable, match="not running"):
        await application.connect(BO)
    async with running(chat(), stats) as application:
        pass
    with pytest.raises(Unavailable, match="not running"):
        await application.connect(BO)
    assert application.health() == "the app is not running"


async def test_failed_startup_handler_prevents_the_start(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.on_startup
    def open_pool() -> None:
        raise OSError("refused")

    application = PythonApplication(lambda: app, Stats())
    with pytest.raises(UserMistake, match=r"^the app cannot start: open_pool failed: OSError$"):
        await application.start(FakePublisher())
    assert "refused" in caplog.text
    await application.stop()


async def test_shutdown_handlers_run_after_the_last_call() -> None:
    app, order, begun, go_on = App(), list[str](), asyncio.Event(), asyncio.Event()

    @app.on_connect
    async def connect(connection: Connection) -> None:
        begun.set()
        await go_on.wait()
        order.append("call")

    app.on_shutdown(lambda: order.append("shutdown"))
    application = PythonApplication(lambda: app, Stats())
    await application.start(FakePublisher())
    call = asyncio.get_running_loop().create_task(application.connect(BO))
    await begun.wait()
    stopping = asyncio.get_running_loop().create_task(application.stop())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(call, stopping)
    assert order == ["call", "shutdown"]


async def test_shutdown_handler_that_hangs_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.on_shutdown
    async def close_pool() -> None:
        await asyncio.Event().wait()

    async with running(app, limits=AppLimits(timeout=0)):
        pass
    assert "did not shut down in time" in caplog.text


async def test_reload_needs_an_app_named_by_module_and_attribute() -> None:
    with pytest.raises(UserMistake, match="module:attribute"):
        PythonApplication(chat, Stats(), reload=True)
