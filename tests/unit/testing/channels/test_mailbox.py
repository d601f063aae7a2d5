"""`ropewalk.testing.Cable`: errors in handlers are raised in the test."""

import asyncio
import logging
import time

import pytest

from ropewalk import App
from ropewalk.channels import BadCall
from ropewalk.model.errors import Unavailable
from ropewalk.testing import Cable, Rejected
from tests.unit.testing.rooms import rooms


async def test_error_of_an_action_is_raised_and_the_session_continues() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(ZeroDivisionError, match="crashed") as caught:
            await chat.perform("crash")
        assert "crash" in [frame.name for frame in caught.traceback]
        await chat.perform("speak", text="still here")
        assert await chat.receive() == "still here"
        assert cable.errors == (caught.value,)


async def test_error_of_a_subscription_is_raised() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        with pytest.raises(KeyError, match="missing room"):
            await bo.subscribe("RoomChannel", room="broken")
        assert bo.frames[-1]["type"] == "reject_subscription"


async def test_error_of_on_connect_is_raised() -> None:
    app = App()

    @app.on_connect
    async def connect(connection: object) -> None:
        raise LookupError("the users are gone")

    async with Cable(app) as cable:
        with pytest.raises(LookupError, match="the users are gone"):
            await cable.connect()


async def test_app_without_on_connect_rejects_every_client() -> None:
    async with Cable(App()) as cable:
        with pytest.raises(Rejected, match="no on_connect"):
            await cable.connect()


async def test_errors_of_restored_and_unsubscribed_are_raised() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1, fragile=True)
        await bo.drop()
        await cable.publish("room/1", "missed")
        with pytest.raises(ValueError, match="cannot restore"):
            await bo.resume()
        assert await chat.receive() == "missed"
        with pytest.raises(ValueError, match="cannot unsubscribe"):
            await bo.disconnect()


async def test_several_errors_are_raised_as_a_group() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        for room in (1, 2):
            await bo.subscribe("RoomChannel", room=room, fragile=True)
        with pytest.raises(ExceptionGroup) as caught:
            await bo.disconnect()
        assert [str(error) for error in caught.value.exceptions] == ["cannot unsubscribe", "cannot unsubscribe"]


async def exit_with_an_error(assertion: bool) -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        await bo.subscribe("RoomChannel", room=1, fragile=True)
        assert assertion, "of the test"


async def test_error_at_the_end_is_raised() -> None:
    with pytest.raises(ValueError, match="cannot unsubscribe"):
        await exit_with_an_error(assertion=True)


async def test_failure_of_the_test_takes_precedence() -> None:
    with pytest.raises(AssertionError, match="of the test"):
        await exit_with_an_error(assertion=False)


async def test_error_of_startup_is_raised_on_entry() -> None:
    app = App()

    @app.on_startup
    async def startup() -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        async with Cable(app):
            pass


async def test_error_of_shutdown_is_raised_on_exit() -> None:
    app = App()

    @app.on_shutdown
    def shutdown() -> None:
        raise ConnectionError("will not close")

    with pytest.raises(ConnectionError, match="will not close"):
        async with Cable(app):
            pass


async def test_sys_exit_in_a_handler_does_not_end_the_test_run() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
            await chat.perform("exit")


async def test_unknown_action_is_raised() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(BadCall, match="has no action 'sing'"):
            await chat.perform("sing")


async def test_handler_that_does_not_end_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    app, loop = rooms(), asyncio.get_running_loop()
    async with Cable(app, timeout=60.0) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        performing = asyncio.create_task(chat.perform("wait"))
        await app.waiting.wait()
        monkeypatch.setattr(loop, "time", lambda: time.monotonic() + 60.0)  # no sleep: the clock of the loop jumps
        with pytest.raises(Unavailable, match="did not respond"):
            await performing


async def test_apps_side_by_side_have_their_own_errors() -> None:
    async with Cable(rooms()) as one, Cable(rooms()) as other:
        chats = []
        for cable in (one, other):
            client = await cable.connect(params={"name": "bo"})
            chats.append(await client.subscribe("RoomChannel", room=1))
        with pytest.raises(ZeroDivisionError):
            await chats[0].perform("crash")
        assert (len(one.errors), other.errors) == (1, ())
        found = await asyncio.gather(*(chat.perform("crash") for chat in chats), return_exceptions=True)
        assert [type(error) for error in found] == [ZeroDivisionError, ZeroDivisionError]


async def test_log_handlers_are_removed() -> None:
    log = logging.getLogger("ropewalk.channels")
    before = list(log.handlers)
    async with Cable(rooms()):
        assert log.handlers != before
    assert log.handlers == before
