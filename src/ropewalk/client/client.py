"""The client that programs use. Its methods are the same over WebSocket and over TCP: the scheme of the address selects one."""

import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypedDict, Unpack

from ropewalk.client import identifiers
from ropewalk.client.addresses import addresses, is_tcp, tcp_address
from ropewalk.client.broky import BrokyClientCodec
from ropewalk.client.codec import CableClientCodec
from ropewalk.client.connection import Refresh, SessionOptions
from ropewalk.client.dialers import TcpDialer, WebSocketDialer
from ropewalk.client.errors import OVER_TCP, NotSupported
from ropewalk.client.events import KeptMessages
from ropewalk.client.identifiers import parse_key, parse_name, parse_signed
from ropewalk.client.publish_request import Draft
from ropewalk.client.publisher import Publisher, PublishMethods
from ropewalk.client.pusher import Pusher, PushMethods
from ropewalk.client.session import ReconnectingSession
from ropewalk.client.stream import Stream
from ropewalk.client.tls import http_session, tls_context
from ropewalk.client.track import BEFORE_ALL
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Position, Receipt
from ropewalk.protocol.broky.frames import DEFAULT_PAGE, MAX_PAGE

PING = 3
"""Seconds between two pings. A server that is silent for twice that is lost."""

_READ = "reading history without a subscription"


class Client(PublishMethods, PushMethods):
    """Made by `connect`. Read all streams that you subscribe to: while one of them is full, the others get nothing.

    Methods that one kind of connection does not have raise NotSupported, which names the address to use instead.

    Args:
        publisher: PublishMethods over HTTP; None over TCP.
        push_session: The session with the key for publishing, over TCP. None: pushes use `session`.
    """

    def __init__(
        self, session: ReconnectingSession, publisher: Publisher | None, push_session: ReconnectingSession | None = None
    ) -> None:
        self._session = session
        self._publisher = publisher
        self._pushes = push_session or session

    async def subscribe(
        self,
        stream: str | bytes,
        *,
        since: float | None = None,
        position: Position | None = None,
        presence_events: bool = False,
        prefix: bool = False,
    ) -> Stream:
        """Subscribe to a public stream: live only, or with messages `since` a UNIX time or after a `position`. Over TCP,
        `prefix` subscribes to all streams whose keys start with this, live only.

        Raises SubscriptionRejected, AlreadySubscribed or NoAnswer.
        """
        return await self._session.subscribe(self._session.codec.public(stream, since, position, presence_events, prefix))

    async def subscribe_signed(
        self, signed_name: str, *, since: float | None = None, position: Position | None = None, presence_events: bool = False
    ) -> Stream:
        """Subscribe to a stream by the signed name that your application got from the holder of the secret."""
        return await self._session.subscribe(self._session.codec.signed(signed_name, since, position, presence_events))

    async def subscribe_channel(self, channel: str, **params: Any) -> Stream:
        """Subscribe to a channel of the application with these parameters."""
        return await self.subscribe_identifier(identifiers.channel(channel, params))

    async def subscribe_identifier(
        self,
        identifier: str,
        *,
        since: float | None = None,
        positions: dict[str, Position] | None = None,
        presence_events: bool = False,
    ) -> Stream:
        """Subscribe to an identifier as it is on the wire, with a position for each of its streams."""
        return await self._session.subscribe(self._session.codec.identifier(identifier, since, positions, presence_events))

    async def read(self, stream: str | bytes, *, position: Position | None = None, limit: int = DEFAULT_PAGE) -> KeptMessages:
        """Over TCP only: read a page of a public stream's history without a subscription, from the oldest message or after a
        `position`. It has at most `limit` messages and 256 KiB.

        Raises HistoryRefused, HistoryUnavailable or NoAnswer, and UserMistake for a limit that is not 1 to 1000.
        """
        self._require_tcp(_READ)
        name, key = parse_name(stream), parse_key(stream)
        return await self._session.read(name, key, position or BEFORE_ALL, _page_size(limit))

    async def read_signed(
        self, signed_name: str, *, position: Position | None = None, limit: int = DEFAULT_PAGE
    ) -> KeptMessages:
        """Over TCP only: the same for a signed name."""
        self._require_tcp(_READ)
        name = parse_signed(signed_name)
        if name is None:
            raise UserMistake("this signed name contains no name")
        return await self._session.read(name, signed_name.encode(), position or BEFORE_ALL, _page_size(limit))

    async def publish_batch(self, drafts: Sequence[Draft]) -> list[Receipt]:
        return await (self._push_batch(drafts) if self._publisher is None else self._publisher.publish_batch(drafts))

    def cut(self) -> None:
        """Abort the connection, to test how a program behaves then. The client reconnects and resumes."""
        self._session.cut()

    def _push_session(self) -> ReconnectingSession:
        self._require_tcp("a push")
        return self._pushes

    def _require_tcp(self, what: str) -> None:
        if self._publisher is not None:
            raise NotSupported(what, OVER_TCP)


