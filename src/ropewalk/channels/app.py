"""The app: declares handlers and channels, publishes, and takes the server's calls."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, Unpack, overload

from ropewalk.channels import calls
from ropewalk.channels.calls import ConnectionHandler
from ropewalk.channels.channel import Channel
from ropewalk.channels.handlers import Runner, handler_name, run_contained
from ropewalk.channels.values import PublicationOptions, publication
from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ServerError, Unavailable
from ropewalk.model.messages import Publication, Receipt

AnyChannel = TypeVar("AnyChannel", bound=Channel)
LifeHandler = Callable[[], Awaitable[None] | None]
OnConnection = TypeVar("OnConnection", bound=ConnectionHandler)
OnLife = TypeVar("OnLife", bound=LifeHandler)
Publish = Callable[[Sequence[Publication]], Awaitable[list[Receipt]]]


class App:
    """An application that runs inside the server: decides who may connect, and what its channels do.

        from ropewalk import App, Channel, Connection

        app = App()

        @app.on_connect
        async def connect(connection: Connection) -> None:
            name = connection.params.get("name")
            if not name:
                connection.reject()
            connection.identify(name=name)

        @app.channel
        class ChatChannel(Channel):
            def subscribed(self) -> None:
                self.stream_from("chat")

    Handlers may be `async def`, which run on the server's event loop and must not block it, or plain `def`, which run in a
    thread. An error in a handler is logged and fails that one call. It disconnects no client.
    """

    def __init__(self) -> None:
        self._channels: dict[str, type[Channel]] = {}
        self._connect: ConnectionHandler | None = None
        self._disconnect: ConnectionHandler | None = None
        self._startup: list[LifeHandler] = []
        self._shutdown: list[LifeHandler] = []
        self._publisher: _LoopPublisher | None = None

    # --- decorators, which return their argument unchanged ------------------------------------------------------------

    def on_connect(self, handler: OnConnection) -> OnConnection:
        """Decide on a client: `connection.identify(...)` or `connection.reject()`. An app without it accepts no client."""
        if self._connect is not None:
            raise ValueError(f"the app has an on_connect already: {handler_name(self._connect)}")
        self._connect = handler
        return handler

    def on_disconnect(self, handler: OnConnection) -> OnConnection:
        """Called once a session has ended for good, after `unsubscribed` of each of its subscriptions."""
        if self._disconnect is not None:
            raise ValueError(f"the app has an on_disconnect already: {handler_name(self._disconnect)}")
        self._disconnect = handler
        return handler

    def on_startup(self, handler: OnLife) -> OnLife:
        """Called before the first client connects, to open pools and start tasks. If it fails the server does not start."""
        self._startup.append(handler)
        return handler

    def on_shutdown(self, handler: OnLife) -> OnLife:
        """Called after the last client has disconnected. Handlers run in reverse order of declaration."""
        self._shutdown.append(handler)
        return handler

    @overload
    def channel(self, declared: type[AnyChannel], /) -> type[AnyChannel]: ...
    @overload
    def channel(self, name: str, /) -> Callable[[type[AnyChannel]], type[AnyChannel]]: ...
    def channel(self, given: type[AnyChannel] | str, /) -> type[AnyChannel] | Callable[[type[AnyChannel]], type[AnyChannel]]:
        """Let clients subscribe to a channel, by its class's name or another: `@app.channel("Chat::RoomChannel")`."""
        if not isinstance(given, str):
            return self._declare(given, getattr(given, "__name__", ""))
        name = given
        return lambda declared: self._declare(declared, name)

    def _declare(self, declared: type[AnyChannel], name: str) -> type[AnyChannel]:
        if not _is_channel(declared):
            raise TypeError(f"@app.channel needs a subclass of ropewalk.Channel, not {declared!r}")
        if not name or name.startswith("$"):
            raise ValueError(f"a channel cannot be named {name!r}: names that begin with '$' are reserved for the server")
        if name in self._channels:
            taken = self._channels[name]
            raise ValueError(f"there is a channel {name!r} already: {taken.__module__}.{taken.__qualname__}")
        self._channels[name] = declared
        return declared

    # --- publishing ---------------------------------------------------------------------------------------------------

    async def publish(self, stream: str, data: Any, **options: Unpack[PublicationOptions]) -> Receipt:
        """Publish JSON at once, from a handler or a background task. Returns its position. Raises `Unavailable`.

        Args:
            uid: an idempotency key: messages with the same one are registered once.
            type: the `type` of the message on the wire.
            transient: do not keep it in the history.
            exclude_socket: the sid of a session that does not get it.
        """
        return await self._running("publish").publish(publication(stream, data, **options))

    def publish_sync(self, stream: str, data: Any, *, timeout: float = 10.0, **options: Unpack[PublicationOptions]) -> Receipt:
        """`publish` for plain functions, which run in threads. Raises `Unavailable` after `timeout` seconds."""
        message = publication(stream, data, **options)
        return self._running("publish_sync").publish_sync(message, timeout)

    def _running(self, method: str) -> "_LoopPublisher":
        if self._publisher is None:
            raise RuntimeError(f"app.{method} works only while the server runs the app: from its startup to its shutdown")
        return self._publisher

    # --- the server's calls: records in, records out. A `runner` runs handlers that are plain functions. --------------------

    async def start(self, publish: Publish, runner: Runner) -> None:
        """Start on the caller's event loop. Raises ServerError if a startup handler fails."""
        self._publisher = _LoopPublisher(publish)
        try:
            for handler in self._startup:
                await run_contained(runner, handler)
        except BaseException:
            self._publisher = None
            raise

    async def stop(self, runner: Runner) -> None:
        """A shutdown handler that fails does not stop the others from running."""
        try:
            for handler in reversed(self._shutdown):
                with suppress(ServerError):  # already logged
                    await run_contained(runner, handler)
        finally:
            self._publisher = None

    async def handle_connect(self, context: CallContext, runner: Runner) -> ConnectResult:
        """Raises ServerError, as do the other calls."""
        return await calls.connect(self._connect, context, runner)

    async def handle_command(self, call: CommandCall, runner: Runner) -> CommandResult:
        return await calls.command(self._channels, call, runner)

    async def handle_restored(self, restore_call: RestoreCall, runner: Runner) -> RestoreResult:
        return await calls.restore(self._channels, restore_call, runner)

    async def handle_disconnect(self, disconnect_call: DisconnectCall, runner: Runner) -> tuple[Publication, ...]:
        """Returns the handlers' broadcasts, for the caller to publish."""
        return await calls.disconnect(self._channels, self._disconnect, disconnect_call, runner)


class _LoopPublisher:
    """Publishes on the server's event loop, from any task and any thread. Made on that loop."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def publish(self, publication: Publication) -> Receipt:
        if asyncio.get_running_loop() is self._loop:
            return await self._send(publication)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._send(publication), self._loop))

    def publish_sync(self, publication: Publication, timeout: float) -> Receipt:
        if threading.get_ident() == self._thread:
            raise RuntimeError("app.publish_sync would block the event loop: use `await app.publish(...)` instead")
        sending = asyncio.run_coroutine_threadsafe(self._send(publication), self._loop)
        try:
            return sending.result(timeout)
        except TimeoutError:
            sending.cancel()
            raise Unavailable(f"not published within {timeout:g} s") from None

    async def _send(self, publication: Publication) -> Receipt:
        return (await self._publish([publication]))[0]


def _is_channel(declared: object) -> bool:
    return isinstance(declared, type) and issubclass(declared, Channel)
