"""What all connections over TCP use."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.websocket import Open
from ropewalk.core.node_proofs import DialledNode
from ropewalk.core.stats import Stats
from ropewalk.model.sessions import ClientOptions, ConnectRequest
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.splitter import MAX_FRAME
from ropewalk.protocol.proxies import Peer, TrustedProxies

MAX_UNACKED = 1024 * 1024
"""Bytes of frames that wait behind a push that is under way before no more is read."""

AROUND_PAYLOADS = 64 * 1024
"""Bytes of a push frame besides its payload: keys, sizes, times and uids."""


class RingNodes(Protocol):
    """The other nodes of this one's ring. `name` is that of this node."""

    @property
    def name(self) -> str: ...

    def greet(self) -> DialledNode:
        """A connection has sent a challenge, as a node does."""

    def take_over(self, transport: asyncio.Transport) -> None:
        """The connection of one of them, which has proved the key and was welcomed."""


class ClientKind(Enum):
    PUBLISHER = auto()
    """Pushes, and nothing else."""
    SUBSCRIBER = auto()
    SUBSCRIBER_THAT_MAY_PUSH = auto()

    @property
    def may_push(self) -> bool:
        return self is not ClientKind.SUBSCRIBER


@dataclass(frozen=True)
class BrokyClients:
    """`guards`: their keys are publishing keys; an empty key lets all clients push. `nodes`: those of a ring, if this is
    a node of one."""

    guards: Sequence[KeyGuard]
    proxies: TrustedProxies
    nodes: RingNodes | None = None

    def classify(self, token: str) -> ClientKind:
        if any(guard.key and guard.knows(f"Bearer {token}") for guard in self.guards):
            return ClientKind.PUBLISHER
        open_to_all = any(not guard.key for guard in self.guards)
        return ClientKind.SUBSCRIBER_THAT_MAY_PUSH if open_to_all else ClientKind.SUBSCRIBER

    def request(self, token: str, peer: Peer) -> ConnectRequest:
        """What a session is opened with."""
        remote, _ = self.proxies.client(peer, "tcp", {}) if self.proxies else (peer.address, "")
        options = ClientOptions(ping_interval=0.0, reconnect_in=True)
        return ConnectRequest(
            url="tcp:///", path="/", headers={}, params={}, remote=remote, token=token, options=options, tcp=True
        )


@dataclass(frozen=True)
class BrokyShared:
    """`timeouts`: of Hellos; `write_timeouts`: of clients that do not take their answers; `message_timeouts`: of frames that
    are begun. `signed`:
    what tells the name in a signed one where subscriptions need them; None where streams are public."""

    open_session: Open
    clients: BrokyClients
    pushes: Pushes
    stats: Stats
    max_command: int
    shards: int
    signed: Callable[[str], str | None] | None
    timeouts: HeadTimeouts
    write_timeouts: HeadTimeouts
    turns: LoopTurns
    message_timeouts: HeadTimeouts

    @property
    def max_frame(self) -> int:
        return min(MAX_FRAME, self.pushes.limits.max_publish_size + AROUND_PAYLOADS)

    def welcome(self, max_frame: int) -> frames.Welcome:
        return frames.Welcome(max_frame=max_frame, max_unacked=MAX_UNACKED, shards=self.shards)
