"""Subscribers of one stream of a server and its publisher, who know how many bytes each message will be.

Subscribers and publisher may be at different nodes of a cluster.
"""

import json
from itertools import accumulate, pairwise

from benchmarks.load import wire
from benchmarks.load.drain import Drained
from benchmarks.load.field import Field
from benchmarks.load.link import Stage
from benchmarks.load.publisher import Address, Publisher
from benchmarks.remote import Pending, Remote

# pings are off for these connections, so that the bytes of a round are known beforehand
PATH = "/cable?pi=0"
STREAM = "bench"


class Served:
    """Opens the crowd, and learns from a first message how long a frame is."""

    def __init__(
        self,
        publish_at: Address,
        subscribe_at: Address,
        field: Remote[Field],
        crowd: str,
        subscribers: int,
        payload: int,
        stream: str = STREAM,
    ) -> None:
        self.subscribers = subscribers
        self._field, self._crowd = field, crowd
        field.call(Field.open, crowd, subscribe_at, PATH, stream, subscribers, Stage.SUBSCRIBED)
        self._publisher = Publisher(publish_at, stream, payload)
        _, self._offset = self._publisher.position()
        message = field.call(Field.probe, crowd, self._offset)
        self._size = len(message) + (2 if len(message) < 126 else 4) - len(str(self._offset))

    def check(self, count: int, batch: int) -> list[bytes]:
        """A round whose every byte is verified; the frames that each subscriber got."""
        bounds = self._bounds(count)
        reading = self._field.begin(Field.drain, self._crowd, bounds, checked=True)
        self._publisher.publish(count, batch)
        found = reading.result()
        self._verify(found, range(self._offset + 1, self._offset + 1 + count))
        self._offset += count
        return [found.witness[start:end] for start, end in pairwise([0, *bounds])]

    def answer(self) -> bytes:
        """What the publisher is answered to one more message, which every subscriber gets."""
        reading = self._read(self._bounds(1))
        answer = self._publisher.answer()
        reading.result()
        self._offset += 1
        return answer

    def publish(self, count: int, batch: int) -> float:
        """Seconds from the first request until the last subscriber has the last byte."""
        reading = self._read(self._bounds(count)[-1:])
        started = self._publisher.publish(count, batch)
        self._offset += count
        return reading.result().passed[-1] - started

    def pace(self, count: int, rate: float) -> list[float]:
        """At a fixed rate; seconds from when a message was due until its last subscriber had it."""
        reading = self._read(self._bounds(count))
        due = self._publisher.pace(count, rate)
        self._offset += count
        return [end - start for start, end in zip(due, reading.result().passed, strict=True)]

    def close(self) -> None:
        self._publisher.close()
        self._field.call(Field.close, self._crowd)

    def _read(self, bounds: list[int]) -> Pending[Drained]:
        return self._field.begin(Field.drain, self._crowd, bounds)

    def _bounds(self, count: int) -> list[int]:
        offsets = range(self._offset + 1, self._offset + 1 + count)
        return list(accumulate(self._size + len(str(offset)) for offset in offsets))

    def _verify(self, found: Drained, offsets: range) -> None:
        messages = [json.loads(payload) for payload in wire.cut_frames(found.witness)[0]]
        if [message["offset"] for message in messages] != list(offsets):
            raise AssertionError("a subscriber did not get every offset once and in order")
        if found.differing:
            raise AssertionError(f"{found.differing} of {self.subscribers} subscribers did not get what the others got")
