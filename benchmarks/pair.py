"""The server and the floor side by side: as many connections to each, one load process that reads both.

A round of either is the same bytes to the same number of sockets, so that their rounds can alternate.
"""

from itertools import accumulate

from msgspec import Struct

from benchmarks.floor import Floor
from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.remote import Remote
from benchmarks.served import PATH, STREAM, Served
from benchmarks.server import Server, read_usage
from benchmarks.sizes import Sizes


class Round(Struct, frozen=True):
    """Deliveries a second, and what one delivery cost the sending process in microseconds of processor time."""

    rate: float
    cost: float


class Pair:
    """Opens both crowds, learns the server's frames from a checked round, and then runs rounds on either side."""

    def __init__(self, server: Server, floor: Remote[Floor], field: Remote[Field], sizes: Sizes) -> None:
        self.server = server
        self.subscribers = sizes.subscribers
        self._floor, self._field = floor, field
        self._served = Served(server.address, server.address, field, "server", sizes.subscribers, sizes.payload)
        self._open(floor.call(Floor.address))
        self._frames: list[bytes] = []

    def _open(self, bare: tuple[str, int]) -> None:
        accepting = self._floor.begin(Floor.accept, self.subscribers)
        self._field.call(Field.open, "floor", bare, PATH, STREAM, self.subscribers, Stage.UPGRADED)
        accepting.result()

    def check(self, count: int, batch: int) -> int:
        """A round whose every byte is verified; how many deliveries that were. The floor sends its frames from then on."""
        self._frames = self._served.check(count, batch)
        return len(self._frames) * self.subscribers

    def serve(self, count: int, batch: int) -> Round:
        """A round of the server."""
        before = self.server.usage().processor
        seconds = self._served.publish(count, batch)
        return self._round(count, seconds, self.server.usage().processor - before)

    def send(self, count: int) -> Round:
        """A round of the floor."""
        frames = self._floor_frames(count)
        before = read_usage(self._floor.pid).processor
        reading = self._field.begin(Field.drain, "floor", [sum(map(len, frames))])
        started = self._floor.call(Floor.send, frames)
        ended = reading.result().passed[-1]
        return self._round(count, ended - started, read_usage(self._floor.pid).processor - before)

    def _round(self, count: int, seconds: float, processor: float) -> Round:
        deliveries = count * self.subscribers
        return Round(deliveries / seconds, processor * 1e6 / deliveries)

    def serve_paced(self, count: int, rate: float) -> list[float]:
        """A round of the server at a fixed rate; seconds from when a message was due until its last subscriber had it."""
        return self._served.pace(count, rate)

    def send_paced(self, count: int, rate: float) -> list[float]:
        """The same round of the floor."""
        frames = self._floor_frames(count)
        reading = self._field.begin(Field.drain, "floor", list(accumulate(map(len, frames))))
        due = self._floor.call(Floor.pace, frames, rate)
        return [end - start for start, end in zip(due, reading.result().passed, strict=True)]

    def close(self) -> None:
        self._served.close()
        self._field.call(Field.close, "floor")
        self._floor.call(Floor.close)

    def _floor_frames(self, count: int) -> list[bytes]:
        return [self._frames[index % len(self._frames)] for index in range(count)]
