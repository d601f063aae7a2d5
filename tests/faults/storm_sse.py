"""The reconnect storm over SSE: clients that use GET as an EventSource does, and clients that use POST.

A client keeps the received messages and the last event id. Its connection is cut at any byte; it discards an incomplete event.
"""

import asyncio
import contextlib
import json
import random
from typing import Any

import aiohttp

from ropewalk.protocol.event_ids import parse_event_id
from tests.cable import TIMEOUT, identifier
from tests.faults.storm import STREAMS, StormRecord, as_text, connected
from tests.server import Address

LONG = 65_536  # bytes; a longer history exceeds the server's buffers
RETURNS = ("at once", "at once", "late")


class SseStormClient:
    """Subscribes by GET to a channel of one or more streams, or by POST to several. One of these may have two subscriptions.

    `_received` has the messages by identifier, with GET by stream. `_base` has the offset before the first of them.
    """

    def __init__(self, server: Address, record: StormRecord, chance: random.Random) -> None:
        self._server = server
        self._record = record
        self._chance = chance
        self._last_id = ""
        self._past = chance.random() < 0.5
        self._get = chance.random() < 0.3
        streams = chance.sample(STREAMS, chance.randint(1, 5))
        self._streams = {stream if self._get else identifier(stream): stream for stream in streams}
        if not self._get and chance.random() < 0.3:
            self._streams[identifier(streams[0]) + " "] = streams[0]
        self._base: dict[str, int] = dict.fromkeys(self._streams, 0) if self._past else {}
        self._received: dict[str, list[str]] = {each: [] for each in self._streams}
        self._partial = b""
        self._replayed = 0
        self._early = chance.random() < 0.3  # whether its first connection is cut before the first message

    async def run(self) -> None:
        """Reconnect until all messages are received, and compare them with the published ones."""
        while True:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=TIMEOUT)) as http:
                with contextlib.closing(await connected(lambda: self._open(http))) as response:
                    assert response.status == 200, await response.text()
                    await self._listen(response)
                    if self._done():
                        await self._expect_nothing_more(response)
                        break
                    self._cut(response)
            if self._chance.choice(RETURNS) == "late":
                await self._record.complete.wait()
        for each, stream in self._streams.items():
            published = self._record.written[stream][self._base[each] :]
            assert self._received[each] == published, f"{stream}: differs from the published messages"

    def _done(self) -> bool:
        if not self._record.complete.is_set() or len(self._base) < len(self._streams):
            return False
        return all(self._at(each) >= len(self._record.written[stream]) for each, stream in self._streams.items())

    async def _open(self, http: aiohttp.ClientSession) -> aiohttp.ClientResponse:
        address = f"{self._server.url}/events"
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        params = {"pi": "1"}
        if self._get:
            params["identifier"] = json.dumps({"channel": "SeveralChannel", "streams": list(self._streams)})
            past = {"history_since": "1"} if self._past else {}
            return await http.get(address, params={**params, **past}, headers=headers)
        history: dict[str, Any] = {"history": {"since": 1}} if self._past else {}
        commands = [{"command": "subscribe", "identifier": each, **history} for each in self._streams]
        return await http.post(address, params=params, data="\n".join(map(json.dumps, commands)), headers=headers)

    async def _listen(self, response: aiohttp.ClientResponse) -> None:
        """Read a random number of bytes, or until all messages are received."""
        left = self._chance.choice((0, self._chance.randrange(500), self._chance.randrange(20_000), 10**6))
        self._partial, self._replayed = b"", 0
        if self._early:
            self._early = False
            while not self._last_id:
                self._take(await response.content.readexactly(1))
            return
        while left > 0 and not self._done():
            chunk = await response.content.read(min(left, 10_000))
            assert chunk, "the server ended the answer"
            left -= len(chunk)
            self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        *events, self._partial = (self._partial + chunk).split(b"\n\n")
        for event in events:
            lines = [line.partition(": ") for line in event.decode().split("\n")]
            fields = {name: value for name, _, value in lines}
            self._event(fields.get("event", ""), fields.get("data", ""), fields.get("id", ""))

    def _event(self, kind: str, data: str, event_id: str) -> None:
        if event_id:
            self._last_id = event_id
        if kind == "confirm_subscription":
            for each in self._streams if self._get else [json.loads(data)["identifier"]]:
                if each not in self._base:
                    self._base[each] = self._offset_in(event_id, each)
        elif not kind and data:
            self._message(data, event_id)
        elif kind == "confirm_history":
            self._record.counts["replays"] += 1
            self._record.counts["long replays"] += self._replayed > LONG
            self._replayed = 0
        else:
            assert kind in ("", "welcome", "ping", "confirm_subscription"), f"unexpected {kind}: {data}"

    def _message(self, data: str, event_id: str) -> None:
        if self._get:
            # A bare message does not name its stream: it is the one with a new position.
            (each,) = [stream for stream in self._streams if self._offset_in(event_id, stream) > self._at(stream)]
            offset, payload = self._offset_in(event_id, each), data
        else:
            message = json.loads(data)
            each, offset, payload = message["identifier"], message["offset"], as_text(message["message"])
            self._record.check_epoch(self._streams[each], message["epoch"])
        assert offset == self._at(each) + 1, f"{each}: offset {offset} after {self._at(each)}"
        self._received[each].append(payload)
        self._replayed += len(payload)

    def _at(self, each: str) -> int:
        return self._base[each] + len(self._received[each])

    def _offset_in(self, event_id: str, each: str) -> int:
        """The offset in an event id for one of the subscriptions: two of one stream may differ."""
        position = parse_event_id(event_id).of(each).get(self._streams[each])
        return position.offset if position else 0

    def _cut(self, response: aiohttp.ClientResponse) -> None:
        self._record.counts["cuts"] += 1
        self._record.counts["cuts before the first message"] += bool(self._last_id) and not any(self._received.values())
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()

    async def _expect_nothing_more(self, response: aiohttp.ClientResponse) -> None:
        """A message before the next ping would be a duplicate."""
        had = {each: len(payloads) for each, payloads in self._received.items()}
        text = self._partial
        async with asyncio.timeout(TIMEOUT):
            while b"event: ping\n" not in text or not text.endswith(b"\n\n"):
                text += await response.content.readany()
        self._partial = b""
        self._take(text)
        assert had == {each: len(payloads) for each, payloads in self._received.items()}
