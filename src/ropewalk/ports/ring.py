"""The ring that the node belongs to, for operators."""

from collections.abc import Sequence
from typing import Protocol

from ropewalk.model.ring import RingMember, RingReport


class Ring(Protocol):
    """The node's state of its ring, and the changes that operators make. A change takes effect here at once and is sent to the
    other nodes; then shards move. Raises `Conflict` if a change is not possible."""

    def report(self, stream: str = "") -> RingReport:
        """With the place of `stream`, if given."""

    def impairments(self) -> Sequence[str]:
        """Problems of the ring for the health page; empty while all nodes are connected."""

    async def add(self, member: RingMember) -> None:
        """Add a running node. It must be reachable at its address and prove the ring's key first. A node that starts adds
        itself."""

    def remove(self, name: str, lost: bool) -> None:
        """A live node hands over its shards, and can be stopped and removed after that. The shards of a dead node are
        reassigned only if they are declared `lost`: they restart empty, and their streams begin new epochs."""
