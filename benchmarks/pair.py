"""The server and the floor side by side: as many connections to each, one load process that reads both.

A round of either is the same bytes to the same number of sockets, so that their rounds can alternate.
"""

import json
from itertools import accumulate, pairwise

from msgspec import Struct

from benchmarks.floor import Floor
from benchmarks.load import wire
from benchmarks.load.drain import Drained
from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.load.publisher import Publisher
from benchmarks.remote import Remote
from benchmarks.server import Server, usage_of
from benchmarks.sizes import Sizes

# pings are off for these connections, so that the bytes of a round are known beforehand
PATH = "/cable?pi=0"
STREAM = "bench"


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
        self._open(floor.call(Floor.address))
        self._publisher = Publisher(server.address, STREAM, sizes.payload)
        self._offset = self._learn_size()
        self._frames: list[bytes] = []

    def _open(self, bare: tuple[str, int]) -> None:
        self._field.call(Field.open, "server", self.server.address, PATH, STREAM, self.subscribers, Stage.SUBSCRIBED)
        accepting = self._floor.begin(Floor.accept, self.subscribers)
        self._field.call(Field.open, "floor", bare, PATH, STREAM, self.subscribers, Stage.UPGRADED)
        accepting.result()

    def _learn_size(self) -> int:
        _, offset = self._publisher.position()
        payload = self._field.call(Field.probe, "server", offset)
        self._size = len(payload) + (2 if len(payload) < 126 else 4) - len(str(offset))
        return offset

    def check(self, count: int, batch: int) -> int:
        """A round whose every byte is verified; how many deliveries that were. The floor sends its frames from then on."""
        bounds = self._bounds(count)
        reading = self._field.begin(Field.drain, "server", bounds, checked=True)
        self._publisher.publish(count, batch)
        found = reading.result()
        messages = self._verify(found, range(self._offset + 1, self._offset + 1 + count))
        self._frames = [found.witness[start:end] for start, end in pairwise([0, *bounds])]
        self._offset += count
        return messages * self.subscribers

    def serve(self, count: int, batch: int) -> Round:
        """A round of the server."""
        before = self.server.usage().processor
        reading = self._field.begin(Field.drain, "server", self._bounds(count)[-1:])
        started = self._publisher.publish(count, batch)
        self._offset += count
        ended = reading.result().passed[-1]
        return self._round(count, ended - started, self.server.usage().processor - before)

    def send(self, count: int) -> Round:
        """A round of the floor."""
        frames = self._floor_frames(count)
        before = usage_of(self._floor.pid).processor
        reading = self._field.begin(Field.drain, "floor", [sum(map(len, frames))])
        started = self._floor.call(Floor.send, frames)
        ended = reading.result().passed[-1]
        return self._round(count, ended - started, usage_of(self._floor.pid).processor - before)

    def _round(self, count: int, seconds: float, processor: float) -> Round:
        deliveries = count * self.subscribers
        return Round(deliveries / seconds, processor * 1e6 / deliveries)

    def serve_paced(self, count: int, rate: float) -> list[float]:
        """A round of the server at a fixed rate; seconds from when a message was due until its last subscriber had it."""
        reading = self._field.begin(Field.drain, "server", self._bounds(count))
        due = self._publisher.pace(count, rate)
        self._offset += count
        return [end - start for start, end in zip(due, reading.result().passed, strict=True)]

    def send_paced(self, count: int, rate: float) -> list[float]:
        """The same round of the floor."""
        frames = self._floor_frames(count)
        reading = self._field.begin(Field.drain, "floor", list(accumulate(map(len, frames))))
        due = self._floor.call(Floor.pace, frames, rate)
        return [end - start for start, end in zip(due, reading.result().passed, strict=True)]

    def close(self) -> None:
        self._publisher.close()
        self._field.call(Field.close, "server")
        self._field.call(Field.close, "floor")
        self._floor.call(Floor.close)

    def _bounds(self, count: int) -> list[int]:
        offsets = range(self._offset + 1, self._offset + 1 + count)
        return list(accumulate(self._size + len(str(offset)) for offset in offsets))

    def _floor_frames(self, count: int) -> list[bytes]:
        return [self._frames[index % len(self._frames)] for index in range(count)]

    def _verify(self, found: Drained, offsets: range) -> int:
        messages = [json.loads(payload) for payload in wire.cut_frames(found.witness)[0]]
        if [message["offset"] for message in messages] != list(offsets):
            raise AssertionError("a subscriber did not get every offset once and in order")
        if found.differing:
            raise AssertionError(f"{found.differing} of {self.subscribers} subscribers did not get what the others got")
        return len(messages)
