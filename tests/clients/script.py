"""A Node process that runs a real JavaScript client library, and the events that its clients reported.

The rule: a test waits for an event, never for a time. A wait that fails shows the events so far.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 60.0
EXTENDED = "actioncable-v1-ext-json"

Event = dict[str, Any]


class NodeProcess:
    """Runs one of the scripts here. Several tests share it: each has a `Script` with clients of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.ended = False
        self._process = process
        self._scripts: dict[str, Script] = {}
        self._numbers = itertools.count(1)

    def new_script(self, name: str = "") -> "Script":
        name = name or str(next(self._numbers))
        self._scripts[name] = Script(self, name)
        return self._scripts[name]

    async def end_script(self, script: "Script") -> None:
        """Close its clients and drop the events that they still report."""
        del self._scripts[script.name]
        await self.send({"command": "end", "client": f"{script.name}:"})

    async def send(self, command: Event) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()

    async def read_events(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            name, _, client = event["client"].partition(":")
            if script := self._scripts.get(name):
                script.add({**event, "client": client})
        self.ended = True
        for script in self._scripts.values():
            script.changed.set()


class Script:
    """The clients of one test: commands go in, events come out."""

    def __init__(self, node: NodeProcess, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self._node = node

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    async def order(self, command: str, client: str, **args: object) -> None:
        await self._node.send({"command": command, "client": f"{self.name}:{client}", **args})

    async def open(self, client: str, url: str, **args: object) -> "Client":
        """A client that has only begun to connect."""
        await self.order("open", client, url=url, **{"protocol": EXTENDED, **args})
        return Client(self, client)

    async def connect(self, client: str, url: str, **args: object) -> "Client":
        opened = await self.open(client, url, **args)
        await opened.sees("connect")
        return opened

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not condition():
                    assert not self._node.ended, f"the script ended before {what}\n{self.transcript()}"
                    failed = [event for event in self.events if event["event"] == "failed"]
                    assert not failed, f"a command failed before {what}\n{failed[0]['text']}"
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise AssertionError(f"not in {TIMEOUT_SECONDS:.0f} s: {what}\n{self.transcript()}") from None

    def transcript(self) -> str:
        lines = [json.dumps(event, ensure_ascii=False) for event in self.events[-40:]]
        return "\n".join(["the last events:", *(f"  {line[:300]}" for line in lines)])


class Client:
    """One cable or consumer of a script."""

    def __init__(self, script: Script, name: str) -> None:
        self.name = name
        self._script = script

    async def order(self, command: str, **args: object) -> None:
        await self._script.order(command, self.name, **args)

    async def subscribe(self, channel: str, **args: object) -> None:
        """Subscribe and wait for the confirmation."""
        times = len(self.all("subscribed", channel=channel)) + 1
        await self.order("subscribe", channel=channel, **args)
        await self.sees("subscribed", channel=channel, times=times)

    async def unsubscribe(self, channel: str, fence: str) -> None:
        """An unsubscribe has no response: wait for that to a later subscribe, since commands are handled in their order."""
        await self.order("unsubscribe", channel=channel)
        await self.subscribe(fence, stream=fence)

    async def lose(self, how: str = "fin") -> None:
        """Lose the link without a close frame, and wait until the client notices."""
        times = len(self.all("disconnect")) + 1
        await self.order("cut", how=how)
        await self.sees("disconnect", times=times)

    async def come_back(self) -> Event:
        times = len(self.all("connect")) + 1
        await self.order("reconnect")
        return await self.sees("connect", times=times)

    def all(self, event: str, **fields: object) -> list[Event]:
        wanted: Event = {"client": self.name, "event": event, **fields}
        return [found for found in self._script.events if wanted.items() <= _flat(found).items()]

    async def sees(self, event: str, times: int = 1, **fields: object) -> Event:
        """Wait for the event; with `times`, for that many of them. Returns the last of these."""
        await self._script.until(
            lambda: len(self.all(event, **fields)) >= times, f"{self.name} sees {event} {fields or ''} (x{times})"
        )
        return self.all(event, **fields)[times - 1]

    async def gets(self, channel: str, count: int) -> list[Event]:
        """Wait for that many messages on the channel. Returns all of them: a test compares, so a surplus fails it."""
        await self.sees("message", times=count, channel=channel)
        return self.all("message", channel=channel)

    async def frame(self, type: str, times: int = 1) -> Event:
        """Wait for a frame of this type, decoded from the bytes on the wire, with exact numbers."""
        await self._script.until(lambda: len(self.frames(type)) >= times, f"{self.name} gets a {type} frame (x{times})")
        return self.frames(type)[times - 1]

    def frames(self, type: str | None = None) -> list[Event]:
        decoded: list[Event] = [json.loads(event["text"]) for event in self.all("frame")]
        return [frame for frame in decoded if type is None or frame.get("type") == type]


def texts(events: list[Event]) -> list[object]:
    return [event["message"] for event in events]


def offsets(events: list[Event]) -> list[int]:
    return [event["meta"]["offset"] for event in events]


def _flat(event: Event) -> Event:
    return {key: value for key, value in event.items() if not isinstance(value, dict | list)}


@asynccontextmanager
async def node_process(name: str) -> AsyncIterator[NodeProcess]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("node", name, cwd=HERE, stdin=pipe, stdout=pipe, limit=2**24)
    node = NodeProcess(process)
    reading = asyncio.create_task(node.read_events())
    try:
        yield node
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await reading


@asynccontextmanager
async def new_script(node: NodeProcess) -> AsyncIterator[Script]:
    script = node.new_script()
    try:
        yield script
    finally:
        await node.end_script(script)
