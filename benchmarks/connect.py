"""Connecting: what one client that connects and subscribes with history costs the server, many of them at once.

The figure is processor time of the server alone. The floor is picows without a server around it, which sends the same bytes.
"""

import time
from collections.abc import Callable

from benchmarks.bare_picows import BarePicows
from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.load.publisher import Publisher
from benchmarks.load.recording import record
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.served import PATH, STREAM
from benchmarks.server import Address, Server, read_usage
from benchmarks.sizes import Sizes

BAR = Bar("ratio", "<=", 1.35)
STILL = 0.2
"""Seconds without any processor time, after which all that the end of many connections brings is done."""

MIN_SECONDS = 0.01
"""Processor time is counted in steps of this."""


def measure_connect(server: Server, field: Remote[Field], sizes: Sizes) -> list[Figure]:
    count, history = sizes.connect_clients, sizes.connect_history
    publisher = Publisher(server.address, STREAM, sizes.payload)
    publisher.publish(history)
    epoch, offset = publisher.position()
    publisher.close()
    after = offset - history
    welcome, answer = record(server.address, PATH, STREAM, epoch, after)
    rounds: list[float] = []
    bare: list[float] = []
    with Remote(BarePicows) as floor:
        floor_address = floor.call(BarePicows.serve, welcome, answer)

        def connect(address: Address, processor: Callable[[], float]) -> float:
            before = processor()
            field.call(Field.open, "connect", address, PATH, STREAM, count, Stage.SUBSCRIBED, epoch, after)
            spent = processor() - before
            replayed = field.call(Field.replayed, "connect", offset)
            field.call(Field.close, "connect")
            if replayed != count * history:
                raise AssertionError(f"{replayed} messages of history came to {count} clients who asked for {history}")
            _until_still(processor)
            return max(spent, MIN_SECONDS) * 1e6 / count

        for number in range(sizes.connect_rounds + 1):
            found = connect(floor_address, lambda: read_usage(floor.pid).processor)
            measured = connect(server.address, lambda: server.usage().processor)
            if number:  # in the first round much is done for the first time
                bare.append(found)
                rounds.append(measured)
    details: dict[str, float] = {"clients": count, "history": history, "answer_bytes": len(welcome) + len(answer)}
    title = f"connect and subscribe with history, {count:,} at once, CPU each"
    return [figure("s", title, "µs", rounds, bare, details, BAR)]


def _until_still(processor: Callable[[], float]) -> None:
    since, last = time.monotonic(), processor()
    while time.monotonic() - since < STILL:
        time.sleep(0.02)
        if (now := processor()) - last >= MIN_SECONDS:
            since, last = time.monotonic(), now
