"""Where other nodes of a ring enter: the ordinary port of this one."""

import asyncio

from ropewalk.adapters.backends.ring.backend import RingBackend
from ropewalk.adapters.backends.ring.tunnel import Tunnel
from ropewalk.core.node_proofs import DialledNode


class NodeGate:
    """Implements `RingNodes`. `key` is that of the ring, `name` that of this node."""

    def __init__(self, backend: RingBackend, key: str) -> None:
        self.name = backend.state.me
        self._backend = backend
        self._key = key

    def greet(self) -> DialledNode:
        return DialledNode(self._key, self.name)

    def take_over(self, transport: asyncio.Transport) -> None:
        tunnel = Tunnel(self._backend.accept())
        transport.set_protocol(tunnel)
        tunnel.begin(transport)
