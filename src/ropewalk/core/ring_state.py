"""What one node knows of its ring, and what it has to do next: begin a shard, hand one over, serve one that came, or drop one.

Invariant: a shard passes on only by `given`, a decision of its holder. So at any time one node at the most gives positions in
an epoch of it, whatever the nodes think of the table.

How a shard passes from A to B; the order is what matters:
  1. A refuses appends to it and sends its content to B, which keeps it apart (`arriving`, then `arrived`).
  2. B says that it has everything. A calls `given` and tells everybody its `news`: from this step on A never serves it again.
  3. B hears that news, finds the shard in `to_serve`, and serves it. A drops its content.
If the link breaks before 2, A serves the shard again, and begins from 1 when the link is back. If it breaks after 2, B hears
the news then, or from others: so B keeps what has arrived whole, and drops what has not.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ropewalk.core.ring_table import CHANGES_KEPT, FIRST_TERM, changed, loads, newer, place_in
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import (
    UNHELD,
    LeaveRing,
    Lost,
    Possession,
    RemoveNode,
    RingChange,
    RingMember,
    RingNews,
    RingNode,
    RingReport,
    RingTable,
)


class RingState:
    """The knowledge of the node `me`. Each method is one step. After one that changes something all other nodes are to hear
    `news`, and so is every node that connects.

    `table` is that of the settings, or comes with `possessions` from the file that a node with a journal keeps.
    """

    def __init__(self, me: str, table: RingTable, possessions: Iterable[Possession] = ()) -> None:
        self.me = me
        self.table = table
        self._possessions = list(possessions) or [UNHELD] * table.shards
        self._present: set[int] = set()  # what this node serves
        self._arrived: dict[int, Possession] = {}  # what has come whole, and whose it was then
        self._told: dict[str, RingTable] = {}  # the table that each other node goes by, as far as it has said
        self._made: dict[str, tuple[int, RingChange]] = {}  # changes made here, and the term of each
        self._joined = False

    @property
    def news(self) -> RingNews:
        return RingNews(self.table, tuple(self._possessions))

    def holder(self, shard: int) -> str:
        """Where to send what is about the shard: to who has it, or will be the first to have it."""
        possession = self._possessions[shard]
        return possession.holder if possession.generation >= self.table.generations[shard] else self.table.founders[shard]

    def possession(self, shard: int) -> Possession:
        return self._possessions[shard]

    def serves(self, shard: int) -> bool:
        return shard in self._present

    @property
    def belongs(self) -> bool:
        """Whether this node is in the table."""
        return self.table.member(self.me) is not None

    @property
    def agreed(self) -> bool:
        """More than half of the members are known to go by this node's table. Until then it begins no shard: one that has
        forgotten what became of its shards, or that is cut off, would begin what others hold."""
        others = [member.name for member in self.table.members if member.name != self.me]
        agreeing = sum(self._told.get(name) == self.table for name in others)
        return 2 * (agreeing + 1) > len(others) + 1

    # --- what comes from others ---------------------------------------------------------------------------------------

    def hear(self, sender: str, news: RingNews) -> bool:
        """Take over what is newer. True: something was, and all others are to hear of it. Raises Conflict for news of another
        ring."""
        if news.table.shards != self.table.shards:
            raise Conflict(f"{sender} has a ring of {news.table.shards} shards, {self.me} one of {self.table.shards}")
        before = self.news
        self._told[sender] = news.table
        if not _unfounded(news):  # what only settings say is not taken over: the ring that they speak of may not exist
            self.table = news.table if _unfounded(before) else newer(self.table, news.table)
        for shard, told in enumerate(news.possessions):
            self._possessions[shard] = max(self._possessions[shard], told)
        self._make_again()
        return self.news != before

    def adopt(self, news: RingNews) -> None:
        """Take over all of it, as a process does that holds nothing itself: its node has learned more than the settings say."""
        self.table, self._possessions = news.table, list(news.possessions)

    def lost_sight_of(self, name: str) -> None:
        """The link to the node is gone: what it goes by is not known any more."""
        self._told.pop(name, None)

    def _make_again(self) -> None:
        """Changes of this node that another table of the same term has displaced."""
        for id, (term, change) in list(self._made.items()):
            if self.table.term - term >= CHANGES_KEPT:
                del self._made[id]
            elif id not in self.table.changes:
                try:
                    self.table = changed(self.table, change)
                except Conflict:  # what others did meanwhile leaves no room for it
                    del self._made[id]

    # --- changes of the table -----------------------------------------------------------------------------------------

    def make(self, change: RingChange) -> None:
        """Raises Conflict, and then nothing is changed."""
        if _unfounded(self.news):
            raise Conflict("this node has not found the others of its ring yet")
        self.table = changed(self.table, change)
        self._made[change.id] = (self.table.term, change)

    def is_to_join(self, member: RingMember) -> bool:
        """Whether this node, which is `member`, is to join the ring that it has heard of: once in a run, so that one that was
        removed does not come back by itself. What it has kept from an earlier run does not tell: it may have been removed
        since."""
        if self._joined or _unfounded(self.news):
            return False
        known = self.table.member(member.name)
        if known is not None and known.address == member.address:
            self._joined = self.agreed
            return False
        self._joined = self.agreed or self.table in self._told.values()
        return self._joined

    def removal(self, id: str, name: str, alive: bool, lost: bool) -> RingChange:
        """The change that takes a node out, by what it holds. Raises Conflict where shards would be lost and that was not
        asked for, or need not be."""
        held = [shard for shard in range(self.table.shards) if self.holder(shard) == name]
        if not held:
            if self.table.member(name) is None:
                raise Conflict(f"the ring has no node {name!r}")
            return RemoveNode(id, name)
        if lost and alive:
            raise Conflict(f"{name} lives: remove it without --lost, and it hands over what it holds; nothing is lost then")
        if lost:
            return RemoveNode(id, name, tuple(Lost(shard, self.table.generations[shard] + 1) for shard in held))
        if not alive:
            raise Conflict(
                f"{name} does not answer and holds {len(held)} shards: start it again, or declare them lost (--lost), and"
                " their streams begin anew under other epochs"
            )
        return LeaveRing(id, name)

    # --- what this node has to do --------------------------------------------------------------------------------------

    def to_begin(self) -> list[int]:
        """Shards that this node is to serve without getting them from anybody: those that it is the first to hold, at the
        beginning of the ring or after a loss, and those that it held itself before it started again. Of the last it has what
        its journal gave back, of the others nothing."""
        return [shard for shard in range(self.table.shards) if self._is_to_begin(shard)] if self.agreed else []

    def _is_to_begin(self, shard: int) -> bool:
        return self.holder(shard) == self.me and shard not in self._present and not self._may_serve(shard)

    def held_before(self, shard: int) -> bool:
        """Whether what this node's journal gave back of the shard counts: because it was the last to hold it, or because the
        ring begins with it. Of any other shard that is void, and has to be dropped before the shard begins or comes: others
        have gone on from there since."""
        held = self._possessions[shard]
        if held == UNHELD:
            return self.table.generations[shard] == 0 and self.table.founders[shard] == self.me
        return held.generation >= self.table.generations[shard] and held.holder == self.me

    def begun(self, shard: int, recovered: bool = False) -> None:
        """`recovered`: with all that it had when this node held it before; said of another shard it counts for nothing."""
        held = self._possessions[shard]
        if held.generation < self.table.generations[shard]:
            self._possessions[shard] = Possession(self.table.generations[shard], 0, self.me)
        elif not recovered:
            self._possessions[shard] = Possession(held.generation, held.moves + 1, self.me)
        self._present.add(shard)

    def to_hand_over(self) -> dict[int, str]:
        """Shards that this node serves and that belong to another one by the table, with their owners."""
        return {shard: owner for shard in sorted(self._present) if (owner := self.table.owners[shard]) != self.me}

    def given(self, shard: int, target: str) -> None:
        """The decision: `target` has all of it, and this node never serves it again."""
        held = self._possessions[shard]
        self._present.remove(shard)
        self._possessions[shard] = Possession(held.generation, held.moves + 1, target)

    def arriving(self, shard: int) -> None:
        """A holder begins to send it: what came of it before counts for nothing."""
        self._arrived.pop(shard, None)

    def arrived(self, shard: int, of: Possession) -> None:
        """All of it is here, and nothing of it is served yet. `of`: the `possession` of its holder, which comes with it."""
        self._arrived[shard] = of

    def to_serve(self) -> list[int]:
        """Shards that have arrived and were `given` to this node."""
        return sorted(shard for shard in self._arrived if self._may_serve(shard))

    def _may_serve(self, shard: int) -> bool:
        before = self._arrived.get(shard)
        if before is None:
            return False
        given = Possession(before.generation, before.moves + 1, self.me)
        return self._possessions[shard] == given and self.holder(shard) == self.me

    def served(self, shard: int) -> None:
        del self._arrived[shard]
        self._present.add(shard)

    def to_drop(self) -> list[int]:
        """Shards that this node serves and that are void: declared lost, or begun by another node."""
        return sorted(shard for shard in self._present if self.holder(shard) != self.me)

    def dropped(self, shard: int) -> None:
        self._present.discard(shard)

    # --- what is told of it -------------------------------------------------------------------------------------------

    def report(self, alive: Mapping[str, bool], stream: str = "") -> RingReport:
        """`alive`: which other nodes have a link to this one. `stream`: one whose place is asked for."""
        owned = loads(self.table)
        holders = [self._known_holder(shard) for shard in range(self.table.shards)]
        living = {name for name, lives in alive.items() if lives} | {self.me}
        nodes = [
            RingNode(
                member.name,
                member.address,
                member.name in living,
                member.leaving,
                owned[member.name],
                holders.count(member.name),
                owned[member.name] / self.table.shards,
            )
            for member in self.table.members
        ]
        moving = sum(holder not in ("", owner) for holder, owner in zip(holders, self.table.owners, strict=True))
        unavailable = sum(holder not in living for holder in holders)
        report = RingReport(self.me, self.table.term, self.table.shards, nodes, moving, unavailable)
        if not stream:
            return report
        place = place_in(self.table, stream)
        return replace(report, place=replace(place, holder=holders[place.shard]))

    def _known_holder(self, shard: int) -> str:
        """ "" while nobody is known to have begun it."""
        possession = self._possessions[shard]
        return possession.holder if possession.generation >= self.table.generations[shard] else ""


def _unfounded(news: RingNews) -> bool:
    """It is only what a node made of its settings: no shard of this ring has begun, as far as it knows."""
    return news.table.term == FIRST_TERM and all(possession == UNHELD for possession in news.possessions)
