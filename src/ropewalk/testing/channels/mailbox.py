"""What came for one subscription of a client under test, and how far its streams have been seen."""

from typing import Any

import msgspec

from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol import transmissions
from ropewalk.protocol.server_messages import (
    Data,
    HistoryConfirmed,
    PresenceChanged,
    PresenceListed,
    ServerMessage,
    SubscriptionConfirmed,
)


class Rejected(Exception):
    """The app, or the server, said no: to a connection, a subscription, an action, a whisper.

    `reason` is what `reject(reason)` was given, which clients do not see, or the message of an `ActionError`, which they do;
    `messages` is what the channel transmitted before; `code` is what the caller of an action was told.
    """

    def __init__(self, reason: str, messages: list[Any] | None = None, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.messages = messages or []
        self.code = code


class NothingReceived(AssertionError):
    """A message was expected, and everything is done without one."""


class Mailbox:
    """`read`: how many of the messages the test has taken. `members`: the last answer to who is present. `positions`: what a
    client remembers in order to resume. `replies`: those to actions, by the names of the calls."""

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier
        self.messages: list[Any] = []
        self.replies: dict[Any, dict[str, Any]] = {}
        self.read = 0
        self.presence_events: list[dict[str, Any]] = []
        self.members: dict[str, Any] = {}
        self.positions: dict[str, Position] = {}

    def hear(self, message: ServerMessage) -> None:
        match message:
            case Data(type=transmissions.REPLY):
                reply = msgspec.json.decode(message.payload)
                self.replies[reply[transmissions.REPLY_TO_KEY]] = reply
            case Data():
                self.messages.append(msgspec.json.decode(message.payload))
                if message.offset:
                    self.positions[message.stream] = Position(message.epoch, message.offset)
            case PresenceChanged(_, joined, member):
                self.presence_events.append(
                    {"type": "join", "id": member.id, "info": _info(member)} if joined else {"type": "leave", "id": member.id}
                )
            case PresenceListed(members=members):
                self.members = {member.id: _info(member) for member in members}
            case SubscriptionConfirmed() | HistoryConfirmed():
                self.positions = {**message.tips, **self.positions}


def _info(member: Member) -> Any:
    return msgspec.json.decode(member.info) if member.info else None
