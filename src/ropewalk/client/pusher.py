"""Pushing over TCP. What got no answer is sent again under the same uids, so that a retry never doubles it.

Pushes do not wait for each other: as many are under way as the server allows, and their answers are told by their refs.
"""

import random
import secrets
import ssl
import time
from collections.abc import Sequence
from typing import Self

from ropewalk.client.addresses import tcp_address
from ropewalk.client.attempts import ATTEMPTS
from ropewalk.client.broky_options import BrokyOptions
from ropewalk.client.broky_session import BrokySession
from ropewalk.client.stream_argument import key_given
from ropewalk.client.trust import trust
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import KSUID_LENGTH, Position
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.broky.ksuid import KSUID_BYTES, ksuid_of, ksuid_text, new_ksuid
from ropewalk.protocol.broky.runs import encode_run, run_of

_NO_PAYLOADS = (
    "a push takes bytes, or a sequence of bytes, and not {}; text.encode() makes bytes of text, publish takes the rest"
)

_LAST_TIME = 2**64 - 1


class Pusher:
    """Use it as `async with Pusher("tcp://host:port", key) as pusher`. It connects with the first push, and again when needed.

    `key` is the key for publishing. `timeout` bounds an attempt, in seconds.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        attempts: int = ATTEMPTS,
        backoff: Backoff | None = None,
        chance: Chance = random.random,
        timeout: float = 10.0,
    ) -> None:
        address = tcp_address(url)
        tls = (trust(ca_file) or ssl.create_default_context()) if address.secure else None
        options = BrokyOptions(1, timeout, None, timeout / 2, attempts, backoff or Backoff(), chance, on_demand=True)
        self._session = BrokySession(address, key or "", tls, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

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
        """All of these messages of one key, or none. Returns the position of the first, after which the others follow.

        `uids` are KSUIDs, one for each, of 20 bytes or as text; without them it makes some up. `ts_producer` are times of
        yours, one for each, in microseconds since 1970. Raises UserMistake for what these cannot be, and PublishError; after
        PublishUnavailable, pushing again with the same uids is safe.
        """
        ref = self._session.next_ref()
        return await self._session.push(ref, push_frame(ref, key, payloads, format, key_partition, uids or None, ts_producer))

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
        """The same without an answer: what is refused, or lost with a connection, is not told. It waits only where the network
        takes no more. Raises PublishError if there is no connection."""
        await self._session.send(push_frame(0, key, payloads, format, key_partition, uids, ts_producer))

    async def flush(self) -> None:
        """Until the server has handled everything that was sent. Raises Unreachable if the connection was lost before."""
        await self._session.flush()


def push_frame(
    ref: int,
    key: str | bytes,
    payloads: bytes | Sequence[bytes],
    format: Format,
    key_partition: str | bytes,
    uids: Sequence[bytes | str] | None,
    ts_producer: Sequence[int],
) -> bytes:
    """Without uids where they are empty, and with new ones where they are None. Raises UserMistake and ValueError for
    what would end the connection, and TypeError for payloads that are no bytes."""
    messages = (payloads,) if isinstance(payloads, bytes) else payloads
    if not isinstance(messages, Sequence):
        raise TypeError(_NO_PAYLOADS.format(type(messages).__name__))
    count = len(messages)
    if not count:
        raise ValueError("a push has at least one message")
    if not isinstance(format, Format):
        raise UserMistake(f"format is Format.BYTES or Format.JSON, and not {format!r}")
    uid = _new_uids(count) if uids is None else b"".join([_ksuid(each) for each in _for_each("uids", uids, count)])
    times = tuple([_time(each) for each in _for_each("ts_producer", ts_producer, count)])
    name, partition = key_given(key), key_given(key_partition)
    try:
        run = run_of(name, messages, ref, format, partition, uid, times)
    except TypeError:
        kinds = ", ".join(sorted({type(message).__name__ for message in messages}))
        whole = type(messages).__name__
        raise TypeError(_NO_PAYLOADS.format("a text" if whole == "str" else f"a {whole} of {kinds}")) from None
    return encode_run(run)


def new_uid() -> str:
    """For a publication over TCP, which is safe to send again under it: a new KSUID as text."""
    return ksuid_text(new_ksuid(time.time()))


def _ksuid(uid: object) -> bytes:
    """Of its bytes, or its text. Raises UserMistake for what is no KSUID."""
    if isinstance(uid, bytes) and len(uid) == KSUID_BYTES:
        return uid
    why = f"it has {KSUID_BYTES} bytes, or {KSUID_LENGTH} characters as text"
    if isinstance(uid, str):
        try:
            return ksuid_of(uid)
        except ValueError as error:
            why = str(error)
    raise UserMistake(f"over TCP each of the uids is a KSUID, and {uid!r} is none: {why}; ropewalk.client.new_uid() makes one")


def _time(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LAST_TIME:
        raise UserMistake(f"ts_producer has whole numbers, which are microseconds since 1970, and not {value!r}")
    return value


def _for_each(argument: str, values: object, count: int) -> Sequence[object]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise UserMistake(f"{argument} is a list with one for each message, and not {type(values).__name__}")
    if len(values) not in (0, count):
        raise UserMistake(f"{argument} has one for each message, or none: here are {len(values)} for {count}")
    return values


def _new_uids(count: int) -> bytes:
    """Of one moment, and with one question to the system for their chance."""
    if count == 1:
        return new_ksuid(time.time())
    chance = secrets.token_bytes(16 * count)
    moment = new_ksuid(time.time(), lambda _: b"")
    return b"".join([moment + chance[at : at + 16] for at in range(0, len(chance), 16)])
