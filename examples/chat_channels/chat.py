"""A chat as Python channels: who may connect, and what happens in a room. Run it with `ropewalk serve --app chat:app`."""

import re
from typing import Any

from ropewalk import ActionError, App, Channel, Connection, action

ROOM = re.compile("[a-z0-9-]{1,40}")
MAX_NAME_LENGTH = 40
MAX_TEXT_LENGTH = 2000

app = App()


@app.on_connect
async def connect(connection: Connection) -> None:
    """Accept any name. Your application checks a session cookie here, or uses JWT."""
    name = connection.params.get("name", "")
    if not 1 <= len(name) <= MAX_NAME_LENGTH:
        connection.reject(f"name must be 1 to {MAX_NAME_LENGTH} characters")
    connection.identify(name=name)


@app.channel
class ChatChannel(Channel):
    @property
    def name(self) -> str:
        return str(self.connection.identity["name"])

    @property
    def stream(self) -> str:
        return f"chat/{self.params['room']}"

    async def subscribed(self) -> None:
        room = self.params.get("room")
        if not isinstance(room, str) or not ROOM.fullmatch(room):
            self.reject("no such room")
        self.stream_from(self.stream, whisper=True, presence=True)  # present under its name, and under no other

    @action
    async def speak(self, data: dict[str, Any]) -> dict[str, int]:
        """The name in the message is the authenticated one, not one that the client sent."""
        text = data.get("text")
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_TEXT_LENGTH:
            raise ActionError(f"text must be 1 to {MAX_TEXT_LENGTH} characters", code="bad_text")
        self.state["said"] = self.state.get("said", 0) + 1
        self.broadcast(self.stream, {"name": self.name, "text": text, "number": self.state["said"]})
        return {"number": self.state["said"]}

    async def restored(self) -> None:
        self.broadcast(self.stream, {"name": self.name, "event": "came back"})

    async def unsubscribed(self) -> None:
        self.broadcast(self.stream, {"name": self.name, "event": "left"})
