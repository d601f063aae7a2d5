"""Selects the session rows of a shard that a recovery needs: of open sessions, from their last full record on.

Invariant: the selection depends only on the rows and their order, never on their age.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.model.journal import RowKind

BEGINNINGS = pa.array([RowKind.CONNECTED.value, RowKind.RESTORED.value, RowKind.ALIVE.value])
"""Rows that tell all of a session, whatever was said before."""


def of_sessions(table: Any) -> Any:
    """The rows of a table that tell of one session."""
    return table.filter(pc.and_(table["sid"].is_valid(), pc.not_equal(table["event"], RowKind.PUBLISH.value)))


def going_on(rows: Any) -> Any:
    """Without sessions that have ended, and without what was said of the others before their last full account."""
    if rows.num_rows == 0:
        return rows
    ended = rows.filter(pc.equal(rows["event"], RowKind.ENDED.value))["sid"].unique()
    rows = rows.filter(pc.invert(pc.is_in(rows["sid"], ended)))
    places = pa.array(range(rows.num_rows), pa.int64())
    gone = _by_sid(rows, places, pc.equal(rows["event"], RowKind.DISCONNECTED.value), "min")
    # A full account after the end, as older versions wrote them, would hide that there was an end.
    before_its_end = pc.fill_null(pc.less(places, _looked_up(rows["sid"], gone)), True)
    beginning = pc.and_(pc.is_in(rows["event"], BEGINNINGS), before_its_end)
    first = _looked_up(rows["sid"], _by_sid(rows, places, beginning, "max"))
    return rows.filter(pc.fill_null(pc.greater_equal(places, first), False))


def _by_sid(rows: Any, places: Any, wanted: Any, which: str) -> Any:
    """The first or last place of such a row, for each session that has one."""
    table = pa.table({"sid": rows["sid"].filter(wanted), "place": places.filter(_whole(wanted))})
    return table.group_by("sid").aggregate([("place", which)])


def _looked_up(sids: Any, places: Any) -> Any:
    """The place for each of these, null where there is none."""
    found = pc.index_in(_whole(sids), _whole(places["sid"]))
    return pc.take(_whole(places[places.column_names[1]]), found)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
