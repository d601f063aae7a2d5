"""Python channels in a test: the app is served by the real engine, without a network and without waiting."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import msgspec

from ropewalk.channels import App
from ropewalk.channels.values import publication
from ropewalk.model.messages import Receipt
from ropewalk.model.sessions import ConnectRequest
from ropewalk.protocol.handshake import client_options
from ropewalk.testing.channels.bench import Bench
from ropewalk.testing.channels.client import Client
from ropewalk.testing.channels.line import CapturedConnection

MAX_HISTORY = 1_000_000
ADDRESS = "http://cable.test"
PATH = "/cable"


class Cable:
    """Serves an app for the length of a block.

        async with Cable(app) as cable:
            bo = await cable.connect(params={"name": "Bo"})
            chat = await bo.subscribe("ChatChannel", room=1)
            await chat.perform("speak", text="hi")
            assert await chat.receive() == {"from": "Bo", "text": "hi"}

    What a handler raises is raised by the call of the test that made it run, and by the end of the block if there was none.
    `headers` are those that the app sees, as in `--headers`; `timeout` is how many seconds a handler may take.
    """

    def __init__(self, app: App, *, headers: Sequence[str] = ("cookie",), timeout: float = 10.0) -> None:
        self._bench = Bench(app, headers, timeout)

    async def __aenter__(self) -> Self:
        """Runs the app's startup handlers."""
        await self._bench.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every session, so that the app hears of it, and runs its shutdown handlers."""
        await self._bench.stop()
        if error is None:
            self._bench.raise_errors()

    @property
    def errors(self) -> Sequence[BaseException]:
        """All that handlers have raised so far, also what a call of the test has raised already."""
        return tuple(self._bench.app.errors)

    async def connect(
        self,
        *,
        params: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        remote: str = "127.0.0.1",
    ) -> Client:
        """A new client, by way of the app's `on_connect`. Raises `Rejected`, or what the handler raised."""
        given = {name.lower(): value for name, value in (headers or {}).items()}
        if cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        if unseen := [name for name in given if name not in self._bench.headers]:
            raise ValueError(
                f"the app would not see {', '.join(unseen)}: say Cable(app, headers=[...]), and --headers to the server"
            )
        query = dict(params or {})
        url = f"{ADDRESS}{PATH}?{urlencode(query)}" if query else f"{ADDRESS}{PATH}"
        options = client_options(given, query)
        line = CapturedConnection(self._bench, ConnectRequest(url, PATH, given, query, remote, extended=True, options=options))
        await line.open()
        return Client(line)

    async def publish(
        self, stream: str, data: Any, *, uid: str = "", type: str = "", transient: bool = False, exclude_socket: str = ""
    ) -> Receipt:
        """Publish from outside, as another part of the application would."""
        message = publication(stream, data, exclude_socket=exclude_socket, transient=transient, uid=uid, type=type)
        receipts = await self._bench.node.broker.publish([message])
        await self._bench.settle()
        return receipts[0]

    async def history(self, stream: str) -> list[Any]:
        """What was published to a stream, by whomever, oldest first: as much as the server keeps."""
        found: list[Any] = []
        after: int | None = 0
        while after is not None:
            page = await self._bench.backend.streams.page(stream, after, MAX_HISTORY)
            found += [msgspec.json.decode(message.payload) for message in page.messages] if page else []
            after = page.next_offset if page else None
        return found

    async def advance(self, seconds: float) -> None:
        """Let time pass: sessions of clients that stay away end (after 300 s), as do presence (15 s) and history (300 s)."""
        await self._bench.advance(seconds)
