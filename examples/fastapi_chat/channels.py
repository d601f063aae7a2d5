"""The live half: who may connect, and what happens in a room. Run by the server, with `ropewalk serve --app channels:app`."""

import re
from typing import Any

from chat import COOKIE, MAX_TEXT_LENGTH, ROOM, name_in, room_stream

from ropewalk import ActionError, App, Channel, Connection, action

app = App()


@app.on_connect
async def connect(connection: Connection) -> None:
    name = name_in(connection.cookies.get(COOKIE, ""))
    if name is None:
        connection.reject("no session cookie")
    connection.identify(name=name)


@app.channel
class ChatChannel(Channel):
    @property
    def stream(self) -> str:
        return room_stream(self.params["room"])

    @property
    def name(self) -> str:
        return str(self.connection.identity["name"])

    async def subscribed(self) -> None:
        room = self.params.get("room")
        if not isinstance(room, str) or not re.fullmatch(ROOM, room):
            self.reject("no such room")
        self.stream_from(self.stream, whisper=True, presence=True)

    @action
    async def speak(self, data: dict[str, Any]) -> None:
        text = data.get("text")
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT_LENGTH:
            raise ActionError(f"text must be 1 to {MAX_TEXT_LENGTH} characters")
        self.broadcast(self.stream, {"name": self.name, "text": text})
