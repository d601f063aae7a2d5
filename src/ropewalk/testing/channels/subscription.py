"""A client's subscription to a channel under test: what it received, and what it can do."""

from typing import Any

from ropewalk.channels.values import decode_state, json_bytes, json_text
from ropewalk.model.commands import Join, Leave, Perform, Presence, Unsubscribe, Whisper
from ropewalk.model.presence import Member
from ropewalk.protocol.transmissions import REPLY_TO_KEY
from ropewalk.testing.channels.line import CapturedConnection
from ropewalk.testing.channels.mailbox import Mailbox, NothingReceived, Rejected

NO_PRESENCE = "there is no presence here: the channel allows it with stream_from(..., presence=True)"
NO_WHISPER = "whispers are not allowed here: the channel allows them with stream_from(..., whisper=True)"
NOT_PRESENT = "the client is not present here"
NOT_SUBSCRIBED = "the client is not subscribed (any more)"


class Subscription:
    """Made by `Client.subscribe`. What its calls cause is done when they return; what handlers raised meanwhile they raise."""

    def __init__(self, line: CapturedConnection, mailbox: Mailbox) -> None:
        self._line = line
        self._mailbox = mailbox
        self._calls = 0

    @property
    def identifier(self) -> str:
        return self._mailbox.identifier

    @property
    def messages(self) -> list[Any]:
        """All that it received, oldest first: what was transmitted to it, and what came on its streams."""
        return self._mailbox.messages

    @property
    def unread(self) -> list[Any]:
        """The messages that `receive` has not returned yet."""
        return self.messages[self._mailbox.read :]

    @property
    def presence_events(self) -> list[dict[str, Any]]:
        """Who came and went, as clients are told: `{"type": "join", "id": "bo", "info": None}`."""
        return self._mailbox.presence_events

    @property
    def streams(self) -> tuple[str, ...]:
        """What it streams from, in the order in which the channel said so."""
        granted = self._line.granted(self.identifier)
        return granted.streams if granted else ()

    @property
    def state(self) -> dict[str, Any]:
        """What the channel keeps in `self.state`."""
        granted = self._line.granted(self.identifier)
        return decode_state(granted.state or {}) if granted else {}

    async def receive(self, within: float = 0) -> Any:
        """The next message. Raises `NothingReceived`: what the test has caused is done already, so that it waits for nothing.

        `within`: seconds to wait all the same, for what the app sends from tasks and threads of its own.
        """
        await self._line.wait(lambda: bool(self.unread), within)
        if not self.unread:
            raise NothingReceived(self._story())
        self._mailbox.read += 1
        return self.messages[self._mailbox.read - 1]

    async def perform(self, action: str, /, **data: Any) -> Any:
        """Call an action of the channel; returns what it returned. Raises what it raised, or `Rejected`."""
        self._calls += 1
        name, replies = self._calls, self._mailbox.replies
        text = json_text({**data, "action": action, REPLY_TO_KEY: name}, f"the data of {action}")
        try:
            await self._line.ask(Perform(self.identifier, text), NOT_SUBSCRIBED)
        except Rejected as no:
            raise Rejected(no.reason, no.messages, replies.pop(name, {}).get("error", {}).get("code", "")) from None
        return replies.pop(name)["result"] if name in replies else None

    async def whisper(self, data: Any) -> None:
        """Send to the others on the stream, without the app. Raises `Rejected` where the channel does not allow it."""
        await self._line.ask(Whisper(self.identifier, json_bytes(data, "a whisper")), NO_WHISPER)

    async def join(self, id: str, info: Any = None) -> None:
        """Be present as `id`. Raises `Rejected` where the channel does not allow it."""
        told = b"" if info is None else json_bytes(info, "the info of who is present")
        await self._line.ask(Join(self.identifier, Member(id, told)), NO_PRESENCE)

    async def leave(self) -> None:
        """Be present no longer. Raises `Rejected` for a client that was not."""
        await self._line.ask(Leave(self.identifier), NOT_PRESENT)

    async def presence(self) -> dict[str, Any]:
        """Who is present: info by id. Raises `Rejected` where the channel does not allow to ask."""
        await self._line.ask(Presence(self.identifier), NO_PRESENCE)
        return self._mailbox.members

    async def unsubscribe(self) -> None:
        try:
            await self._line.ask(Unsubscribe(self.identifier), NOT_SUBSCRIBED)
        finally:
            self._line.mailboxes.pop(self.identifier, None)

    def _story(self) -> str:
        streams = ", ".join(self.streams) or "nothing"
        before = f" There were {len(self.messages)} before, the last: {self.messages[-1]!r}." if self.messages else ""
        closed = " The connection is closed." if self._line.closed else ""
        return (
            f"no message for {self.identifier}, which streams from {streams}.{before}{closed} "
            "To wait for what the app sends from tasks of its own, say receive(within=seconds)."
        )
