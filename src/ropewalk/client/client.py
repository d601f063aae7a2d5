"""The client as a program holds it: subscribe, publish, push. The verbs are the same over WebSocket and over TCP."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ropewalk.client import identifiers
from ropewalk.client.errors import OVER_TCP, NotSupported
from ropewalk.client.events import KeptMessages
from ropewalk.client.publish_request import Draft
from ropewalk.client.stream import Stream
from ropewalk.model.messages import Position, Receipt
from ropewalk.protocol.broky.frames import USUAL_PAGE, Format


class Client(ABC):
    """Made by `connect`. Read every stream you subscribe to: an unread one that is full stops the others.

    What one kind of connection has no word for raises NotSupported, which says what to connect to instead.
    """

    @abstractmethod
    async def subscribe(
        self,
        stream: str | bytes,
        *,
        since: float | None = None,
        position: Position | None = None,
        presence_events: bool = False,
        prefix: bool = False,
    ) -> Stream:
        """Follow a public stream: live only, or with what came `since` a UNIX time, or after a `position` you kept. Over TCP
        also, with `prefix`, all streams whose keys begin with this: live only.

        Raises SubscriptionRejected, AlreadySubscribed or NoAnswer.
        """

    @abstractmethod
    async def subscribe_signed(
        self, signed_name: str, *, since: float | None = None, position: Position | None = None, presence_events: bool = False
    ) -> Stream:
        """Follow a stream by the signed name that your application got from the holder of the secret."""

    async def subscribe_channel(self, channel: str, **params: Any) -> Stream:
        """Follow whatever a channel of the application streams for these parameters."""
        return await self.subscribe_identifier(identifiers.channel(channel, params))

    @abstractmethod
    async def subscribe_identifier(
        self,
        identifier: str,
        *,
        since: float | None = None,
        positions: dict[str, Position] | None = None,
        presence_events: bool = False,
    ) -> Stream:
        """The general form: the identifier as it goes on the wire, and a position for each of its streams."""

    async def read(self, stream: str | bytes, *, position: Position | None = None, limit: int = USUAL_PAGE) -> KeptMessages:
        """Over TCP only: a page of what a public stream keeps, without a subscription. It begins with the oldest message, or
        after a `position`, and has at most `limit` messages, of 1 MiB together.

        Raises HistoryRefused, HistoryUnavailable or NoAnswer, and UserMistake for a limit that is not 1 to 1000.
        """
        raise NotSupported("reading history without a subscription", OVER_TCP)

    async def read_signed(self, signed_name: str, *, position: Position | None = None, limit: int = USUAL_PAGE) -> KeptMessages:
        """Over TCP only: the same of a stream by its signed name."""
        raise NotSupported("reading history without a subscription", OVER_TCP)

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
        """Publish something that JSON can say, with the `key` given to `connect`. Returns its position. Raises PublishError;
        after PublishUnavailable, sending again with the same uid is safe."""
        draft = Draft(stream, data, uid, transient, exclude_socket, broadcast_type, partition_key)
        return (await self.publish_batch([draft]))[0]

    @abstractmethod
    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none. A receipt for each."""

    async def push(
        self,
        key: str | bytes,
        payloads: bytes | Sequence[bytes],
        *,
        format: Format = Format.BYTES,
        key_partition: str | bytes = b"",
        uids: Sequence[bytes | str] = (),
        ts_producer: Sequence[int] = (),
    ) -> Position:
        """Over TCP only: one message of a key, or several, of which all are registered or none. See `Pusher.push`."""
        raise NotSupported("a push", OVER_TCP)

    async def send(
        self,
        key: str | bytes,
        payloads: bytes | Sequence[bytes],
        *,
        format: Format = Format.BYTES,
        key_partition: str | bytes = b"",
        uids: Sequence[bytes | str] = (),
        ts_producer: Sequence[int] = (),
    ) -> None:
        """Over TCP only: a push that nobody answers. See `Pusher.send`."""
        raise NotSupported("a push", OVER_TCP)

    async def flush(self) -> None:
        """Over TCP only: until the server has handled everything that was sent. See `Pusher.flush`."""
        raise NotSupported("a push", OVER_TCP)

    @abstractmethod
    def cut(self) -> None:
        """Break the connection without a word, to see how a program behaves then. It comes back and resumes by itself."""
