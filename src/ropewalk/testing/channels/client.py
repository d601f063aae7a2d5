"""A client of the app under test."""

from typing import Any

from ropewalk.channels.values import decode_state, json_object, json_text
from ropewalk.model.commands import Subscribe
from ropewalk.testing.channels.line import CapturedConnection
from ropewalk.testing.channels.mailbox import Mailbox, Rejected
from ropewalk.testing.channels.subscription import Subscription


class Client:
    """Made by `Cable.connect`. What its calls cause is done when they return; what handlers raised meanwhile they raise."""

    def __init__(self, line: CapturedConnection) -> None:
        self._line = line

    @property
    def sid(self) -> str:
        return self._line.session.sid

    @property
    def identity(self) -> dict[str, Any]:
        """What `connection.identify` was given."""
        return json_object(self._line.session.ids) or {}

    @property
    def state(self) -> dict[str, Any]:
        """What the app keeps in `connection.state`."""
        side = self._line.session.app
        return decode_state(side.state) if side else {}

    @property
    def closed(self) -> bool:
        """The connection is over: the app closed it, or the client has left."""
        return self._line.closed

    @property
    def frames(self) -> list[dict[str, Any]]:
        """All that the server has said on the wire, as parsed JSON."""
        return self._line.frames

    async def subscribe(self, channel: str, /, **params: Any) -> Subscription:
        """Subscribe to a channel of the app by its name. Raises `Rejected`, or what the handler raised."""
        identifier = json_text({"channel": channel, **params}, "what a channel is subscribed with")
        mailbox = self._line.mailboxes.setdefault(identifier, Mailbox(identifier))
        try:
            await self._line.ask(Subscribe(identifier))
        except Rejected as no:
            del self._line.mailboxes[identifier]
            raise Rejected(no.reason, mailbox.messages) from None
        except Exception:
            self._line.mailboxes.pop(identifier, None)
            raise
        return Subscription(self._line, mailbox)

    async def drop(self) -> None:
        """Lose the connection, as in a tunnel. The server keeps the session, and the app hears nothing of it."""
        await self._line.drop()

    async def resume(self) -> bool:
        """Come back, as clients' libraries do, and get what was missed. The channels' `restored` is called.

        False if the session was over by then: the client has connected anew, and subscribed again to what it had.
        """
        if not (self._line.away or self._line.closed):
            raise RuntimeError("the client is connected: drop() first")
        return await self._line.resume()

    async def disconnect(self) -> None:
        """Leave for good, as a page that is closed: `unsubscribed` and `on_disconnect` are called at once."""
        await self._line.leave()
