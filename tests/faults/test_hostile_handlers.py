"""Python channels whose handlers raise exceptions that end programs, or block: the server and its sessions continue."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.cable import Cable, cable
from tests.server import running_server

APP = """
import asyncio, logging, sys, time
from ropewalk import App, Channel, Connection, action

app = App()


class Warnings(logging.Handler):
    received = False

    def emit(self, record):
        self.received |= "blocks the event loop" in record.getMessage()


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
        warnings = Warnings()
        logging.getLogger("ropewalk").addHandler(warnings)
        deadline = time.monotonic() + 60
        while not warnings.received and time.monotonic() < deadline:
            time.sleep(0.05)

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
SECONDS = 60  # matters only where the test fails


async def perform(client: Cable, action: str) -> None:
    await client.send(command="message", identifier=ROOM, data=json.dumps({"action": action}))


async def expect_answer(client: Cable) -> None:
    await perform(client, "answer")
    await client.until("message", lambda frame: frame["message"] == "still here")


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "hostile.py").write_text(APP)
    return "--app", "hostile:app", "--app_dir", str(tmp_path)


async def test_handlers_that_raise_anything_or_block_stop_neither_their_session_nor_the_server(flags: tuple[str, ...]) -> None:
    with running_server(*flags, "--shutdown_timeout", f"{10 * SECONDS}s", allow_tracebacks=True) as server:
        async with cable(server) as client, cable(server) as other:
            for each in (client, other):
                await each.send(command="subscribe", identifier=ROOM)
                await each.until("confirm_subscription")
            for action in (*DEADLY, "block"):
                await perform(client, action)
                await expect_answer(client)
            await expect_answer(other)
            # A session that was left half-handled would delay the end until --shutdown_timeout.
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, SECONDS) == 0
        log = server.log()
        assert [action for action in DEADLY if action != "cancel_itself" and f"Room.{action} failed" not in log] == []
        assert "cancelled its own call" in log
        [warning] = [line for line in log.splitlines() if "blocks the event loop" in line and "Room.block" in line]
        assert "hostile.py" in warning
