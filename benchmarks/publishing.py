"""Publishing one by one over HTTP: the processor time of a message, from its request to the answer and to one subscriber.

The floor gets the same requests and writes the same bytes, to as many connections.
"""

from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.load.publisher import Publisher
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.served import PATH, STREAM, Served
from benchmarks.server import Program, Server
from benchmarks.sizes import Sizes

BAR = Bar("ratio", "<=", 2.5)


class Bare:
    """The floor with its publisher and its subscriber."""

    def __init__(self, floor: Program, field: Remote[Field], frame: bytes, payload: int) -> None:
        field.call(Field.open, "bare", floor.address, PATH, STREAM, 1, Stage.UPGRADED)
        self._field = field
        self._frame = frame
        self._publisher = Publisher(floor.address, STREAM, payload)

    def publish(self, count: int) -> None:
        reading = self._field.begin(Field.drain, "bare", [count * len(self._frame)])
        self._publisher.publish(count)
        reading.result()

    def close(self) -> None:
        self._publisher.close()
        self._field.call(Field.close, "bare")


def measure_publishing(sizes: Sizes) -> list[Figure]:
    with Remote(Field) as field, Server() as server:
        served = Served(server.address, server.address, field, "served", 1, sizes.payload)
        answer, frame = served.answer(), served.check(1, 1)[0]
        with Program("benchmarks.publish_floor", answer.hex(), frame.hex()) as floor:
            bare = Bare(floor, field, frame, sizes.payload)
            found = _rounds(server, served, floor, bare, sizes)
            bare.close()
        served.close()
    return [found]


def _rounds(server: Server, served: Served, floor: Program, bare: Bare, sizes: Sizes) -> Figure:
    """The first round of each is a warm-up."""
    count = sizes.publish_messages
    costs: list[float] = []
    floor_costs: list[float] = []
    for counted in (False, *[True] * sizes.publish_rounds):
        before, floor_before = server.usage().processor, floor.usage().processor
        bare.publish(count)
        served.publish(count, 1)
        if counted:
            costs.append((server.usage().processor - before) / count * 1e6)
            floor_costs.append((floor.usage().processor - floor_before) / count * 1e6)
    details: dict[str, float] = {"subscribers": 1, "messages_a_round": count, "payload": sizes.payload}
    return figure("q", "publish one by one to 1, processor time", "µs", costs, floor_costs, details, BAR)
