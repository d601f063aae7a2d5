"""The client over WebSocket. It only composes the session and the publisher."""

from collections.abc import Sequence

from ropewalk.client import identifiers
from ropewalk.client.client import Client
from ropewalk.client.errors import OVER_TCP, NotSupported
from ropewalk.client.publish_request import Draft
from ropewalk.client.publisher import Publisher
from ropewalk.client.session import CableSession
from ropewalk.client.stream import Stream
from ropewalk.client.stream_argument import name_given, name_in
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Position, Receipt


class CableClient(Client):
    """Made by `connect` with any address but those of TCP. It publishes over HTTP."""

    def __init__(self, session: CableSession, publisher: Publisher) -> None:
        self._session = session
        self._publisher = publisher

    async def subscribe(
        self,
        stream: str | bytes,
        *,
        since: float | None = None,
        position: Position | None = None,
        presence_events: bool = False,
        prefix: bool = False,
    ) -> Stream:
        if prefix:
            raise NotSupported("a subscription by prefix", OVER_TCP)
        name = name_given(stream)
        positions = {} if position is None else {name: position}
        return await self._session.subscribe(identifiers.public(name), since, positions, presence_events)

    async def subscribe_signed(
        self, signed_name: str, *, since: float | None = None, position: Position | None = None, presence_events: bool = False
    ) -> Stream:
        name = name_in(signed_name)
        if position is not None and name is None:
            raise UserMistake("a position needs the stream's name, and this signed name holds none")
        positions = {} if position is None or name is None else {name: position}
        return await self._session.subscribe(identifiers.signed(signed_name), since, positions, presence_events)

    async def subscribe_identifier(
        self,
        identifier: str,
        *,
        since: float | None = None,
        positions: dict[str, Position] | None = None,
        presence_events: bool = False,
    ) -> Stream:
        return await self._session.subscribe(identifier, since, positions or {}, presence_events)

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await self._publisher.publish_batch(drafts)

    def cut(self) -> None:
        self._session.cut()
