"""Draws a ring as text: a line for each node, with a bar as long as its share."""

from collections import Counter
from collections.abc import Sequence

from msgspec import UNSET

from ropewalk.core.ring_table import loads, moves, place_in
from ropewalk.model.ring import RingNode, RingPlace, RingReport, RingTable

BAR = 40
"""Characters of a node that owns everything."""


def report(ring: RingReport) -> str:
    size = f"{_counted(ring.shards, 'shard')} on {_counted(len(ring.nodes), 'node')}"
    rows = [("node", "address", "state", "owns", "holds", "share", "")]
    for node in ring.nodes:
        rows.append((node.name, node.address, _state(node), str(node.owns), str(node.holds), *_share(node.share)))
    lines = [f"A ring of {size}: term {ring.term}, seen by {ring.node}", "", *_columns(rows)]
    if ring.waits_for:
        lines += ["", f"{ring.node} waits for its ring: {ring.waits_for}"]
    held = sum(node.holds for node in ring.nodes)
    if ring.moving and held:
        lines += ["", f"{_counted(ring.moving, 'shard')} on the way to another node"]
    if ring.unavailable and held:
        lines += ["", *_unavailable(ring.unavailable, min(ring.shards - held, ring.unavailable))]
    if ring.place is not UNSET:
        lines += ["", _placed(ring.place)]
    return "\n".join(lines)


def plan(before: RingTable, after: RingTable | None, stream: str = "") -> str:
    """A table, and what a change would make of it. `stream`: one whose place is told, in the last of them."""
    lines = _table(before)
    placed = ["", _placed(place_in(before if after is None else after, stream))] if stream else []
    if after is None:
        return "\n".join([*lines, *placed])
    moved = moves(before, after)
    roads = Counter((move.source, move.target) for move in moved)
    share = len(moved) / before.shards
    lines += ["", f"{_counted(len(moved), 'shard')} of {before.shards} would move ({share:.1%}):"]
    lines += _columns([(f"{source} → {target}", str(number)) for (source, target), number in sorted(roads.items())])
    return "\n".join([*lines, "", *_table(after), *placed])


def _table(table: RingTable) -> list[str]:
    owned = {name: number for name, number in loads(table).items() if number}
    head = f"{_counted(table.shards, 'shard')} on {_counted(len(owned), 'node')}"
    rows = [(name, str(number), *_share(number / table.shards)) for name, number in owned.items()]
    return [head, "", *_columns([("node", "owns", "share", ""), *rows])]


def _unavailable(number: int, unheld: int) -> list[str]:
    """`unheld`: how many of them nobody is known to hold."""
    reasons = {"the node that holds them does not answer": number - unheld, "no node is known to hold them yet": unheld}
    return [f"{_counted(count, 'shard')} unavailable: {reason}" for reason, count in reasons.items() if count]


def _placed(place: RingPlace) -> str:
    held = f" and held by {place.holder}" if place.holder else ""
    return f"{place.stream} is in shard {place.shard}, owned by {place.owner}{held}"


def _state(node: RingNode) -> str:
    state = "alive" if node.alive else "away"
    return f"{state}, leaving" if node.leaving else state


def _share(share: float) -> tuple[str, str]:
    return f"{share:.1%}", "█" * round(share * BAR)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
