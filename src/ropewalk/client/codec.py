"""What the session needs of a protocol, and the cable: requests of programs to targets, commands and replies to bytes."""

import logging
from collections.abc import Iterable
from typing import Protocol, cast

from msgspec import Struct

from ropewalk.client import identifiers
from ropewalk.client.errors import OVER_TCP, NotSupported
from ropewalk.client.identifiers import parse_name, parse_signed
from ropewalk.client.state import ServerReply
from ropewalk.client.track import Track
from ropewalk.model.errors import MalformedFrame, UserMistake
from ropewalk.model.messages import Position
from ropewalk.protocol import client_commands, server_messages
from ropewalk.protocol.broky.frames import Body, Match
from ropewalk.protocol.client_commands import ClientCommand
from ropewalk.protocol.server_messages import Welcome

logger = logging.getLogger("ropewalk.client")


class Target(Struct, frozen=True):
    """What to subscribe to. Over TCP also: `key` is in deliveries, `requested` in the request (the key or a signed name), and
    `stream` is the name, empty for a prefix."""

    identifier: str
    track: Track
    presence_events: bool = False
    key: bytes = b""
    requested: bytes = b""
    match: Match = Match.EXACT
    stream: str = ""


class Codec(Protocol):
    """One per session, used by one connection at a time.

    `channels`: has channels, presence and whispers. `client_pings`: the client has to ping. `one_token_error`: missing, wrong
    and expired tokens are reported alike.
    """

    channels: bool
    client_pings: bool
    one_token_error: bool

    def public(
        self, stream: str | bytes, since: float | None, position: Position | None, presence_events: bool, prefix: bool
    ) -> Target: ...
    def signed(self, signed_name: str, since: float | None, position: Position | None, presence_events: bool) -> Target: ...
    def identifier(
        self, identifier: str, since: float | None, positions: dict[str, Position] | None, presence_events: bool
    ) -> Target: ...

    def add(self, target: Target) -> None:
        """Called before the first command for it. Raises AlreadySubscribed if it overlaps with another target."""

    def remove(self, identifier: str) -> None:
        """Called after the last command for it."""

    def open(self, token: str) -> bytes:
        """A connection begins. Returns what to send first."""

    def encode(self, command: ClientCommand | Body, ref: int) -> bytes:
        """`ref` is for commands that need a new one."""

    def decode(self, data: bytes) -> Iterable[ServerReply]:
        """Raises MalformedFrame if the connection cannot be continued."""


class CableClientCodec:
    """Every text frame is one message. Malformed ones after the welcome are skipped."""

    channels = True
    client_pings = False
    one_token_error = False

    def __init__(self) -> None:
        self._welcomed = False

    def public(
        self, stream: str | bytes, since: float | None, position: Position | None, presence_events: bool, prefix: bool
    ) -> Target:
        if prefix:
            raise NotSupported("a subscription by prefix", OVER_TCP)
        name = parse_name(stream)
        return Target(identifiers.public(name), _track(name, since, position), presence_events)

    def signed(self, signed_name: str, since: float | None, position: Position | None, presence_events: bool) -> Target:
        name = parse_signed(signed_name)
        if position is not None and name is None:
            raise UserMistake("a position needs the stream's name, and this signed name contains none")
        return Target(identifiers.signed(signed_name), _track(name or "", since, position), presence_events)

    def identifier(
        self, identifier: str, since: float | None, positions: dict[str, Position] | None, presence_events: bool
    ) -> Target:
        return Target(identifier, Track(since, positions), presence_events)

    def add(self, target: Target) -> None: ...

    def remove(self, identifier: str) -> None: ...

    def open(self, token: str) -> bytes:
        self._welcomed = False
        return b""

    def encode(self, command: ClientCommand | Body, ref: int) -> bytes:
        return client_commands.encode(cast(ClientCommand, command))

    def decode(self, data: bytes) -> Iterable[ServerReply]:
        try:
            message = server_messages.decode(data)
        except MalformedFrame as error:
            if not self._welcomed:
                raise
            logger.warning("malformed frame skipped", extra={"reason": error.reason})
            return ()
        self._welcomed = self._welcomed or isinstance(message, Welcome)
        return (message,)


def _track(name: str, since: float | None, position: Position | None) -> Track:
    return Track(since, {} if position is None else {name: position})
