"""What an application's author declares: handlers and channels. What cannot work is said where it is declared."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from ropewalk.channels.channel import Channel
from ropewalk.channels.runner import name_of
from ropewalk.channels.sessions import ConnectionHandler

AnyChannel = TypeVar("AnyChannel", bound=Channel)
LifeHandler = Callable[[], Awaitable[None] | None]
OnConnection = TypeVar("OnConnection", bound=ConnectionHandler)
OnLife = TypeVar("OnLife", bound=LifeHandler)


class Declarations:
    """The decorators of an app. Each gives back what it was put on, as it was."""

    def __init__(self) -> None:
        self._channels: dict[str, type[Channel]] = {}
        self._connect: ConnectionHandler | None = None
        self._disconnect: ConnectionHandler | None = None
        self._startup: list[LifeHandler] = []
        self._shutdown: list[LifeHandler] = []

    def on_connect(self, handler: OnConnection) -> OnConnection:
        """Decide who may come in: `connection.identify(...)` or `connection.reject()`. An app without it lets nobody in."""
        if self._connect is not None:
            raise ValueError(f"the app has an on_connect already: {name_of(self._connect)}")
        self._connect = handler
        return handler

    def on_disconnect(self, handler: OnConnection) -> OnConnection:
        """Called once a session is gone for good, after the `unsubscribed` of each of its subscriptions."""
        if self._disconnect is not None:
            raise ValueError(f"the app has an on_disconnect already: {name_of(self._disconnect)}")
        self._disconnect = handler
        return handler

    def on_startup(self, handler: OnLife) -> OnLife:
        """Called before the first client comes, to open pools and start tasks. The server does not start if it fails."""
        self._startup.append(handler)
        return handler

    def on_shutdown(self, handler: OnLife) -> OnLife:
        """Called after the last client has gone; the last declared comes first."""
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
            raise TypeError(f"@app.channel goes on a subclass of ropewalk.Channel, not on {declared!r}")
        if not name or name.startswith("$"):
            raise ValueError(f"a channel cannot be named {name!r}: the server keeps names that begin with '$' for itself")
        if name in self._channels:
            taken = self._channels[name]
            raise ValueError(f"there is a channel {name!r} already: {taken.__module__}.{taken.__qualname__}")
        self._channels[name] = declared
        return declared


def _is_channel(declared: object) -> bool:
    return isinstance(declared, type) and issubclass(declared, Channel)
