"""How a node of a ring reaches the store of a node: over a link, or by calls where it is its own."""

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from ropewalk.adapters.backends.ring import connection
from ropewalk.adapters.backends.ring.calls import RingCalls
from ropewalk.adapters.backends.workers.link import Caller, Dial, FeedReceiver, StoreLink
from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.core.node_proofs import DiallingNode
from ropewalk.model.errors import NameTaken, Unavailable
from ropewalk.model.ring import RingNews


class ActiveDisconnects:
    """Identities of running remote disconnects: every process of the ring ends its own sessions."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, ids: object) -> bool:
        return ids in self._counts

    @contextmanager
    def running(self, ids: str) -> Iterator[None]:
        self._counts[ids] += 1
        try:
            yield
        finally:
            self._counts[ids] -= 1
            if not self._counts[ids]:
                del self._counts[ids]


logger = logging.getLogger("ropewalk.ring")

RECONNECT_SECONDS = 5.0
"""Seconds for which a call waits for an unreachable node, or for a moving shard. Calls do not wait for a node that has been
unreachable for longer."""

ANSWER_SECONDS = 10.0
RETRY_SECONDS = 0.2


class NodeDialler(NamedTuple):
    """Connects this process to other nodes.

    Attributes:
        name: of this process, not used by any other before or after it.
        key: of the ring.
        tls: None if the ports of nodes have no TLS.
        seeds: addresses of nodes by name, from the settings.
    """

    name: str
    key: str
    tls: ssl.SSLContext | None
    seeds: Mapping[str, str]

    async def dial(self, bus: BusConnection, node: str, address: str) -> None:
        """Connect to the node at host:port. Raises OSError and `Unavailable`."""
        host, _, port = address.rpartition(":")
        await connection.dial(bus, (host.strip("[]"), int(port)), self.tls, DiallingNode(self.key, node, self.name))


class NodeCalls(Caller, Protocol):
    """What the parts of the backend ask of a node."""

    @property
    def connected(self) -> bool: ...

    @property
    def away_since(self) -> float | None:
        """When it was reached last, as `time.monotonic` has it; None while it is reached."""


class OwnStore(NodeCalls, Protocol):
    """The store of this node."""

    @property
    def server_ends(self) -> bool:
        """If this process ends, the store ends too."""


class NodeLink(StoreLink):
    """A link to a node.

    Args:
        name: of this process.
        greet: called on every connection before others may use it.
        changed: called when the node is reached, when it is lost, and after each attempt that failed.

    Attributes:
        told: the ring state that the node has received.
        reason: why the latest attempts failed.
        taken: the error, if the node knows another process by the name of this one.
    """

    retry_seconds = RETRY_SECONDS
    store_calls = RingCalls

    def __init__(
        self,
        node: str,
        dial: Dial,
        name: str,
        receiver: FeedReceiver,
        greet: "Callable[[NodeLink], Awaitable[None]]",
        changed: "Callable[[NodeLink], None]",
    ) -> None:
        super().__init__(dial, name, receiver, lambda first: greet(self), RECONNECT_SECONDS, ANSWER_SECONDS)
        self.node = node
        self.peer = f"the node {node} of the ring"
        self.away = f"{self.peer} is not reached"
        self.away_since: float | None = time.monotonic()
        self.told: RingNews | None = None
        self.taken = ""
        self.reason = ""
        self._changed = changed

    def begin(self) -> None:
        """Without waiting until the node answers."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except (OSError, Unavailable) as error:
            self.taken = str(error) if isinstance(error, NameTaken) else ""
            raise
        self.taken = ""

    def _unreached(self, reason: str) -> None:
        if reason != self.reason:  # and not at every attempt
            self.reason = reason
            logger.warning("%s is not reached", self.peer, extra={"reason": reason})
        self._changed(self)

    def _reached(self, first: bool) -> None:
        self.reason = ""
        logger.info("connected to %s", self.peer)
        self.away_since = None
        self._changed(self)

    def _gone(self, connection: BusConnection) -> None:
        if connection is not self._connection:
            return
        super()._gone(connection)
        if self.away_since is None:
            self.away_since = time.monotonic()
        self._changed(self)
