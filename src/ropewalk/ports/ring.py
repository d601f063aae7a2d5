"""The ring of which a server is a node, as those see it who look after it."""

from collections.abc import Sequence
from typing import Protocol

from ropewalk.model.ring import RingMember, RingReport


class Ring(Protocol):
    """What a node knows of its ring, and the changes that people make. A change is made here at once and told to all others;
    shards move after it. Raises `Conflict` where it cannot be made."""

    def report(self, stream: str = "") -> RingReport:
        """With the place of a stream, if one is named."""

    def impairments(self) -> Sequence[str]:
        """What the ring lacks, for the health page; empty while all its nodes are reached."""

    async def add(self, member: RingMember) -> None:
        """Takes in a node that runs. It has to be reached at its address and to prove the key of the ring first. A node that
        starts adds itself."""

    def remove(self, name: str, lost: bool) -> None:
        """One that is there hands over what it holds, and may be stopped and removed after that. Of one that is gone the shards
        are only given to others if they are declared `lost`: then they begin empty, and their streams new epochs."""
