"""The reconnect storm over TCP: subscribers whose connection is cut at any byte and that resume by position, and producers
whose connection is cut during a push and that push again.

A subscriber keeps the received messages and the epochs. It discards an incomplete frame when the connection ends.
"""

import asyncio
import base64
import hashlib
import json
import random
from collections.abc import Sequence

from ropewalk.protocol.broky.frames import (
    Body,
    Format,
    Hello,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Subscribe,
    Subscribed,
    Welcome,
)
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyLink, Cut, positions
from tests.faults.storm import END, PAUSE, REQUESTS, STREAMS, StormRecord, as_text
from tests.server import Address

HELLO = encode(Hello())


class BrokyStormClient:
    """Subscribes to some streams from their beginning. `_tips` has their last offset when this connection subscribed."""

    def __init__(self, server: Address, record: StormRecord, chance: random.Random) -> None:
        self._server = server
        self._record = record
        self._chance = chance
        self._streams = chance.sample(STREAMS, chance.randint(2, 5))
        self._received: dict[str, list[str]] = {stream: [] for stream in self._streams}
        self._tips: dict[str, int] = {}
        self._welcomed = False
        self._pinged = False

    async def run(self) -> None:
        """Reconnect until all messages are received, and compare them with the published ones."""
        while True:
            link = await BrokyLink.open(self._server)
            self._welcomed, self._tips, self._pinged = False, {}, False
            try:
                await self._listen(link)
            except Cut:
                if self._welcomed:
                    raise
                link.hang_up()  # on a busy machine the first frame may come later than the server waits for it
                continue
            if self._done():
                break
            await self._disconnect(link)
        await self._expect_nothing_more(link)
        link.hang_up()
        await self._record.complete.wait()
        for stream, payloads in self._received.items():
            assert payloads == self._record.written[stream], f"{stream}: differs from the published messages"

    def _done(self) -> bool:
        return all(payloads[-1:] == [END] for payloads in self._received.values())

    async def _listen(self, link: BrokyLink) -> None:
        """Read a random number of bytes, or until all messages are received."""
        few, more, most = (self._chance.randrange(size) for size in (150, 20_000, 200_000))
        limit = self._chance.choice((few, more, most, 10**7))
        link.write(HELLO + b"".join(map(self._subscribe, range(len(self._streams)), self._streams)))
        if self._chance.random() < 0.2:  # the second subscription repeats no message
            link.write(self._subscribe(0, self._streams[0]))
        while link.taken < limit and not self._done():
            for body in await link.some(limit - link.taken):
                self._take(body)
        self._record.counts["cuts in a frame"] += link.whole < link.taken

    def _subscribe(self, place: int, stream: str) -> bytes:
        """The ref is the index of the stream plus one."""
        offset = len(self._received[stream])
        epoch = self._record.epochs[stream].encode() if offset else b""
        return encode(Subscribe(place + 1, stream.encode(), epoch=epoch, offset=offset, history=not offset))

    def _take(self, body: Body) -> None:
        match body:
            case Run() as run:
                self._run(run)
            case Subscribed(ref, epoch, offset):
                stream = self._streams[ref - 1]
                if epoch:
                    self._record.check_epoch(stream, epoch.decode())
                self._tips.setdefault(stream, offset)
                self._record.counts["subscriptions"] += 1
            case Welcome():
                self._welcomed = True
            case Pong():
                self._pinged = True
            case other:
                raise AssertionError(f"unexpected: {other}")

    def _run(self, run: Run) -> None:
        stream = run.key.decode()
        received = self._received[stream]
        assert stream in self._tips, f"{stream}: a message before the confirmation of the subscription"
        assert run.offset == len(received) + 1, f"{stream}: offset {run.offset} after {len(received)}"
        self._record.check_epoch(stream, run.epoch.decode())
        for payload in split_payloads(run):
            received.append(text_of(payload, run.format))

    async def _disconnect(self, link: BrokyLink) -> None:
        counts = self._record.counts
        counts["cuts"] += 1
        counts["cuts before the welcome"] += not self._welcomed
        counts["cuts before the history"] += any(len(self._received[stream]) < tip for stream, tip in self._tips.items())
        link.cut() if self._chance.random() < 0.7 else link.hang_up()
        if self._chance.random() < 0.3:
            await self._record.complete.wait()

    async def _expect_nothing_more(self, link: BrokyLink) -> None:
        """A message before the response to a ping would be a duplicate."""
        had = {stream: len(payloads) for stream, payloads in self._received.items()}
        link.write(encode(Ping(1)))
        while not self._pinged:
            for body in await link.some():
                self._take(body)
        assert had == {stream: len(payloads) for stream, payloads in self._received.items()}


