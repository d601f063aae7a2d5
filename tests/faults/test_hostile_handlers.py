"""Python channels whose handlers do what nobody should: the server and every other session go on, and it ends when told to."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.cable import Cable, cable
from tests.server import running_server

APP = """
import asyncio, os, signal, sys, time
from ropewalk import App, Channel, Connection, action

app = App()


@app.on_connect
async def connect(connection: Connection) -> None:
    connection.identify(name="x")


@app.channel
class Room(Channel):
    @action
    async def exit(self):
        sys.exit(3)

    @action
    async def interrupt(self):
        raise KeyboardInterrupt

    @action
    async def generator_exit(self):
        raise GeneratorExit

    @action
    async def cancelled(self):
        raise asyncio.CancelledError

    @action
    async def cancel_itself(self):
        asyncio.current_task().cancel()
        await asyncio.sleep(60)

    @action
    async def exit_in_a_task(self):
        async def inner():
            sys.exit(3)
        await asyncio.create_task(inner())

    @action
    def exit_in_a_thread(self):
        sys.exit(3)

    @action
    def interrupt_in_a_thread(self):
        raise KeyboardInterrupt

    @action
    async def block(self):
        time.sleep(2.5)

    @action
    async def answer(self):
        self.transmit("still here")
"""

DEADLY = (
    "exit",
    "interrupt",
    "generator_exit",
    "cancelled",
    "cancel_itself",
    "exit_in_a_task",
    "exit_in_a_thread",
    "interrupt_in_a_thread",
)
ROOM = json.dumps({"channel": "Room"})
STOP_SECONDS = 10


async def perform(client: Cable, action: str) -> None:
    await client.send(command="message", identifier=ROOM, data=json.dumps({"action": action}))


async def still_here(client: Cable) -> None:
    await perform(client, "answer")
    await client.until("message", lambda frame: frame["message"] == "still here")


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "hostile.py").write_text(APP)
    return "--app", "hostile:app", "--app_dir", str(tmp_path)


async def test_whatever_a_handler_raises_its_session_goes_on_and_so_does_the_server(flags: tuple[str, ...]) -> None:
    with running_server(*flags) as server:
        async with cable(server) as client, cable(server) as bystander:
            for each in (client, bystander):
                await each.send(command="subscribe", identifier=ROOM)
                await each.until("confirm_subscription")
            for action in DEADLY:
                await perform(client, action)
                await still_here(client)
            await still_here(bystander)
            # A session that was left half-handled would keep the server from ending.
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, STOP_SECONDS) == 0
        assert all(f"Room.{action} failed" in server.log() for action in DEADLY if action != "cancel_itself")
        assert "cancelled its own call" in server.log()


async def test_a_handler_that_blocks_the_event_loop_is_named_in_the_log(flags: tuple[str, ...]) -> None:
    with running_server(*flags) as server:
        async with cable(server) as client:
            await client.send(command="subscribe", identifier=ROOM)
            await client.until("confirm_subscription")
            await perform(client, "block")
            await still_here(client)
        [warned] = [line for line in server.log().splitlines() if "blocks the event loop" in line]
        assert "Room.block" in warned
        assert "hostile.py" in warned
