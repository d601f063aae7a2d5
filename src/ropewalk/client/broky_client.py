"""The client over TCP as a program holds it: the verbs of `Client` that Broky has, and pushing."""

from collections.abc import Sequence

import msgspec

from ropewalk.client.broky_session import BrokySession
from ropewalk.client.broky_track import BrokyTrack, PrefixTrack
from ropewalk.client.client import Client
from ropewalk.client.errors import OVER_HTTP, NotSupported, PublicationRefused
from ropewalk.client.events import KeptMessages
from ropewalk.client.publish_request import Draft
from ropewalk.client.pusher import Pusher, push_frame
from ropewalk.client.stream import Stream
from ropewalk.client.stream_argument import key_given, name_given, name_in
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Position, Receipt
from ropewalk.protocol.broky.frames import LARGEST_PAGE, USUAL_PAGE, Format


class BrokyClient(Client):
    """Made by `connect` with a `tcp://` or `tls://` address. `pusher`: the connection with the key for publishing, where there
    is one; otherwise pushes go the way of everything else."""

    def __init__(self, session: BrokySession, pusher: Pusher | None) -> None:
        self._session = session
        self._pusher = pusher

    async def subscribe(
        self,
        stream: str | bytes,
        *,
        since: float | None = None,
        position: Position | None = None,
        presence_events: bool = False,
        prefix: bool = False,
    ) -> Stream:
        if presence_events:
            raise NotSupported("presence")
        name = name_given(stream)
        key = key_given(stream)
        if prefix:
            if since is not None or position is not None:
                raise UserMistake("a subscription by prefix has no past: leave since and position out")
            return await self._session.subscribe(f"{name}…", key, key, PrefixTrack(name))
        return await self._session.subscribe(name, key, key, BrokyTrack(name, position, since))

    async def subscribe_signed(
        self, signed_name: str, *, since: float | None = None, position: Position | None = None, presence_events: bool = False
    ) -> Stream:
        if presence_events:
            raise NotSupported("presence")
        name = _signed(signed_name)
        track = BrokyTrack(name, position, since)
        return await self._session.subscribe(signed_name, key_given(name), signed_name.encode(), track)

    async def subscribe_identifier(
        self,
        identifier: str,
        *,
        since: float | None = None,
        positions: dict[str, Position] | None = None,
        presence_events: bool = False,
    ) -> Stream:
        raise NotSupported("a channel")

    async def read(self, stream: str | bytes, *, position: Position | None = None, limit: int = USUAL_PAGE) -> KeptMessages:
        name = name_given(stream)
        return await self._session.read(name, key_given(stream), position, _page(limit))

    async def read_signed(self, signed_name: str, *, position: Position | None = None, limit: int = USUAL_PAGE) -> KeptMessages:
        return await self._session.read(_signed(signed_name), signed_name.encode(), position, _page(limit))

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none: they have to be of one stream."""
        stream, partition = _common(drafts)
        payloads = [msgspec.json.encode(draft.data) for draft in drafts]
        uids = [draft.uid for draft in drafts if draft.uid]
        if uids and len(uids) != len(drafts):
            raise UserMistake("give a uid to every publication of a batch, or to none")
        first = await self.push(stream, payloads, format=Format.JSON, key_partition=partition, uids=uids)
        places = range(first.offset, first.offset + len(payloads)) if first.offset else [0] * len(payloads)
        return [Receipt(stream, first.epoch, place) for place in places]

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
        if self._pusher is not None:
            return await self._pusher.push(
                key, payloads, format=format, key_partition=key_partition, uids=uids, ts_producer=ts_producer
            )
        ref = self._session.next_ref()
        frame = push_frame(ref, key, payloads, format, key_partition, uids or None, ts_producer)
        return await self._session.push(ref, frame)

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
        if self._pusher is not None:
            await self._pusher.send(
                key, payloads, format=format, key_partition=key_partition, uids=uids, ts_producer=ts_producer
            )
        else:
            await self._session.send(push_frame(0, key, payloads, format, key_partition, uids, ts_producer))

    async def flush(self) -> None:
        await (self._session if self._pusher is None else self._pusher).flush()

    def cut(self) -> None:
        self._session.cut()


def _signed(signed_name: str) -> str:
    name = name_in(signed_name)
    if name is None:
        raise UserMistake("a signed name is needed here, and this holds no name")
    return name


def _page(limit: int) -> int:
    if not 1 <= limit <= LARGEST_PAGE:
        raise UserMistake(f"a page of history has 1 to {LARGEST_PAGE} messages, and limit is {limit}")
    return limit


def _common(drafts: Sequence[Draft]) -> tuple[str, str]:
    """The stream and the partition key of a batch."""
    for draft in drafts:
        if draft.transient or draft.exclude_socket or draft.broadcast_type:
            raise NotSupported("a publication that is transient, excludes a socket or has a type", OVER_HTTP)
    if len({(draft.stream, draft.partition_key) for draft in drafts}) != 1:
        raise NotSupported("a batch for several streams, or for none,", OVER_HTTP)
    stream, partition = drafts[0].stream, drafts[0].partition_key
    try:
        for name in (stream, partition):
            key_given(name)
    except UserMistake as error:  # over HTTP the server says it
        raise PublicationRefused(str(error)) from error
    return stream, partition
