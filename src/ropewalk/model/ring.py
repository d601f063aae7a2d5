"""A ring of nodes: who belongs to it, which node owns which shard, and which node holds it.

The *table* is the goal: the owner of each shard. *Possession* is the truth: the one node that has a shard's streams, sessions
and members, and gives positions in it. Where the two differ, the holder hands the shard over to its owner.
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType


class RingMember(Struct, frozen=True):
    """One node. `address` is host:port of its ordinary port. A `leaving` one owns nothing and hands over what it holds."""

    name: str
    address: str
    leaving: bool = False


class RingTable(Struct, frozen=True):
    """`members` in order of name; `owners` has a name for each shard.

    `generations` counts for each shard how often it was declared lost with its holder: whatever was held under a lower one is
    void. `founders` has for each shard the one node that may begin its generation: nobody else begins it, whoever owns it by
    then. `changes` are the ids of the latest changes that led to this table, so that whoever made one can tell whether it is in
    it.
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
    """Who holds a shard. Of two that are told of one shard the greater is the newer one: `moves` counts how often it passed on
    or began anew in its generation."""

    generation: int = -1
    moves: int = 0
    holder: str = ""


UNHELD = Possession()
"""Nobody is known to have begun it."""


class RingNews(Struct, frozen=True):
    """All that a node knows of its ring: what nodes tell each other when they connect and when it changes, and what a node
    with a journal keeps in a file."""

    table: RingTable
    possessions: tuple[Possession, ...]


# --- changes ----------------------------------------------------------------------------------------------------------


class AddNode(Struct, frozen=True, tag="add"):
    """A node comes, or has another address than before. `stays`: somebody wants it to, also if it was to leave."""

    id: str
    member: RingMember
    stays: bool = False


class LeaveRing(Struct, frozen=True, tag="leave"):
    """A node that lives is to hand over everything that it holds."""

    id: str
    name: str


class Lost(Struct, frozen=True):
    """A shard that is lost with its holder, and the generation in which it begins anew."""

    shard: int
    generation: int


class RemoveNode(Struct, frozen=True, tag="remove"):
    """A node is gone. The shards that it held are lost with it, and begin empty at their next owners."""

    id: str
    name: str
    lost: tuple[Lost, ...] = ()


RingChange = AddNode | LeaveRing | RemoveNode


class Move(Struct, frozen=True):
    """One shard passes from one owner to another."""

    shard: int
    source: str
    target: str


# --- what is told of a ring -------------------------------------------------------------------------------------------


class RingNode(Struct, frozen=True):
    """One node of a ring as another one sees it: `owns` and `holds` are numbers of shards, `share` is what it owns of all."""

    name: str
    address: str
    alive: bool
    leaving: bool
    owns: int
    holds: int
    share: float


class RingPlace(Struct, frozen=True):
    """Where a stream is. `holder` is "" where a ring is only thought of, or not found yet."""

    stream: str
    shard: int
    owner: str
    holder: str = ""


class RingReport(Struct, frozen=True):
    """The answer of `GET /api/ring`. `moving`: shards that another node than their owner holds. `unavailable`: shards whose
    holder does not answer, or that nobody is known to hold yet. `waits_for`: why the node that answers does not belong to its
    ring yet, or begins nothing in it; "" where it does. `place`: of the stream that was asked for."""

    node: str
    term: int
    shards: int
    nodes: Sequence[RingNode]
    moving: int = 0
    unavailable: int = 0
    waits_for: str = ""
    place: RingPlace | UnsetType = UNSET
