"""Who a client over TCP is, by the token of its Hello.

A client whose token is a publishing key only pushes, as a publisher over HTTP does, and has no session. Every other client
has one, and may push as well where publishing needs no key. The nodes of a ring send no Hello: they prove a key of their own.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.core.node_proofs import DialledNode
from ropewalk.model.sessions import ClientOptions, ConnectRequest
from ropewalk.protocol.proxies import Peer, TrustedProxies


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
