"""`ropewalk.testing.Cable`: an error in a handler is the test's to see, wherever it happens."""

import asyncio
import logging

import pytest

from ropewalk import App
from ropewalk.channels import BadCall
from ropewalk.model.errors import Unavailable
from ropewalk.testing import Cable, Rejected
from tests.unit.testing.rooms import rooms


async def test_what_an_action_raises_the_call_raises_and_the_session_goes_on() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(ZeroDivisionError, match="by hand") as caught:
            await chat.perform("crash")
        assert "crash" in [frame.name for frame in caught.traceback]
        await chat.perform("speak", text="still here")
        assert await chat.receive() == "still here"
        assert cable.errors == (caught.value,)


async def test_what_a_subscription_raises_the_call_raises() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        with pytest.raises(KeyError, match="the room's plan"):
            await bo.subscribe("RoomChannel", room="broken")
        assert bo.frames[-1]["type"] == "reject_subscription"


async def test_what_a_connect_raises_the_call_raises() -> None:
    app = App()

    @app.on_connect
    async def connect(connection: object) -> None:
        raise LookupError("the users are gone")

    async with Cable(app) as cable:
        with pytest.raises(LookupError, match="the users are gone"):
            await cable.connect()


async def test_an_app_without_on_connect_lets_nobody_in_and_says_so() -> None:
    async with Cable(App()) as cable:
        with pytest.raises(Rejected, match="no on_connect"):
            await cable.connect()


async def test_what_fails_at_a_return_and_at_the_end_is_raised_by_what_caused_it() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1, fragile=True)
        await bo.drop()
        await cable.publish("room/1", "missed")
        with pytest.raises(ValueError, match="cannot go on"):
            await bo.resume()
        assert await chat.receive() == "missed"
        with pytest.raises(ValueError, match="cannot let go"):
            await bo.disconnect()


async def test_what_fails_together_is_raised_together() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        for room in (1, 2):
            await bo.subscribe("RoomChannel", room=room, fragile=True)
        with pytest.raises(ExceptionGroup) as caught:
            await bo.disconnect()
        assert [str(error) for error in caught.value.exceptions] == ["cannot let go", "cannot let go"]


async def leave_a_fragile_room(assertion: bool) -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        await bo.subscribe("RoomChannel", room=1, fragile=True)
        assert assertion, "of the test"


async def test_an_error_that_no_call_of_the_test_has_raised_is_raised_at_the_end() -> None:
    with pytest.raises(ValueError, match="cannot let go"):
        await leave_a_fragile_room(assertion=True)


async def test_the_tests_own_failure_is_not_hidden_by_one_of_the_app() -> None:
    with pytest.raises(AssertionError, match="of the test"):
        await leave_a_fragile_room(assertion=False)


async def test_a_startup_that_fails_is_raised_where_the_block_begins() -> None:
    app = App()

    @app.on_startup
    async def startup() -> None:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError, match="no database"):
        async with Cable(app):
            pass


async def test_a_shutdown_that_fails_is_raised_where_the_block_ends() -> None:
    app = App()

    @app.on_shutdown
    def shutdown() -> None:
        raise ConnectionError("will not close")

    with pytest.raises(ConnectionError, match="will not close"):
        async with Cable(app):
            pass


async def test_a_handler_that_exits_does_not_end_the_test_run() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
            await chat.perform("exit")


async def test_an_action_that_is_not_there_is_said() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(BadCall, match="has no action 'sing'"):
            await chat.perform("sing")


async def test_a_handler_that_never_ends_is_ended() -> None:
    app = rooms()
    async with Cable(app, timeout=0.5) as cable:  # which connecting and subscribing keep to, on a busy machine too
        bo = await cable.connect(params={"name": "bo"})
        chat = await bo.subscribe("RoomChannel", room=1)
        with pytest.raises(Unavailable, match="no answer"):
            await chat.perform("wait")


async def test_apps_that_are_tested_side_by_side_have_their_own_errors() -> None:
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


async def test_nothing_is_left_behind() -> None:
    log = logging.getLogger("ropewalk.channels")
    before = list(log.handlers)
    async with Cable(rooms()):
        assert log.handlers != before
    assert log.handlers == before
