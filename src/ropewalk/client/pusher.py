"""Pushing over TCP. A push without an answer is sent again under the same uids, so that it is registered once.

Pushes do not wait for each other: as many are unanswered as the server allows.
"""

import secrets
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self, Unpack

import msgspec

from ropewalk.client.addresses import tcp_address
from ropewalk.client.broky import BrokyClientCodec
from ropewalk.client.connection import SessionOptions
from ropewalk.client.dialers import TcpDialer
from ropewalk.client.errors import OVER_HTTP, NotSupported, PublicationRefused
from ropewalk.client.identifiers import parse_key
from ropewalk.client.publish_request import Draft, RetryOptions
from ropewalk.client.session import ReconnectingSession
from ropewalk.client.tls import tls_context
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import KSUID_LENGTH, Position, Receipt
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_text, new_ksuid, parse_ksuid
from ropewalk.protocol.broky.runs import build_run, encode_run

_NO_PAYLOADS = (
    "payloads must be bytes or a sequence of bytes, not {}; text.encode() makes bytes of text, and publish takes other values"
)

_LAST_TIME = 2**64 - 1


class PushMethods(ABC):
    """`push`, `send` and `flush` over a TCP session."""

    @abstractmethod
    def _push_session(self) -> ReconnectingSession:
        """Raises NotSupported if there is none."""

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
        """Over TCP only: all of these messages of one key, or none. Returns the position of the first; the others follow it.

        Args:
            uids: KSUIDs, one per message, as 20 bytes or text; generated if omitted.
            ts_producer: Your times, one per message, in microseconds since 1970.

        Raises UserMistake for invalid arguments, and PublishError; after PublishUnavailable, pushing again with the same
        uids is safe.
        """
        session = self._push_session()
        ref = session.next_ref()
        return await session.push(ref, push_frame(ref, key, payloads, format, key_partition, uids or None, ts_producer))

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
        """Over TCP only: a push without an answer: rejected messages, and messages lost with a connection, are not reported.
        Waits only while the network is congested. Raises PublishError if there is no connection."""
        session = self._push_session()
        await session.send(push_frame(0, key, payloads, format, key_partition, uids, ts_producer))

    async def flush(self) -> None:
        """Over TCP only: wait until the server has handled everything that was sent. Raises Unreachable if the connection was
        lost before."""
        await self._push_session().flush()

    async def _push_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        """All of them in this order, or none: they must be of one stream."""
        stream, partition = _common_stream(drafts)
        payloads = [msgspec.json.encode(draft.data) for draft in drafts]
        uids = [draft.uid for draft in drafts if draft.uid]
        if uids and len(uids) != len(drafts):
            raise UserMistake("give a uid to all publications of a batch, or to none")
        first = await self.push(stream, payloads, format=Format.JSON, key_partition=partition, uids=uids)
        offsets = range(first.offset, first.offset + len(payloads)) if first.offset else [0] * len(payloads)
        return [Receipt(stream, first.epoch, offset) for offset in offsets]


class Pusher(PushMethods):
    """Use it as `async with Pusher("tcp://host:port", key) as pusher`. It connects with the first push, and again when needed.

    Args:
        key: The key for publishing.
        timeout: Seconds of one attempt.
        retries: `attempts` (10 by default), `backoff` and `chance`.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        timeout: float = 10.0,
        **retries: Unpack[RetryOptions],
    ) -> None:
        address = tcp_address(url)
        tls = (tls_context(ca_file) or ssl.create_default_context()) if address.secure else None
        options = SessionOptions(
            time.time,
            inbox_size=1,
            connect_timeout=timeout,
            answer_timeout=None,
            ping_interval=timeout / 2,
            on_demand=True,
            **retries,
        )
        self.session = ReconnectingSession(TcpDialer(address, tls, timeout), BrokyClientCodec(), options, key or "")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    def _push_session(self) -> ReconnectingSession:
        return self.session


def push_frame(
    ref: int,
    key: str | bytes,
    payloads: bytes | Sequence[bytes],
    format: Format,
    key_partition: str | bytes,
    uids: Sequence[bytes | str] | None,
    ts_producer: Sequence[int],
) -> bytes:
    """Without uids if they are empty, with new ones if they are None. Raises UserMistake, ValueError or TypeError for arguments
    that make the server close the connection."""
    messages = (payloads,) if isinstance(payloads, bytes) else payloads
    if not isinstance(messages, Sequence):
        raise TypeError(_NO_PAYLOADS.format(type(messages).__name__))
    count = len(messages)
    if not count:
        raise ValueError("a push needs at least one message")
    if not isinstance(format, Format):
        raise UserMistake(f"format must be Format.BYTES or Format.JSON, not {format!r}")
    uid = _new_uids(count) if uids is None else b"".join([_ksuid(each) for each in _per_message("uids", uids, count)])
    times = tuple([_time(each) for each in _per_message("ts_producer", ts_producer, count)])
    name, partition = parse_key(key), parse_key(key_partition)
    try:
        run = build_run(name, messages, ref, format, partition, uid, times)
    except TypeError:
        kinds = ", ".join(sorted({type(message).__name__ for message in messages}))
        whole = type(messages).__name__
        raise TypeError(_NO_PAYLOADS.format("a text" if whole == "str" else f"a {whole} of {kinds}")) from None
    return encode_run(run)


def new_uid() -> str:
    """A new KSUID as text: publications over TCP are safe to send again under it."""
    return ksuid_text(new_ksuid(time.time()))


def _ksuid(uid: object) -> bytes:
    """Bytes of a KSUID in either form. Raises UserMistake."""
    if isinstance(uid, bytes) and len(uid) == KSUID_BYTES:
        return uid
    why = f"it has {KSUID_BYTES} bytes, or {KSUID_LENGTH} characters as text"
    if isinstance(uid, str):
        try:
            return parse_ksuid(uid)
        except ValueError as error:
            why = str(error)
    raise UserMistake(f"uids over TCP must be KSUIDs, and {uid!r} is not one: {why}; ropewalk.client.new_uid() makes one")


def _time(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LAST_TIME:
        raise UserMistake(f"ts_producer must be whole microseconds since 1970, not {value!r}")
    return value


def _per_message(argument: str, values: object, count: int) -> Sequence[object]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise UserMistake(f"{argument} must be a list with one entry per message, not {type(values).__name__}")
    if len(values) not in (0, count):
        raise UserMistake(f"{argument} must have one entry per message: got {len(values)} for {count}")
    return values


def _new_uids(count: int) -> bytes:
    """Of the same time, with one system call for their random parts."""
    if count == 1:
        return new_ksuid(time.time())
    random_bytes = secrets.token_bytes(16 * count)
    moment = new_ksuid(time.time(), lambda _: b"")
    return b"".join([moment + random_bytes[at : at + 16] for at in range(0, len(random_bytes), 16)])


def _common_stream(drafts: Sequence[Draft]) -> tuple[str, str]:
    """The stream and the partition key of a batch. Raises NotSupported, and PublicationRefused like the server over HTTP."""
    for draft in drafts:
        if draft.transient or draft.exclude_socket or draft.broadcast_type:
            raise NotSupported("a publication that is transient, excludes a socket or has a type", OVER_HTTP)
    if len({(draft.stream, draft.partition_key) for draft in drafts}) != 1:
        raise NotSupported("a batch for several streams, or for none,", OVER_HTTP)
    stream, partition = drafts[0].stream, drafts[0].partition_key
    try:
        for name in (stream, partition):
            parse_key(name)
    except UserMistake as error:
        raise PublicationRefused(str(error)) from error
    return stream, partition