def _page_size(limit: int) -> int:
    if not 1 <= limit <= MAX_PAGE:
        raise UserMistake(f"limit must be 1 to {MAX_PAGE} messages, not {limit}")
    return limit


class ConnectOptions(TypedDict, total=False):
    """Further arguments of `connect`.

    Args:
        ping_interval: Requested from the server; None: the server decides. Over TCP the client pings, with None it does not.
        inbox_size: Events that wait for a slow reader before the socket is no longer read (256).
        connect_timeout: Seconds for a connection, and for the server's welcome (10).
        answer_timeout: Seconds for the answer to a request (10).
        backoff: The pauses between connection attempts.
        chance: Spreads these pauses.
    """

    ping_interval: int | None
    inbox_size: int
    connect_timeout: float
    answer_timeout: float
    backoff: Backoff
    chance: Chance


@asynccontextmanager
async def connect(
    url: str,
    token: str | None = None,
    *,
    key: str | None = None,
    refresh_token: Refresh | None = None,
    token_param: str = "jid",
    ca_file: str | None = None,
    **options: Unpack[ConnectOptions],
) -> AsyncIterator[Client]:
    """A client of the server at `url`, closed at the end of the block.

    Args:
        url: `http://host:port` or the full `ws://…/cable` for WebSocket, `tcp://host:port` or `tls://host:port` for TCP.
        token: The JWT to connect with.
        key: The key for publishing.
        refresh_token: Called for a new token when it has expired.
        token_param: The server's `--jwt_param`.
        ca_file: A file with the certificates to trust instead of the system's.
        options: As in ConnectOptions.

    Raises Unreachable, Unauthorized or TokenExpired if the first connection fails. Later ones are retried until the block ends.
    """
    tls = tls_context(ca_file)
    chosen: ConnectOptions = {"ping_interval": PING, **options}
    used = SessionOptions(_steady_clock(), **chosen)
    async with AsyncExitStack() as stack:
        if is_tcp(url):
            address = tcp_address(url)
            context = (tls or ssl.create_default_context()) if address.secure else None
            dialer = TcpDialer(address, context, used.connect_timeout)
            session = ReconnectingSession(dialer, BrokyClientCodec(), used, token or "", refresh_token)
            pusher = Pusher(url, key, ca_file=ca_file, backoff=used.backoff, chance=used.chance, timeout=used.connect_timeout)
            client = Client(session, None, (await stack.enter_async_context(pusher)).session if key else None)
        else:
            cable = addresses(url).cable
            http = await stack.enter_async_context(http_session(tls))
            cable_dialer = WebSocketDialer(http, cable, token_param, chosen["ping_interval"], used.connect_timeout)
            session = ReconnectingSession(cable_dialer, CableClientCodec(), used, token or "", refresh_token)
            publisher = Publisher(url, key, http=http, backoff=used.backoff, chance=used.chance)
            client = Client(session, await stack.enter_async_context(publisher))
        await session.open()
        stack.push_async_callback(session.close)
        yield client


def _steady_clock() -> Callable[[], float]:
    """UNIX time that does not jump when the system clock is set: the state compares times of one session."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()
