"""One node's state of its ring, and its next steps: begin a shard, hand one over, serve one that arrived, or drop one.

Invariant: a shard moves only by `mark_handed_over`, a decision of its holder. So at most one node assigns positions in an epoch
of it at any time, even if the nodes have different tables.

How a shard moves from A to B; the order matters:
  1. A refuses appends to it and sends its content to B, which stores it separately (`mark_arriving`, then `mark_arrived`).
  2. B confirms that it has everything. A calls `mark_handed_over` and sends its `news` to all nodes: from this step on A never
     serves the shard again.
  3. B receives that news, finds the shard in `shards_to_serve`, and serves it. A drops its content.
If the link breaks before 2, A serves the shard again, and restarts at 1 after a reconnect. If it breaks after 2, B receives the
news after a reconnect, or from other nodes: so B keeps complete content and drops incomplete content.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ropewalk.core.ring_table import CHANGES_KEPT, FIRST_TERM, apply_change, count_owned, find_place, newest_table
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
    """The state of the node `me`. Each method is one step. After a change, send `news` to all other nodes, and to every node
    that connects.

    Args:
        table: from the settings, or with `possessions` from the file of a node with a journal.
    """

    def __init__(self, me: str, table: RingTable, possessions: Iterable[Possession] = ()) -> None:
        self.me = me
        self.table = table
        self._possessions = list(possessions) or [UNHELD] * table.shards
        self._present: set[int] = set()  # served by this node
        self._arrived: dict[int, Possession] = {}  # complete content, with the possession of its sender
        self._peer_tables: dict[str, RingTable] = {}  # the last table that each connected node sent
        self._own_changes: dict[str, tuple[int, RingChange]] = {}  # with the term of each
        self._joined = False

    @property
    def news(self) -> RingNews:
        return RingNews(self.table, tuple(self._possessions))

    def holder(self, shard: int) -> str:
        """The node for requests about the shard: its holder, or the node that will begin it."""
        possession = self._possessions[shard]
        return possession.holder if possession.generation >= self.table.generations[shard] else self.table.founders[shard]

    def possession(self, shard: int) -> Possession:
        return self._possessions[shard]

    def serves(self, shard: int) -> bool:
        return shard in self._present

    @property
    def is_member(self) -> bool:
        """Whether this node is in the table."""
        return self.table.member(self.me) is not None

    @property
    def has_quorum(self) -> bool:
        """More than half of the members have this node's table. Until then it begins no shards: an isolated node, or one that
        lost its state, would begin shards that other nodes hold."""
        others = [member.name for member in self.table.members if member.name != self.me]
        agreeing = sum(self._peer_tables.get(name) == self.table for name in others)
        return 2 * (agreeing + 1) > len(others) + 1

    # --- news from other nodes ----------------------------------------------------------------------------------------

    def merge_news(self, sender: str, news: RingNews) -> bool:
        """Merge the newer parts. Returns whether anything changed; then send the news to all other nodes. Raises Conflict for
        news of another ring."""
        if news.table.shards != self.table.shards:
            raise Conflict(f"{sender} has a ring of {news.table.shards} shards, {self.me} one of {self.table.shards}")
        before = self.news
        self._peer_tables[sender] = news.table
        if not _unfounded(news):  # a table that comes only from settings is ignored: its ring may not exist
            self.table = news.table if _unfounded(before) else newest_table(self.table, news.table)
        for shard, possession in enumerate(news.possessions):
            self._possessions[shard] = max(self._possessions[shard], possession)
        self._reapply_own_changes()
        return self.news != before

    def adopt(self, news: RingNews) -> None:
        """Replace the state, in a process that holds no shards itself: its node has newer state than the settings."""
        self.table, self._possessions = news.table, list(news.possessions)

    def peer_disconnected(self, name: str) -> None:
        """The link to the node is gone: its current table is unknown."""
        self._peer_tables.pop(name, None)

    def _reapply_own_changes(self) -> None:
        """Apply changes of this node again that another table of the same term has displaced."""
        for id, (term, change) in list(self._own_changes.items()):
            if self.table.term - term >= CHANGES_KEPT:
                del self._own_changes[id]
            elif id not in self.table.changes:
                try:
                    self.table = apply_change(self.table, change)
                except Conflict:  # changes of other nodes made it impossible
                    del self._own_changes[id]

    # --- changes of the table -----------------------------------------------------------------------------------------

    def apply(self, change: RingChange) -> None:
        """Raises Conflict if nothing was changed."""
        if _unfounded(self.news):
            raise Conflict("this node has not found the others of its ring yet")
        self.table = apply_change(self.table, change)
        self._own_changes[change.id] = (self.table.term, change)

    def should_join(self, member: RingMember) -> bool:
        """Whether this node, which is `member`, should join the ring of its peers: once per run, so that a removed node does
        not come back automatically. The state of an earlier run does not count: the node may have been removed since."""
        if self._joined or _unfounded(self.news):
            return False
        known = self.table.member(member.name)
        if known is not None and known.address == member.address:
            self._joined = self.has_quorum
            return False
        self._joined = self.has_quorum or self.table in self._peer_tables.values()
        return self._joined

    def build_removal(self, id: str, name: str, alive: bool, lost: bool) -> RingChange:
        """The change that removes a node, depending on its shards. Raises Conflict if shards would be lost and `lost` is not
        set, or if `lost` is set for a live node."""
        held = [shard for shard in range(self.table.shards) if self.holder(shard) == name]
        if not held:
            if self.table.member(name) is None:
                raise Conflict(f"the ring has no node {name!r}")
            return RemoveNode(id, name)
        if lost and alive:
            raise Conflict(f"{name} is alive: remove it without --lost, so that it hands over its shards without loss")
        if lost:
            return RemoveNode(id, name, tuple(Lost(shard, self.table.generations[shard] + 1) for shard in held))
        if not alive:
            raise Conflict(
                f"{name} does not answer and holds {len(held)} shards: start it again, or declare them lost (--lost); their"
                " streams then restart empty in new epochs"
            )
        return LeaveRing(id, name)

    # --- next steps of this node ---------------------------------------------------------------------------------------

    def shards_to_begin(self) -> list[int]:
        """Shards to serve without a hand-over: those that this node is the first to hold, at the start of the ring or after a
        loss, which are empty; and those that it held itself before a restart, with the content of its journal."""
        return [shard for shard in range(self.table.shards) if self._is_to_begin(shard)] if self.has_quorum else []

    def _is_to_begin(self, shard: int) -> bool:
        return self.holder(shard) == self.me and shard not in self._present and not self._may_serve(shard)

    def counts_as_recovered(self, shard: int) -> bool:
        """Whether the content that this node's journal recovered for the shard is valid: the node was the last holder, or the
        ring begins with it. Otherwise other nodes have continued since, and the content must be dropped before the shard
        begins or arrives."""
        held = self._possessions[shard]
        if held == UNHELD:
            return self.table.generations[shard] == 0 and self.table.founders[shard] == self.me
        return held.generation >= self.table.generations[shard] and held.holder == self.me

    def mark_begun(self, shard: int, recovered: bool = False) -> None:
        """`recovered`: the node has the shard's complete content from before its restart. Ignored for shards of another
        holder."""
        held = self._possessions[shard]
        if held.generation < self.table.generations[shard]:
            self._possessions[shard] = Possession(self.table.generations[shard], 0, self.me)
        elif not recovered:
            self._possessions[shard] = Possession(held.generation, held.moves + 1, self.me)
        self._present.add(shard)

    def shards_to_hand_over(self) -> dict[int, str]:
        """Shards that this node serves and another one owns, with their owners."""
        return {shard: owner for shard in sorted(self._present) if (owner := self.table.owners[shard]) != self.me}

    def mark_handed_over(self, shard: int, target: str) -> None:
        """The decision: `target` has the complete content, and this node never serves the shard again."""
        held = self._possessions[shard]
        self._present.remove(shard)
        self._possessions[shard] = Possession(held.generation, held.moves + 1, target)

    def mark_arriving(self, shard: int) -> None:
        """A holder begins to send the shard: content from earlier attempts is void."""
        self._arrived.pop(shard, None)

    def mark_arrived(self, shard: int, of: Possession) -> None:
        """The content is complete and not served yet. `of`: the `possession` that the holder sent with it."""
        self._arrived[shard] = of

    def shards_to_serve(self) -> list[int]:
        """Shards that have arrived and were handed over to this node."""
        return sorted(shard for shard in self._arrived if self._may_serve(shard))

    def _may_serve(self, shard: int) -> bool:
        before = self._arrived.get(shard)
        if before is None:
            return False
        given = Possession(before.generation, before.moves + 1, self.me)
        return self._possessions[shard] == given and self.holder(shard) == self.me

    def mark_served(self, shard: int) -> None:
        del self._arrived[shard]
        self._present.add(shard)

    def shards_to_drop(self) -> list[int]:
        """Shards that this node serves although they are void: declared lost, or begun by another node."""
        return sorted(shard for shard in self._present if self.holder(shard) != self.me)

    def mark_dropped(self, shard: int) -> None:
        self._present.discard(shard)

    # --- reports ------------------------------------------------------------------------------------------------------

    def report(self, alive: Mapping[str, bool], stream: str = "") -> RingReport:
        """`alive`: whether each other node has a link to this one. `stream`: the report includes its place."""
        owned = count_owned(self.table)
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
        place = find_place(self.table, stream)
        return replace(report, place=replace(place, holder=holders[place.shard]))

    def _known_holder(self, shard: int) -> str:
        """ "" if no node is known to have begun the shard."""
        possession = self._possessions[shard]
        return possession.holder if possession.generation >= self.table.generations[shard] else ""


def _unfounded(news: RingNews) -> bool:
    """The table comes only from the node's settings: no shard of the ring is known to have begun."""
    return news.table.term == FIRST_TERM and all(possession == UNHELD for possession in news.possessions)
