"""What streams can be asked for over WebSocket and Broky has no word for."""

from ropewalk.client.errors import NotSupported
from ropewalk.client.events import PresenceState
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.presence import Member


class MessagesOnly:
    """The part of a `StreamOwner` that raises NotSupported."""

    async def join(self, identifier: str, member: Member) -> None:
        raise NotSupported("presence")

    async def leave(self, identifier: str) -> None:
        raise NotSupported("presence")

    async def presence(self, identifier: str) -> PresenceState:
        raise NotSupported("presence")

    async def say(self, command: Whisper | Perform) -> None:
        raise NotSupported("a whisper" if isinstance(command, Whisper) else "an action of a channel")
