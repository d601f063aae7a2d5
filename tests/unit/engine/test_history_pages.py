"""Parts of the history for clients without a subscription: what follows which position, and how it is sent."""

import asyncio
from collections.abc import Iterator

import pytest

from ropewalk.engine.history_pages import WRITE_BYTES, HistoryPages
from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model.commands import ReadHistory
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import GapReason, HistoryPage, HistoryPart
from ropewalk.model.messages import Position
from ropewalk.model.rules import StreamRule
from ropewalk.model.sessions import NotGranted
from ropewalk.protocol.websocket_frame import CableCodec
from tests.unit.engine.workbench import Client, SlowReader, Workbench, settle

RULES = [StreamRule("short/*", history_limit=3)]


class PartCodec(CableCodec):
    """Records all parts. A message is a frame of its payload."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[HistoryPart | NotGranted] = []

    def history_part(self, part: HistoryPart | NotGranted) -> Iterator[bytes]:
        self.parts.append(part)
        if isinstance(part, HistoryPart):
            yield from (message.payload for message in part.messages)
        yield b"end"


class Bench(Workbench):
    def __init__(self) -> None:
        super().__init__(rules=RULES)
        self.codec = self.parts_codec = PartCodec()
        self.pages = HistoryPages(self.backend.streams, self.stats, WaitingHistory(0))

    async def part(self, client: Client, stream: str, after: Position, limit: int = 100) -> HistoryPart:
        assert await self.pages.answer(client.session, stream, ReadHistory("", after, limit))
        part = self.parts_codec.parts[-1]
        assert isinstance(part, HistoryPart)
        return part


async def test_part_has_a_reason_if_it_does_not_follow_the_position() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        receipts = await bench.publish("short/1", *"12345")
        epoch = receipts[0].epoch
        for after, limit, offsets, reason in (
            (Position("", 0), 100, [3, 4, 5], None),
            (Position("", 0), 2, [3, 4], None),
            (Position("", 3), 100, [4, 5], None),
            (Position(epoch, 2), 100, [3, 4, 5], None),
            (Position(epoch, 5), 100, [], None),
            (Position(epoch, 1), 100, [3, 4, 5], GapReason.TRIMMED),
            (Position("", 1), 100, [3, 4, 5], GapReason.TRIMMED),
            (Position(epoch, 9), 100, [], GapReason.AHEAD),
            (Position("other", 4), 100, [3, 4, 5], GapReason.EPOCH_CHANGED),
        ):
            part = await bench.part(client, "short/1", after, limit)
            assert [message.offset for message in part.messages] == offsets, after
            assert part.reason is reason, after
            assert (part.epoch, part.oldest, part.tip) == (epoch, 3, 5)
            assert part.last == (offsets[-1] if offsets else 5)


async def test_unknown_stream_has_an_empty_part() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        assert await bench.part(client, "new", Position("", 0)) == HistoryPart("", 1, 0, 0)
        changed = HistoryPart("", 1, 0, 0, (), GapReason.EPOCH_CHANGED)
        assert await bench.part(client, "new", Position("former", 3)) == changed


async def test_message_that_excludes_the_client_is_left_out() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        await bench.publish("s", "1")
        await bench.publish("s", "2", exclude_socket=client.sid)
        part = await bench.part(client, "s", Position("", 0))
        assert ([message.payload for message in part.messages], part.last) == ([b"1"], 2)


async def test_next_write_waits_until_a_slow_client_has_taken_the_one_before() -> None:
    async with Bench() as bench:
        client = await bench.connect()
        await bench.publish("s", *["x" * (WRITE_BYTES // 2)] * 5)
        before, reader = len(client.connection.written), SlowReader(client)
        answering = asyncio.create_task(bench.part(client, "s", Position("", 0)))
        sizes = []
        for _ in range(2):
            await settle()
            assert not answering.done()
            sizes.append([len(data) for data in client.connection.written[before:]])
            await reader.read()
        await answering
        sizes.append([len(data) for data in client.connection.written[before:]])
        last = WRITE_BYTES // 2 + len(b"end")
        assert sizes == [[WRITE_BYTES], [WRITE_BYTES] * 2, [WRITE_BYTES, WRITE_BYTES, last]]
        assert (bench.stats.replays, bench.stats.replayed_messages) == (1, 5)


async def test_unavailable_store_is_reported_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def page(stream: str, after: int, limit: int) -> HistoryPage | None:
        raise Unavailable("the store is down")

    async with Bench() as bench:
        client = await bench.connect()
        monkeypatch.setattr(bench.backend.streams, "page", page)
        assert not await bench.pages.answer(client.session, "s", ReadHistory("", Position("", 0), 100))
        assert bench.parts_codec.parts == [NotGranted("unavailable", "the store is down")]
        assert bench.stats.replays == 0