def text_of(payload: bytes, format: Format) -> str:
    """The message as text clients receive it. JSON arrives here as published."""
    if format is Format.BYTES:
        return as_text({"$bytes": base64.b64encode(payload).decode()})
    text = json.loads(payload)
    assert payload == json.dumps(text).encode(), "differs from the published bytes"
    return as_text(text)


class BrokyStormPublisher:
    """Pushes runs, several in one write. Runs with uids are sometimes cut off at any byte and pushed again until confirmed, and
    some once more, as after a lost response."""

    def __init__(self, name: str, server: Address, record: StormRecord, chance: random.Random) -> None:
        self._name = name
        self._server = server
        self._record = record
        self._chance = chance
        self._written = 0
        self._link: BrokyLink | None = None

    async def run(self) -> None:
        for _ in range(REQUESTS):
            with_uids = self._chance.random() < 0.6
            runs = [self._run(ref, with_uids) for ref in range(1, self._chance.choice((2, 2, 2, 4, 11)))]
            if with_uids:
                while self._chance.random() < 0.3:
                    await self._cut_off(runs)
            first = await self._push(runs)
            if with_uids and self._chance.random() < 0.3:
                self._record.counts["retries"] += sum(run.count for run in runs)
                assert await self._push(runs) == first, "a uid received another position"
            await asyncio.sleep(self._chance.random() * PAUSE)
        if self._link is not None:
            self._link.hang_up()

    def _run(self, ref: int, with_uids: bool) -> Run:
        stream = self._chance.choice(STREAMS)
        format = self._chance.choice(tuple(Format))
        payloads = [self._payload(format) for _ in range(self._chance.choice((1, 1, 3, 8)))]
        uid = b"".join(hashlib.sha1(payload).digest() for payload in payloads) if with_uids else b""  # 20 bytes, as a KSUID
        return build_run(stream.encode(), payloads, ref, format, uid=uid)

    def _payload(self, format: Format) -> bytes:
        self._written += 1
        text = f"{self._name}/{self._written}" + "." * self._chance.choice((0, 0, 1000, 5000))
        return json.dumps(text).encode() if format is Format.JSON else b"\x00\xff" + text.encode()

    async def _connected(self) -> BrokyLink:
        if self._link is None:
            self._link = await BrokyLink.open(self._server)
            self._link.write(HELLO)
            assert isinstance(await self._link.next(), Welcome)
        return self._link

    async def _cut_off(self, runs: Sequence[Run]) -> None:
        """The server may have registered the runs or not."""
        link, self._link = await self._connected(), None
        data = b"".join(map(encode_run, runs))
        link.write(data[: self._chance.randrange(len(data) + 1)])
        await link.flush()
        link.cut() if self._chance.random() < 0.5 else link.hang_up()
        self._record.counts["pushes cut off"] += 1
        self._record.counts["repeats"] += sum(run.count for run in runs)

    async def _push(self, runs: Sequence[Run]) -> dict[int, tuple[bytes, int]]:
        """Epoch and first offset by ref."""
        link = await self._connected()
        link.write(b"".join(map(encode_run, runs)))
        answers: dict[int, tuple[bytes, int]] = {}
        while len(answers) < len(runs):
            for body in await link.some():
                if isinstance(body, Refused) and body.reason is Reason.UNAVAILABLE:  # nothing of it is registered
                    self._record.counts["pushed again"] += 1
                    link.write(encode_run(next(run for run in runs if run.ref == body.ref)))
                    continue
                assert isinstance(body, Pushed), body
                answers |= positions(body)
        for run in runs:
            epoch, offset = answers[run.ref]
            for place, payload in enumerate(split_payloads(run)):
                self._record.add(text_of(payload, run.format), run.key.decode(), epoch.decode(), offset + place)
        return answers
