"""A session comes back, or is gone for good: every subscription hears of it, whatever happens to the others."""

import asyncio
import json

import pytest

from ropewalk.channels import App, Channel, Connection, Runner
from ropewalk.model.application import CallContext, DisconnectCall, RestoreResult
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication
from tests.unit.channels.requests import BO, come_back, leave, named

app = App()
ROOM, BROKEN, QUIET = named("Room"), named("Broken"), named("Quiet")
UNKNOWN = named("Removed")


@app.channel
class Room(Channel):
    async def restored(self) -> None:
        self.transmit("welcome back")
        self.broadcast("room", {"back": self.connection.identity["name"]})
        self.state["returns"] = self.state.get("returns", 0) + 1
        self.connection.state["rooms"] = self.connection.state.get("rooms", 0) + 1

    def unsubscribed(self) -> None:
        self.transmit("nobody hears this")
        self.broadcast("room", {"left": self.state.get("name")})
        self.connection.state["rooms"] = self.connection.state.get("rooms", 0) - 1


@app.channel
class Broken(Channel):
    def restored(self) -> None:
        self.transmit("never")
        self.connection.state["rooms"] = "broken"
        raise ValueError("oh")

    async def unsubscribed(self) -> None:
        self.broadcast("room", "never")
        self.connection.state["rooms"] = "broken"
        raise ValueError("oh")


@app.channel
class Quiet(Channel): ...


@app.on_disconnect
def gone(connection: Connection) -> None:
    partings.append((connection.identity["name"], connection.state.get("rooms")))


partings: list[tuple[str, object]] = []


@pytest.fixture(autouse=True)
def nobody_has_left() -> None:
    partings.clear()


async def test_every_channel_that_wants_to_know_hears_of_a_return() -> None:
    other = named("Room", n=2)
    restore_result = await come_back(app, {QUIET: {"a": "1"}, ROOM: {"returns": "4"}, other: {}})
    assert restore_result == RestoreResult(
        transmissions=tuple(
            json.dumps({"identifier": name, "message": "welcome back"}, separators=(",", ":")) for name in (ROOM, other)
        ),
        state={"rooms": "2"},
        own={ROOM: {"returns": "5"}, other: {"returns": "1"}},
        publications=(Publication("room", b'{"back":"Bo"}'),) * 2,
    )


async def test_nobody_who_wants_to_know_is_an_empty_restore_result() -> None:
    assert await come_back(app, {QUIET: {}}) == RestoreResult()
    assert await come_back(app, {}) == RestoreResult()


async def test_one_that_fails_at_a_return_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    restore_result = await come_back(app, {ROOM: {}, BROKEN: {}, UNKNOWN: {}, "no JSON": {}, named("Room", n=2): {}})
    assert len(restore_result.transmissions) == 2
    assert restore_result.state == {"rooms": "2"}
    assert "Broken.restored failed" in caplog.text


@pytest.mark.parametrize("what", ["stream_from", "stop_stream", "stop_all_streams", "join_presence", "leave_presence"])
async def test_streams_and_presence_cannot_change_at_a_return(what: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    arguments = {"stream_from": ["a"], "stop_stream": ["a"], "join_presence": ["bo"]}.get(what, [])

    @app.channel
    class Late(Channel):
        def restored(self) -> None:
            getattr(self, what)(*arguments)

    assert await come_back(app, {named("Late"): {"$p": "a"}}) == RestoreResult()
    assert f"{what} cannot be used in restored" in caplog.text


async def test_a_return_may_be_answered_with_a_disconnect() -> None:
    app = App()

    @app.channel
    class Banned(Channel):
        def restored(self) -> None:
            self.disconnect()

    assert await come_back(app, {named("Banned"): {}}) == RestoreResult(disconnect=True)


async def test_a_reject_at_a_return_changes_nothing() -> None:
    app = App()

    @app.channel
    class No(Channel):
        def restored(self) -> None:
            self.transmit("no")
            self.reject()

    assert await come_back(app, {named("No"): {}}) == RestoreResult()


async def test_all_subscriptions_and_then_the_app_hear_of_a_session_that_is_gone() -> None:
    said = await leave(app, {ROOM: {"name": '"Bo"'}, QUIET: {}, named("Room", n=2): {}})
    assert said == (Publication("room", b'{"left":"Bo"}'), Publication("room", b'{"left":null}'))
    assert partings == [("Bo", -2)]


async def test_one_that_fails_at_a_disconnect_call_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    said = await leave(app, {BROKEN: {}, UNKNOWN: {}, "no JSON": {}, ROOM: {}})
    assert said == (Publication("room", b'{"left":null}'),)
    assert partings == [("Bo", -1)]
    assert "Broken.unsubscribed failed" in caplog.text


@pytest.mark.parametrize("rejects", [False, True])
async def test_what_the_app_does_wrong_at_a_disconnect_call_is_logged_and_what_was_said_before_is_kept(
    rejects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    app.channel(Room)

    @app.on_disconnect
    async def gone(connection: Connection) -> None:
        if rejects:
            connection.reject()
        raise ValueError

    assert len(await leave(app, {ROOM: {}})) == 1
    assert "gone" in caplog.text


async def test_a_runner_that_has_no_thread_is_logged_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def exhausted(handler: object, *args: object) -> object:
        raise Unavailable("no thread")

    runner: Runner = exhausted
    assert await app.handle_disconnect(DisconnectCall(BO, {ROOM: {}}), runner) == ()
    assert "Room.unsubscribed cannot do its work" in caplog.text


async def test_a_disconnect_call_that_is_cancelled_goes_no_further() -> None:
    app, begun = App(), asyncio.Event()

    @app.channel
    class Slow(Channel):
        async def unsubscribed(self) -> None:
            begun.set()
            await asyncio.Event().wait()

    app.on_disconnect(lambda connection: partings.append(("never", None)))
    disconnect_call = asyncio.get_running_loop().create_task(leave(app, {named("Slow"): {}}, CallContext("s")))
    await begun.wait()
    disconnect_call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await disconnect_call
    assert partings == []
