"""Fan-out to many TCP subscribers, against as many WebSockets: one stream, as many deliveries a second as can be.

Both are published to in the same way: the next push leaves when the one before is answered.
"""

import time
from functools import partial

from benchmarks.broky.end import End, encode_push, payloads
from benchmarks.broky.flows import Rounds
from benchmarks.broky.trips import EPHEMERAL
from benchmarks.cores import Cores, on_core
from benchmarks.load.drain import Drained
from benchmarks.load.field import Field
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.served import STREAM
from benchmarks.served import Served as OverWebSocket
from benchmarks.server import Address, Server
from benchmarks.sizes import Sizes
from ropewalk.protocol.broky.frames import Pushed, Run
from ropewalk.protocol.broky.runs import decode, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter

BAR = Bar("ratio", ">=", 1.0)
KEY = STREAM.encode()


class OverTcp:
    """The subscribers of a server without history and their producer, who know how many bytes a run will be."""

    def __init__(self, address: Address, field: Remote[Field], subscribers: int, payload: int) -> None:
        self._address = address
        self._subscribers = subscribers
        self._field, self._payload = field, payload
        field.call(Field.open_tcp, "tcp", address, STREAM, subscribers)
        self._producer = End(address)
        self._sizes: dict[int, int] = {}

    def check(self, count: int, batch: int) -> int:
        """A round whose every message is read; how many deliveries that were."""
        self._sizes[batch] = self._probe(batch)
        reading = self._field.begin(Field.drain, "tcp", [count // batch * self._sizes[batch]], checked=True)
        for first in range(0, count, batch):
            self._push(encode_push(KEY, batch, self._payload, first, 1))
        self._verify(reading.result(), count)
        return count * self._subscribers

    def publish(self, count: int, batch: int) -> float:
        """Seconds from the first push until the last subscriber has the last byte."""
        frame = encode_push(KEY, batch, self._payload, 0, 1)
        reading = self._field.begin(Field.drain, "tcp", [count // batch * self._sizes[batch]])
        started = time.monotonic()
        for _ in range(count // batch):
            self._push(frame)
        return reading.result().passed[-1] - started

    def close(self) -> None:
        self._producer.close()
        self._field.call(Field.close, "tcp")

    def _probe(self, batch: int) -> int:
        """The bytes that come for a run."""
        witness = End(self._address, [KEY])
        before = witness.bytes
        self._push(encode_push(KEY, batch, self._payload, 0, 1))
        came = 0
        while came < batch:
            came += witness.expect(Run).count
        size = witness.bytes - before
        witness.close()
        self._field.call(Field.drain, "tcp", [size])
        return size

    def _push(self, frame: bytes) -> None:
        self._producer.sock.sendall(frame)
        self._producer.expect(Pushed)

    def _verify(self, found: Drained, count: int) -> None:
        runs = [decode(frame) for frame in FrameSplitter().feed(found.witness)]
        messages = [message for run in runs if isinstance(run, Run) for message in split_payloads(run)]
        if messages != payloads(0, count, self._payload):
            raise AssertionError("a subscriber did not get every message once and in order")
        if found.differing:
            raise AssertionError(f"{found.differing} of {self._subscribers} subscribers did not get what the others got")


def measure_fanout(sizes: Sizes, cores: Cores) -> list[Figure]:
    with on_core(cores.load), Remote(Field) as field:
        with on_core(cores.server):
            over_tcp, over_websocket = Server(*EPHEMERAL), Server()
        with over_tcp, over_websocket:
            return _rounds(over_tcp, over_websocket, field, sizes, cores)


def _rounds(over_tcp: Server, over_websocket: Server, field: Remote[Field], sizes: Sizes, cores: Cores) -> list[Figure]:
    address, subscribers = over_websocket.address, sizes.subscribers
    tcp = OverTcp(over_tcp.address, field, subscribers, sizes.broky_payload)
    websocket = OverWebSocket(address, address, field, "websocket", subscribers, sizes.broky_payload)
    figures = []
    for batch, count in ((1, sizes.single_messages), (sizes.broky_batch, sizes.batched_messages)):
        checked = tcp.check(count, batch)
        websocket.check(count, batch)
        found, floor = Rounds(over_tcp), Rounds(over_websocket)
        deliveries = count * subscribers
        for _ in range(sizes.broky_fanout_rounds):
            floor.take(deliveries, partial(websocket.publish, count, batch))
            found.take(deliveries, partial(tcp.publish, count, batch))
        details: dict[str, float] = {"subscribers": subscribers, "batch": batch, "messages_a_round": count}
        details |= {"deliveries_checked": checked, "payload": sizes.broky_payload}
        way = f"in batches of {batch}" if batch > 1 else "one by one"
        title = f"fan-out to {subscribers:,} over TCP, {way}, server on core {cores.server}"
        details |= found.details() | cores.details()
        figures.append(figure(f"to{batch}", title, "deliveries/s", found.rates, floor.rates, details, BAR))
    websocket.close()
    tcp.close()
    return figures
