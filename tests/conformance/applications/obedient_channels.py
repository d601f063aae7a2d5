"""The obedient application as Python channels, loaded by the server. An environment variable names its log.

Some of its handlers are async and some plain functions, so that both are under test.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from ropewalk import App, Channel, Connection, action
from ropewalk.testing import application_events as events
from ropewalk.testing.application_orders import ACTION, FAILING, HANG, NAME, PAUSE, SLOW, WELCOME_BACK, YES, Order, info

LOG = "OBEDIENT_LOG"

app = App()


def note(kind: str, connection: Connection, identifier: str = "", own: dict[str, str] | None = None, data: str = "") -> None:
    who = (connection.sid, connection.ids, connection.url, dict(connection.headers), dict(connection.state))
    events.note(Path(os.environ[LOG]), events.ApplicationEvent(kind, *who, identifier, own or {}, data))


@app.on_connect
async def connect(connection: Connection) -> None:
    user = connection.cookies.get(NAME) or connection.params.get(NAME, "")
    note("connect" if user not in ("", FAILING) else "refused", connection)
    await wait(connection)
    if user == FAILING:
        raise RuntimeError("as its name demands")
    if not user:
        connection.reject("nobody")
    connection.identify(**{NAME: user})
    connection.state["entered"] = YES


@app.on_disconnect
async def gone(connection: Connection) -> None:
    note("disconnect", connection)
    if HANG in connection.params:
        await asyncio.Event().wait()


async def wait(connection: Connection) -> None:
    if SLOW in connection.params:
        await asyncio.sleep(PAUSE)
    if HANG in connection.params:
        await asyncio.Event().wait()


@app.channel
class ObedientChannel(Channel):
    async def subscribed(self) -> None:
        self._note("subscribe")
        order = msgspec.convert(self.params["order"], Order)
        if order.slow:
            await asyncio.sleep(PAUSE)
        if order.hang:
            await asyncio.Event().wait()
        self._obey(order)

    @action(ACTION)
    def ordered(self, data: dict[str, Any]) -> None:
        self._note("message", msgspec.json.encode(data).decode())
        order = msgspec.convert(data["order"], Order)
        if order.slow:
            time.sleep(PAUSE)
        self._obey(order)

    def unsubscribed(self) -> None:
        self._note("unsubscribe")

    async def restored(self) -> None:
        self._note("restored")
        await wait(self.connection)
        self.transmit(WELCOME_BACK)
        self.state["returned"] = self.connection.state["returned"] = YES

    def _note(self, kind: str, data: str = "") -> None:
        note(kind, self.connection, self.identifier, dict(self.state), data)

    def _obey(self, order: Order) -> None:
        for text in order.say:
            self.transmit(text)
        if order.disconnect:
            self.disconnect()
        if order.fail:
            raise RuntimeError("as ordered")
        if order.reject:
            self.reject("as ordered")
        change(self.state, order.keep)
        change(self.connection.state, order.remember)
        self._stream(order)
        if order.join:
            self.join_presence(order.join, info(order.join))
        if order.leave:
            self.leave_presence()

    def _stream(self, order: Order) -> None:
        if order.stop_all:
            self.stop_all_streams()
        for stream in order.stop:
            self.stop_stream(stream)
        for stream in order.streams:
            self.stream_from(stream)
        if order.whisper:
            self.stream_from(order.whisper, whisper=True)
        if order.presence:
            self.stream_from(order.presence, presence="client")


def change(state: dict[str, Any], changes: dict[str, str]) -> None:
    state.update(changes)
    for key in [key for key, value in changes.items() if not value]:
        del state[key]
