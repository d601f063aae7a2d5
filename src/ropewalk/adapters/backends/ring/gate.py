"""Where other nodes of a ring enter: the ordinary port of this one."""

import asyncio

from ropewalk.adapters.backends.ring.backend import RingBackend
from ropewalk.adapters.backends.ring.tunnel import Tunnel
from ropewalk.core.signatures import matches


class NodeGate:
    """`token` is what nodes of this ring know each other by, `name` that of this node."""

    def __init__(self, backend: RingBackend, token: str) -> None:
        self.name = backend.state.me
        self._backend = backend
        self._token = token

    def knows(self, token: str) -> bool:
        return matches(token, self._token)

    def take_over(self, transport: asyncio.Transport) -> None:
        tunnel = Tunnel(self._backend.accept())
        transport.set_protocol(tunnel)
        tunnel.begin(transport)
