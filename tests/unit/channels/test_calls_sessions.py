"""Restore and disconnect calls: every subscription is called, even if another one fails."""

import asyncio
import json

import pytest

from ropewalk.channels import App, Channel, Connection, Runner
from ropewalk.model.application import CallContext, DisconnectCall, RestoreResult
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication
from tests.unit.channels.requests import BO, disconnect, encode_identifier, restore

app = App()
ROOM, BROKEN, QUIET = encode_identifier("Room"), encode_identifier("Broken"), encode_identifier("Quiet")
UNKNOWN = encode_identifier("Removed")


@app.channel
class Room(Channel):
    async def restored(self) -> None:
        self.transmit("welcome back")
        self.broadcast("room", {"back": self.connection.identity["name"]})
        self.state["returns"] = self.state.get("returns", 0) + 1
        self.connection.state["rooms"] = self.connection.state.get("rooms", 0) + 1

    def unsubscribed(self) -> None:
        self.transmit("not sent")
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
    disconnects.append((connection.identity["name"], connection.state.get("rooms")))


disconnects: list[tuple[str, object]] = []


@pytest.fixture(autouse=True)
def no_disconnects() -> None:
    disconnects.clear()


async def test_restore_calls_every_channel_with_restored() -> None:
    other = encode_identifier("Room", n=2)
    restore_result = await restore(app, {QUIET: {"a": "1"}, ROOM: {"returns": "4"}, other: {}})
    assert restore_result == RestoreResult(
        transmissions=tuple(
            json.dumps({"identifier": name, "message": "welcome back"}, separators=(",", ":")) for name in (ROOM, other)
        ),
        state={"rooms": "2"},
        own={ROOM: {"returns": "5"}, other: {"returns": "1"}},
        publications=(Publication("room", b'{"back":"Bo"}'),) * 2,
    )


async def test_restore_without_a_restored_handler_is_empty() -> None:
    assert await restore(app, {QUIET: {}}) == RestoreResult()
    assert await restore(app, {}) == RestoreResult()


async def test_failed_restored_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    restore_result = await restore(app, {ROOM: {}, BROKEN: {}, UNKNOWN: {}, "no JSON": {}, encode_identifier("Room", n=2): {}})
    assert len(restore_result.transmissions) == 2
    assert restore_result.state == {"rooms": "2"}
    assert "Broken.restored failed" in caplog.text


@pytest.mark.parametrize("method", ["stream_from", "stop_stream", "stop_all_streams", "join_presence", "leave_presence"])
async def test_streams_and_presence_cannot_change_in_restored(method: str, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    arguments = {"stream_from": ["a"], "stop_stream": ["a"], "join_presence": ["bo"]}.get(method, [])

    @app.channel
    class Late(Channel):
        def restored(self) -> None:
            getattr(self, method)(*arguments)

    assert await restore(app, {encode_identifier("Late"): {"$p": "a"}}) == RestoreResult()
    assert f"{method} cannot be used in restored" in caplog.text


async def test_restored_can_close_the_connection() -> None:
    app = App()

    @app.channel
    class Banned(Channel):
        def restored(self) -> None:
            self.disconnect()

    assert await restore(app, {encode_identifier("Banned"): {}}) == RestoreResult(disconnect=True)


async def test_reject_in_restored_has_no_effect() -> None:
    app = App()

    @app.channel
    class No(Channel):
        def restored(self) -> None:
            self.transmit("no")
            self.reject()

    assert await restore(app, {encode_identifier("No"): {}}) == RestoreResult()


async def test_disconnect_calls_all_subscriptions_and_then_the_app() -> None:
    publications = await disconnect(app, {ROOM: {"name": '"Bo"'}, QUIET: {}, encode_identifier("Room", n=2): {}})
    assert publications == (Publication("room", b'{"left":"Bo"}'), Publication("room", b'{"left":null}'))
    assert disconnects == [("Bo", -2)]


async def test_failed_unsubscribed_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    publications = await disconnect(app, {BROKEN: {}, UNKNOWN: {}, "no JSON": {}, ROOM: {}})
    assert publications == (Publication("room", b'{"left":null}'),)
    assert disconnects == [("Bo", -1)]
    assert "Broken.unsubscribed failed" in caplog.text


@pytest.mark.parametrize("rejects", [False, True])
async def test_failed_on_disconnect_is_logged_and_keeps_publications(rejects: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    app.channel(Room)

    @app.on_disconnect
    async def gone(connection: Connection) -> None:
        if rejects:
            connection.reject()
        raise ValueError

    assert len(await disconnect(app, {ROOM: {}})) == 1
    assert "gone" in caplog.text


async def test_disconnect_without_a_free_thread_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def exhausted(handler: object, *args: object) -> object:
        raise Unavailable("no thread")

    runner: Runner = exhausted
    assert await app.handle_disconnect(DisconnectCall(BO, {ROOM: {}}), runner) == ()
    assert "Room.unsubscribed did not run" in caplog.text


async def test_cancelled_disconnect_call_stops() -> None:
    app, started = App(), asyncio.Event()

    @app.channel
    class Slow(Channel):
        async def unsubscribed(self) -> None:
            started.set()
            await asyncio.Event().wait()

    app.on_disconnect(lambda connection: disconnects.append(("never", None)))
    disconnect_call = asyncio.get_running_loop().create_task(disconnect(app, {encode_identifier("Slow"): {}}, CallContext("s")))
    await started.wait()
    disconnect_call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await disconnect_call
    assert disconnects == []
