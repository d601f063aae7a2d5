"""Shared by all connections over TCP: limits, the publish path, and the classification of clients by token.

A client whose token is a publishing key only pushes, like an HTTP publisher, and has no session. All other clients have a
session, and may also push if publishing needs no key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts, UnfinishedFrames
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.websocket import Open
from ropewalk.core.stats import Stats
from ropewalk.model.sessions import ClientOptions, ConnectRequest
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.splitter import MAX_FRAME
from ropewalk.protocol.proxies import Peer, TrustedProxies

MAX_UNACKED = 1024 * 1024
"""Bytes of frames that may wait behind an unfinished push before reading pauses."""

AROUND_PAYLOADS = 64 * 1024
"""Bytes of a push frame besides its payload: keys, sizes, times and uids."""


class ClientKind(Enum):
    PUBLISHER = auto()
    """Only pushes."""
    SUBSCRIBER = auto()
    SUBSCRIBER_THAT_MAY_PUSH = auto()

    @property
    def may_push(self) -> bool:
        return self is not ClientKind.SUBSCRIBER


@dataclass(frozen=True)
class BrokyClients:
    """`guards`: have the publishing keys; with an empty key, all clients may push."""

    guards: Sequence[KeyGuard]
    proxies: TrustedProxies

    def classify(self, token: str) -> ClientKind:
        if any(guard.key and guard.knows(f"Bearer {token}") for guard in self.guards):
            return ClientKind.PUBLISHER
        open_to_all = any(not guard.key for guard in self.guards)
        return ClientKind.SUBSCRIBER_THAT_MAY_PUSH if open_to_all else ClientKind.SUBSCRIBER

    def request(self, token: str, peer: Peer) -> ConnectRequest:
        """The request that opens a session."""
        remote, _ = self.proxies.client(peer, "tcp", {}) if self.proxies else (peer.address, "")
        options = ClientOptions(ping_interval=0.0, reconnect_in=True)
        return ConnectRequest(
            url="tcp:///", path="/", headers={}, params={}, remote=remote, token=token, options=options, tcp=True
        )


@dataclass(frozen=True)
class BrokyOptions:
    """Options of the endpoint.

    Args:
        max_command: size limit of a client's command, in bytes.
        write_timeout: seconds after which a client that reads no answers is disconnected.
        shards: of the journal.
        signed: returns the stream name in a signed name; None if streams are public.
    """

    max_command: int
    write_timeout: float
    shards: int
    signed: Callable[[str], str | None] | None = None


@dataclass(frozen=True)
class BrokyShared:
    """What every connection uses.

    Attributes:
        timeouts: for Hellos.
        write_timeouts: for clients that do not read their answers.
        message_timeouts: for incomplete frames.
    """

    open_session: Open
    clients: BrokyClients
    pushes: Pushes
    stats: Stats
    options: BrokyOptions
    timeouts: HeadTimeouts
    write_timeouts: HeadTimeouts
    turns: LoopTurns
    message_timeouts: UnfinishedFrames

    @property
    def max_frame(self) -> int:
        return min(MAX_FRAME, self.pushes.limits.max_publish_size + AROUND_PAYLOADS)

    def welcome(self, max_frame: int) -> frames.Welcome:
        return frames.Welcome(max_frame=max_frame, max_unacked=MAX_UNACKED, shards=self.options.shards)
