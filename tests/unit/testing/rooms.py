"""An app that uses every feature of channels. `calls` records the calls of its handlers."""

import asyncio
from typing import Any

from ropewalk import ActionError, App, Channel, Connection, action


class Rooms(App):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.waiting = asyncio.Event()
        self.gate = asyncio.Event()


def rooms() -> Rooms:
    app = Rooms()
    app.on_startup(lambda: app.calls.append("startup"))
    app.on_shutdown(lambda: app.calls.append("shutdown"))
    app.on_connect(_connect)
    app.on_disconnect(lambda connection: app.calls.append(f"disconnected {connection.identity['name']}"))
    app.channel("RoomChannel")(_room_channel(app))
    return app


async def _connect(connection: Connection) -> None:
    name = connection.params.get("name") or connection.cookies.get("name") or connection.headers.get("x-name")
    if not name:
        connection.reject("no name")
    connection.identify(name=name)
    connection.state["from"] = connection.remote


def _room_channel(app: Rooms) -> type[Channel]:
    class RoomChannel(Channel):
        def _record(self, call: str) -> None:
            app.calls.append(f"{call} {self.connection.identity['name']} {self.params['room']}")

        async def subscribed(self) -> None:
            self._record("subscribed")
            match self.params["room"]:
                case "full":
                    self.transmit("no seat is left")
                    self.reject("full")
                case "broken":
                    raise KeyError("missing room")
            open_to_all = self.params.get("open", True)
            self.stream_from(f"room/{self.params['room']}", whisper=open_to_all, presence=open_to_all)

        def unsubscribed(self) -> None:
            self._record("unsubscribed")
            if self.params.get("fragile"):
                raise ValueError("cannot unsubscribe")

        async def restored(self) -> None:
            self._record("restored")
            self.transmit(f"welcome back after {self.state.get('said', 0)}")
            if self.params.get("fragile"):
                raise ValueError("cannot restore")

        @action
        async def speak(self, data: dict[str, Any]) -> None:
            self.state["said"] = self.state.get("said", 0) + 1
            self.broadcast(f"room/{self.params['room']}", data["text"])

        @action
        async def add(self, data: dict[str, Any]) -> dict[str, int]:
            if not all(isinstance(data[name], int) for name in "ab"):
                raise ActionError("numbers only", code="not_a_number")
            return {"sum": data["a"] + data["b"]}

        @action
        def speak_sync(self, data: dict[str, Any]) -> None:
            app.publish_sync(f"room/{self.params['room']}", data["text"])

        @action
        async def wait(self) -> None:
            app.waiting.set()
            await app.gate.wait()
            self.transmit("waited")

        @action
        async def publish_later(self) -> None:
            async def publish() -> None:
                await app.gate.wait()
                await app.publish(f"room/{self.params['room']}", "published later")

            self.connection.state["later"] = True
            _running.add(asyncio.create_task(publish()))

        @action
        async def move(self, data: dict[str, Any]) -> None:
            self.stop_all_streams()
            self.stream_from(f"room/{data['to']}")

        @action
        async def refuse(self) -> None:
            self.transmit("sorry")
            self.reject("not today")

        @action
        async def close(self) -> None:
            self.disconnect()

        @action
        async def crash(self) -> None:
            raise ZeroDivisionError("crashed")

        @action
        def exit(self) -> None:
            raise SystemExit(3)

    return RoomChannel


_running: set[asyncio.Task[None]] = set()
