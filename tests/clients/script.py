"""A node process that runs a real JavaScript client, and what its clients told so far.

The rule: a test waits for what a client tells, never for a time; a wait that fails shows the whole conversation.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEADLINE = 15.0
EXTENDED = "actioncable-v1-ext-json"

Event = dict[str, Any]


class Script:
    """Commands go in, events come out; `clients` are the named ends of it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.events: list[Event] = []
        self.ended = False
        self._process = process
        self._news = asyncio.Event()

    async def order(self, command: str, **args: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **args}).encode() + b"\n")
        await self._process.stdin.drain()

    async def open(self, client: str, url: str, **args: object) -> "Client":
        """A client that has only begun to connect."""
        await self.order("open", client=client, url=url, **{"protocol": EXTENDED, **args})
        return Client(self, client)

    async def connect(self, client: str, url: str, **args: object) -> "Client":
        opened = await self.open(client, url, **args)
        await opened.sees("connect")
        return opened

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.events.append(json.loads(line))
            self._news.set()
        self.ended = True
        self._news.set()

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                while not condition():
                    assert not self.ended, f"the script ended before {what}\n{self.transcript()}"
                    failed = [event for event in self.events if event["event"] == "failed"]
                    assert not failed, f"a command failed before {what}\n{failed[0]['text']}"
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not in {DEADLINE:.0f} s: {what}\n{self.transcript()}") from None

    def transcript(self) -> str:
        lines = [json.dumps(event, ensure_ascii=False) for event in self.events[-40:]]
        return "\n".join(["the last that the clients told:", *(f"  {line[:300]}" for line in lines)])


class Client:
    """One cable or consumer of a script, by the words a test uses."""

    def __init__(self, script: Script, name: str) -> None:
        self.name = name
        self._script = script

    async def order(self, command: str, **args: object) -> None:
        await self._script.order(command, client=self.name, **args)

    async def subscribe(self, channel: str, **args: object) -> None:
        """Ask for the channel and wait until the client says that it was confirmed."""
        times = len(self.all("subscribed", channel=channel)) + 1
        await self.order("subscribe", channel=channel, **args)
        await self.sees("subscribed", channel=channel, times=times)

    async def unsubscribe(self, channel: str, fence: str) -> None:
        """An unsubscribe has no answer: wait for that to a later subscribe, since commands are handled in their order."""
        await self.order("unsubscribe", channel=channel)
        await self.subscribe(fence, stream=fence)

    async def lose(self, how: str = "fin") -> None:
        """Lose the link without a close frame, and wait until the client knows."""
        times = len(self.all("disconnect")) + 1
        await self.order("cut", how=how)
        await self.sees("disconnect", times=times)

    async def come_back(self) -> Event:
        times = len(self.all("connect")) + 1
        await self.order("reconnect")
        return await self.sees("connect", times=times)

    def all(self, event: str, **fields: object) -> list[Event]:
        wanted: Event = {"client": self.name, "event": event, **fields}
        return [told for told in self._script.events if wanted.items() <= _flat(told).items()]

    async def sees(self, event: str, times: int = 1, **fields: object) -> Event:
        """Wait for the event; with `times`, for that many of them. Returns the last of these."""
        await self._script.until(
            lambda: len(self.all(event, **fields)) >= times, f"{self.name} sees {event} {fields or ''} (x{times})"
        )
        return self.all(event, **fields)[times - 1]

    async def gets(self, channel: str, count: int) -> list[Event]:
        """Wait for that many messages on the channel. Returns all that there are: a test compares, so a surplus fails it."""
        await self.sees("message", times=count, channel=channel)
        return self.all("message", channel=channel)

    async def frame(self, type: str, times: int = 1) -> Event:
        """Wait for a frame of this type, decoded from what was on the wire, with its numbers exact."""
        await self._script.until(lambda: len(self.frames(type)) >= times, f"{self.name} gets a {type} frame (x{times})")
        return self.frames(type)[times - 1]

    def frames(self, type: str | None = None) -> list[Event]:
        decoded: list[Event] = [json.loads(told["text"]) for told in self.all("frame")]
        return [frame for frame in decoded if type is None or frame.get("type") == type]


def texts(events: list[Event]) -> list[object]:
    return [event["message"] for event in events]


def offsets(events: list[Event]) -> list[int]:
    return [event["meta"]["offset"] for event in events]


def _flat(event: Event) -> Event:
    return {key: value for key, value in event.items() if not isinstance(value, dict | list)}


@asynccontextmanager
async def running_script(name: str) -> AsyncIterator[Script]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("node", name, cwd=HERE, stdin=pipe, stdout=pipe, limit=2**24)
    script = Script(process)
    listening = asyncio.create_task(script.listen())
    try:
        yield script
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await listening
