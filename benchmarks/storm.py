"""A storm: every connection is cut without a goodbye and comes back by its session and position, while messages go on.

The figure is the time until all clients have the missed messages. Afterwards every client must have each offset once.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.floor import Floor
from benchmarks.load.crowd import Resumed
from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.load.publisher import Publisher
from benchmarks.remote import Remote
from benchmarks.report import Figure, figure
from benchmarks.server import Server
from benchmarks.sizes import Sizes

PATH, STREAM = "/cable", "bench"
MISSED_BY_ALL = 5
"""Published when all are cut and none is back, so that everyone has something to catch up with."""


def measure_storm(server: Server, floor: Remote[Floor], field: Remote[Field], sizes: Sizes) -> list[Figure]:
    """The floor of a storm is the bare connecting: TCP and the upgrade alone, for as many."""
    count = sizes.storm_connections
    field.call(Field.open, "storm", server.address, PATH, STREAM, count, Stage.SUBSCRIBED)
    publisher = Publisher(server.address, STREAM, sizes.payload)
    epoch, offset = publisher.position()
    wrong = field.call(Field.count_wrong, "storm", offset)
    bare: list[float] = []
    storms: list[Resumed] = []
    spent = 0.0
    for _ in range(sizes.storm_rounds):
        bare.append(_bare(floor, field, count))
        before = server.usage().processor
        field.call(Field.cut, "storm")
        publisher.publish(MISSED_BY_ALL)
        with _publishing(publisher, sizes.storm_rate):
            storms.append(field.call(Field.resume, "storm", epoch))
        spent += server.usage().processor - before
        wrong += field.call(Field.count_wrong, "storm", publisher.position()[1])
    field.call(Field.close, "storm")
    publisher.close()
    if wrong:
        raise AssertionError(f"offsets were missed or seen twice {wrong} times in the storms")
    return [_figure(storms, bare, count, wrong, spent)]


def _bare(floor: Remote[Floor], field: Remote[Field], count: int) -> float:
    address = floor.call(Floor.address)
    accepting = floor.begin(Floor.accept, count)
    seconds = field.call(Field.open, "bare", address, PATH, STREAM, count, Stage.UPGRADED)
    accepting.result()
    field.call(Field.close, "bare")
    floor.call(Floor.close)
    return seconds


@contextmanager
def _publishing(publisher: Publisher, rate: float) -> Iterator[None]:
    """Messages go on in a thread of their own while the block runs."""
    ended = threading.Event()
    thread = threading.Thread(target=publisher.pace_until, args=(ended, rate))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _figure(storms: list[Resumed], bare: list[float], count: int, wrong: int, spent: float) -> Figure:
    details: dict[str, float] = {
        "connections": count,
        "restored": sum(storm.restored for storm in storms),
        "not_restored": sum(count - storm.restored for storm in storms),
        "replayed": sum(storm.replayed for storm in storms),
        "missed_or_twice": wrong,
        "cpu_us_a_resume": spent * 1e6 / (count * len(storms)),
        "resumes_a_second": count * len(storms) / sum(storm.seconds for storm in storms),
    }
    title = f"{count:,} cut, until all are whole again"
    return figure("e", title, "s", [storm.seconds for storm in storms], bare, details)
