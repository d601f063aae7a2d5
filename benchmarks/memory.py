"""Memory: what one idle, subscribed connection adds to the server's resident size.

Pings stay on, as they are for a real idle client. The floor is a bare socket object per connection.
"""

import os
import time
from collections.abc import Callable

from benchmarks.floor import Floor
from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.server import Server, read_usage
from benchmarks.sizes import Sizes

BAR = Bar("value", "<=", 16.0)
PATH, STREAM = "/cable", "bench"


def measure_memory(server: Server, field: Remote[Field], sizes: Sizes) -> list[Figure]:
    """Opens one connection before the first reading, so that one-time allocations are not counted."""
    count = sizes.memory_connections
    field.call(Field.open, "first", server.address, PATH, STREAM, 1, Stage.SUBSCRIBED)
    before = server.usage().resident
    field.call(Field.open, "idle", server.address, PATH, STREAM, count, Stage.SUBSCRIBED)
    after = _steady(lambda: server.usage().resident, sizes.memory_settle)
    field.call(Field.close, "idle")
    field.call(Field.close, "first")
    with Remote(Floor) as floor:
        bare = _bare(floor, field, count)
    details: dict[str, float] = {"connections": count, "resident_before_kb": before / 1024, "resident_after_kb": after / 1024}
    title = f"resident memory a connection, {count:,} idle"
    return [figure("c", title, "KB", [(after - before) / count / 1024], [bare], details, BAR)]


def _bare(floor: Remote[Floor], field: Remote[Field], count: int) -> float:
    address = floor.call(Floor.address)
    before = read_usage(floor.pid).resident
    accepting = floor.begin(Floor.accept, count)
    field.call(Field.open, "bare", address, PATH, STREAM, count, Stage.UPGRADED)
    accepting.result()
    # resident memory is counted in pages, so a few connections may seem to cost nothing at all
    added = max(read_usage(floor.pid).resident - before, os.sysconf("SC_PAGE_SIZE"))
    field.call(Field.close, "bare")
    return added / count / 1024


def _steady(resident: Callable[[], int], seconds: float) -> int:
    """The highest size over a while: every connection has been pinged at least once in it."""
    deadline = time.monotonic() + seconds
    highest = resident()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        highest = max(highest, resident())
    return highest
