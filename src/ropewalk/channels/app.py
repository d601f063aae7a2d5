"""The app: declarations, a way to publish, and the one object that the server asks."""

from contextlib import suppress
from typing import Any

from ropewalk.channels import commands, sessions
from ropewalk.channels.declarations import Declarations
from ropewalk.channels.outlet import Outlet, Publish
from ropewalk.channels.publications import publication
from ropewalk.channels.runner import Runner, run_alone
from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ServerError
from ropewalk.model.messages import Publication, Receipt


class App(Declarations):
    """An application that runs inside the server: who may connect, and what its channels do.

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
    thread. An error in a handler is logged and concerns that one call: nobody is disconnected by it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outlet: Outlet | None = None

    async def publish(
        self, stream: str, data: Any, *, uid: str = "", type: str = "", transient: bool = False, exclude_socket: str = ""
    ) -> Receipt:
        """Publish JSON at once, from a handler or a background task; the receipt says where in the stream it stands.

        `uid`: a name under which it is registered once, however often it is sent. `type`: becomes the `type` of the message on
        the wire. `transient`: without a place in the history. `exclude_socket`: not to this session. Raises `Unavailable`.
        """
        message = publication(stream, data, exclude_socket=exclude_socket, transient=transient, uid=uid, type=type)
        return await self._serving("publish").publish(message)

    def publish_sync(
        self,
        stream: str,
        data: Any,
        *,
        uid: str = "",
        type: str = "",
        transient: bool = False,
        exclude_socket: str = "",
        timeout: float = 10.0,
    ) -> Receipt:
        """`publish` for plain functions, which run in threads. Raises `Unavailable` when it takes longer than `timeout`."""
        message = publication(stream, data, exclude_socket=exclude_socket, transient=transient, uid=uid, type=type)
        return self._serving("publish_sync").publish_sync(message, timeout)

    def _serving(self, what: str) -> Outlet:
        if self._outlet is None:
            raise RuntimeError(f"app.{what} works while the server runs the app: from its startup to the end of its shutdown")
        return self._outlet

    # --- what the server asks: records in, records out. A `runner` runs the handlers that are plain functions. ---------------

    async def start(self, publish: Publish, runner: Runner) -> None:
        """Begin to serve, on the caller's event loop. Raises ServerError where a startup handler fails."""
        self._outlet = Outlet(publish)
        try:
            for handler in self._startup:
                await run_alone(runner, handler)
        except BaseException:
            self._outlet = None
            raise

    async def stop(self, runner: Runner) -> None:
        """A shutdown handler that fails does not keep the others from running."""
        try:
            for handler in reversed(self._shutdown):
                with suppress(ServerError):  # the log has it
                    await run_alone(runner, handler)
        finally:
            self._outlet = None

    async def handle_connect(self, context: CallContext, runner: Runner) -> ConnectResult:
        """Raises ServerError, as all of these may."""
        return await sessions.connect(self._connect, context, runner)

    async def handle_command(self, call: CommandCall, runner: Runner) -> CommandResult:
        return await commands.handle(self._channels, call, runner)

    async def handle_restored(self, restore_call: RestoreCall, runner: Runner) -> RestoreResult:
        return await sessions.restore(self._channels, restore_call, runner)

    async def handle_disconnect(self, disconnect_call: DisconnectCall, runner: Runner) -> tuple[Publication, ...]:
        """What the handlers broadcast, for the caller to publish."""
        return await sessions.disconnect(self._channels, self._disconnect, disconnect_call, runner)
