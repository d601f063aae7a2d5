"""A ring of nodes: its members, the owner of each shard, and the holder of each shard.

The *table* is the target: the owner of each shard. *Possession* is the current state: the one node that has a shard's streams,
sessions and members, and assigns positions in it. If the two differ, the holder hands the shard over to its owner.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType


class RingMember(Struct, frozen=True):
    """One node. `address` is host:port of its port for other nodes. A `leaving` one owns nothing and hands over its shards."""

    name: str
    address: str
    leaving: bool = False


class RingTable(Struct, frozen=True):
    """The owners of all shards.

    Args:
        term: grows with each change.
        members: in order of name.
        owners: a name for each shard.
        founders: for each shard the only node that may begin its generation, even if another node owns it by then.
        generations: for each shard how often it was declared lost with its holder. Possession of a lower one is void.
        changes: ids of the latest changes, so that a node can check whether its change is included.
    """

    term: int
    members: tuple[RingMember, ...]
    owners: tuple[str, ...]
    founders: tuple[str, ...]
    generations: tuple[int, ...]
    changes: tuple[str, ...] = ()

    @property
    def shards(self) -> int:
        return len(self.owners)

    def member(self, name: str) -> RingMember | None:
        return next((member for member in self.members if member.name == name), None)


class Possession(Struct, frozen=True, order=True):
    """The holder of a shard. Of two records of one shard the greater is the newer one: `moves` counts its hand-overs and
    restarts in its generation."""

    generation: int = -1
    moves: int = 0
    holder: str = ""


UNHELD = Possession()
"""No node is known to have begun the shard."""


class RingNews(Struct, frozen=True):
    """A node's state of the ring. Nodes exchange it when they connect and when it changes; a node with a journal stores it."""

    table: RingTable
    possessions: tuple[Possession, ...]


# --- changes ----------------------------------------------------------------------------------------------------------


class AddNode(Struct, frozen=True, tag="add"):
    """A node joins, or has a new address. `stays`: cancels an earlier request to leave."""

    id: str
    member: RingMember
    stays: bool = False


class LeaveRing(Struct, frozen=True, tag="leave"):
    """A live node should hand over all its shards."""

    id: str
    name: str


class Lost(Struct, frozen=True):
    """A shard that was lost with its holder. It restarts empty as `generation`."""

    shard: int
    generation: int


class RemoveNode(Struct, frozen=True, tag="remove"):
    """A node is gone for good. The shards that it held are lost and restart empty at their next owners."""

    id: str
    name: str
    lost: tuple[Lost, ...] = ()


RingChange = AddNode | LeaveRing | RemoveNode


class Move(Struct, frozen=True):
    """One shard passes from one owner to another."""

    shard: int
    source: str
    target: str


# --- reports ----------------------------------------------------------------------------------------------------------


class RingNode(Struct, frozen=True):
    """A node of a ring in the report of a node. `owns` and `holds` are numbers of shards, `share` is the owned fraction."""

    name: str
    address: str
    alive: bool
    leaving: bool
    owns: int
    holds: int
    share: float


class RingPlace(Struct, frozen=True):
    """The place of a stream. `holder` is "" in a dry run, or if it is not known yet."""

    stream: str
    shard: int
    owner: str
    holder: str = ""


class RingReport(Struct, frozen=True):
    """The response of `GET /api/ring`.

    Args:
        node: the reporting node.
        moving: number of shards whose holder is not their owner.
        unavailable: number of shards whose holder does not respond or is not known yet.
        waits_for: why the node does not belong to its ring yet, or begins no shard in it; "" if it does.
        place: of the requested stream.
    """

    node: str
    term: int
    shards: int
    nodes: Sequence[RingNode]
    moving: int = 0
    unavailable: int = 0
    waits_for: str = ""
    place: RingPlace | UnsetType = UNSET
