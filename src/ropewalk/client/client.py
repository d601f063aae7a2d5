"""The client as a program holds it: connect, subscribe, publish. It only composes the session and the publisher."""

import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ropewalk.client import identifiers
from ropewalk.client.addresses import addresses
from ropewalk.client.link import DialOptions
from ropewalk.client.publish_request import Draft
from ropewalk.client.publisher import Publisher
from ropewalk.client.session import CableSession, Refresh, SessionOptions
from ropewalk.client.stream import Stream
from ropewalk.client.trust import session_trusting, trust
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.core.signatures import unverified_name
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Position, Receipt

CABLE_PING = 3
"""Seconds between the pings we ask the server for; a lost server is noticed after twice that."""


class Client:
    """Made by `connect`. Read every stream you subscribe to: an unread one that is full stops the others."""

    def __init__(self, session: CableSession, publisher: Publisher) -> None:
        self._session = session
        self._publisher = publisher

    async def subscribe(
        self, stream: str, *, since: float | None = None, position: Position | None = None, presence_events: bool = False
    ) -> Stream:
        """Follow a public stream: live only, or with what came `since` a UNIX time, or after a `position` you kept.

        Raises SubscriptionRejected, AlreadySubscribed or NoAnswer.
        """
        positions = {} if position is None else {stream: position}
        return await self._session.subscribe(identifiers.public(stream), since, positions, presence_events)

    async def subscribe_signed(
        self, signed_name: str, *, since: float | None = None, position: Position | None = None, presence_events: bool = False
    ) -> Stream:
        """Follow a stream by the signed name that your application got from the holder of the secret."""
        name = unverified_name(signed_name)
        if position is not None and name is None:
            raise UserMistake("a position needs the stream's name, and this signed name holds none")
        positions = {} if position is None or name is None else {name: position}
        return await self._session.subscribe(identifiers.signed(signed_name), since, positions, presence_events)

    async def subscribe_channel(self, channel: str, **params: Any) -> Stream:
        """Follow whatever a channel of the application streams for these parameters."""
        return await self.subscribe_identifier(identifiers.channel(channel, params))

    async def subscribe_identifier(
        self,
        identifier: str,
        *,
        since: float | None = None,
        positions: dict[str, Position] | None = None,
        presence_events: bool = False,
    ) -> Stream:
        """The general form: the identifier as it goes on the wire, and a position for each of its streams."""
        return await self._session.subscribe(identifier, since, positions or {}, presence_events)

    async def publish(
        self,
        stream: str,
        data: Any,
        *,
        uid: str = "",
        transient: bool = False,
        exclude_socket: str = "",
        broadcast_type: str = "",
        partition_key: str = "",
    ) -> Receipt:
        """Publish over HTTP with the `key` given to `connect`; see `Publisher.publish`."""
        return await self._publisher.publish(
            stream,
            data,
            uid=uid,
            transient=transient,
            exclude_socket=exclude_socket,
            broadcast_type=broadcast_type,
            partition_key=partition_key,
        )

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none."""
        return await self._publisher.publish_batch(drafts)

    def cut(self) -> None:
        """Break the connection without a word, to see how a program behaves then. It comes back and resumes by itself."""
        self._session.cut()


@asynccontextmanager
async def connect(
    url: str,
    token: str = "",
    *,
    key: str = "",
    refresh_token: Refresh | None = None,
    token_param: str = "jid",
    ca_file: str = "",
    ping_interval: int | None = CABLE_PING,
    inbox_size: int = 256,
    connect_timeout: float = 10.0,
    answer_timeout: float = 10.0,
    backoff: Backoff | None = None,
    chance: Chance = random.random,
) -> AsyncIterator[Client]:
    """A client of the server at `url` (`http://host:port`, or the full `ws://…/cable`), closed at the end of the block.

    `token` is the JWT to connect with; `refresh_token` is called for a new one when it has expired. `key` is the bearer key
    for publishing. `ca_file` names the certificates to trust instead of the system's. `ping_interval` is what the server is
    asked for, None leaves it to the server. `inbox_size` is how many events may wait for a slow reader before the socket is
    no longer read. Raises Unreachable, Unauthorized or TokenExpired if the first connection fails; later ones are tried again
    until the block ends.
    """
    address = addresses(url)
    delays = backoff or Backoff()
    dialing = DialOptions(
        address.cable, token=token, token_param=token_param, ping_interval=ping_interval, timeout=connect_timeout
    )
    options = SessionOptions(inbox_size, answer_timeout, delays, chance, _steady_clock())
    async with session_trusting(trust(ca_file)) as http:
        session = CableSession(http, dialing, options, refresh_token)
        await session.open()
        try:
            async with Publisher(url, key, http=http, backoff=delays, chance=chance) as publisher:
                yield Client(session, publisher)
        finally:
            await session.close()


def _steady_clock() -> Callable[[], float]:
    """UNIX time that does not jump when the machine's clock is set: the state compares moments of one session."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()
