"""A client's end of the wire in a test: real JSON to the engine and back, over as many connections as the test wants."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from ropewalk.engine.session import Session
from ropewalk.model.commands import History, Subscribe
from ropewalk.model.history import HistoryRequest
from ropewalk.model.sessions import ConnectRequest, Subscribed
from ropewalk.protocol import cable_json, server_messages
from ropewalk.protocol.client_commands import ClientCommand, encode
from ropewalk.protocol.server_messages import Welcome
from ropewalk.testing.channels.bench import Bench
from ropewalk.testing.channels.connection import DirectConnection
from ropewalk.testing.channels.mailbox import Mailbox, Rejected


class CapturedConnection:
    """`away`: the connection is lost, and the client may come back; `closed`: it is over. Opened before all else."""

    session: Session

    def __init__(self, bench: Bench, request: ConnectRequest) -> None:
        self.away = False
        self.closed = False
        self.frames: list[dict[str, Any]] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self._bench = bench
        self._request = request
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._welcome = Welcome()

    # --- coming and going ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Raises `Rejected`, or what the handler raised."""
        accepted = await self._begin()
        self._bench.raise_errors()
        if not accepted:
            raise self._rejection()

    async def drop(self) -> None:
        self._must_be_there()
        for mailbox in self.mailboxes.values():
            await self._note_tips(mailbox)
        self.away = True
        self.session.connection_lost()
        await self._bench.finish()

    async def resume(self) -> bool:
        """Raises what handlers raised once all is as it would be without a test that looks at it."""
        accepted = await self._begin(self.session.sid)
        granted = [await self._claim(mailbox) for mailbox in list(self.mailboxes.values())]
        self._bench.raise_errors()
        if not accepted or not all(granted):
            raise self._rejection()
        return self._welcome.restored

    async def leave(self) -> None:
        self._must_be_there()
        self.closed = True
        self.session.connection_lost(going_away=True)
        await self._bench.finish()

    async def _begin(self, former: str = "") -> bool:
        """True if the client was let in. `former`: the sid of the session to go on with."""
        options = self._request.options
        request = replace(self._request, options=replace(options, former_sid=former)) if former else self._request
        self.away = self.closed = False
        self.session = self._bench.open(request, DirectConnection(self._hear, self._end))
        accepted = await self.session.wait_opened()
        if self.session.returning is not None:
            await asyncio.wait([self.session.returning])
        await self._bench.settle()
        return accepted

    async def _claim(self, mailbox: Mailbox) -> bool:
        """What clients' libraries do: ask for what was missed, and subscribe again to what was not restored."""
        if self.closed:
            return True
        missed, identifier = HistoryRequest(streams=mailbox.positions), mailbox.identifier
        if identifier in self._welcome.restored_ids:
            return await self._send(History(identifier, missed))
        granted = await self._send(Subscribe(identifier, missed))
        if not granted:
            del self.mailboxes[identifier]
        return granted

    async def _note_tips(self, mailbox: Mailbox) -> None:
        """A stream of which nothing was seen is resumed from where it stands when the connection is lost."""
        granted = self.granted(mailbox.identifier)
        for stream in granted.streams if granted else ():
            mailbox.positions.setdefault(stream, await self._bench.backend.streams.tip(stream))

    # --- saying -------------------------------------------------------------------------------------------------------

    async def ask(self, command: ClientCommand, refused: str = "") -> None:
        """Send a command and wait until it is handled. Raises what handlers raised, or `Rejected`, with the reason `refused` if
        it was not the app that said no."""
        granted = await self._send(command)
        self._bench.raise_errors()
        if not granted:
            raise self._rejection(refused)

    async def _send(self, command: ClientCommand) -> bool:
        async with self._turn:  # the commands of a session are handled one after another
            self._must_be_there()
            return await self._bench.handle(self.session, cable_json.decode(encode(command)))

    def _rejection(self, otherwise: str = "") -> Rejected:
        return Rejected(self._bench.app.refusals.pop(self.session.sid, otherwise or "the server refuses it"))

    def _must_be_there(self) -> None:
        if self.closed:
            raise RuntimeError("the client's connection is closed")
        if self.away:
            raise RuntimeError("the client has lost its connection: resume() first")

    # --- hearing ------------------------------------------------------------------------------------------------------

    def granted(self, identifier: str) -> Subscribed | None:
        """What the server keeps of a subscription; None if it has none."""
        subscription = self.session.subscriptions.get(identifier)
        return subscription.granted if subscription else None

    async def wait(self, come: Callable[[], bool], seconds: float) -> None:
        """Until it has come, or nothing more can come, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not come() and not self.closed:
                    self._news.clear()
                    await self._news.wait()

    def _hear(self, text: bytes) -> None:
        self.frames.append(msgspec.json.decode(text))
        self._news.set()
        message = server_messages.decode(text)
        if isinstance(message, Welcome):
            self._welcome = message
        elif mailbox := self.mailboxes.get(getattr(message, "identifier", "")):
            mailbox.hear(message)

    def _end(self) -> None:
        self.closed = True
        self._news.set()
