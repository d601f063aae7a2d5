"""Short replays are encoded once and cached."""

import json

from ropewalk.engine.link import Link
from ropewalk.engine.replay import SHORT_BYTES, SHORT_MESSAGES, SHORT_REPLAYS, ShortReplays
from ropewalk.model.messages import Registered
from tests.unit.engine.workbench import Workbench


def messages(*offsets: int, stream: str = "s", epoch: str = "e", payload: bytes = b"1") -> tuple[Registered, ...]:
    return tuple(Registered(stream, payload, 0.0, epoch, offset) for offset in offsets)


def offsets(frames: bytes | None) -> list[int]:
    assert frames is not None
    texts = [text.rpartition(b"}")[0] + b"}" for text in frames.split(b"\x81") if text]
    return [json.loads(text[text.index(b"{") :])["offset"] for text in texts]


async def link() -> Link:
    async with Workbench() as bench:
        return (await bench.connect()).session.link


async def test_same_range_is_encoded_once_and_other_ranges_separately() -> None:
    short, to = ShortReplays(), await link()
    first = short.frames(to, "i", messages(1, 2, 3))
    assert short.frames(to, "i", messages(1, 2, 3)) is first
    assert offsets(first) == [1, 2, 3]
    assert offsets(short.frames(to, "i", messages(1, 2))) == [1, 2]
    assert offsets(short.frames(to, "i", messages(2, 3))) == [2, 3]
    others = [
        short.frames(to, "other", messages(1, 2, 3)),
        short.frames(to, "i", messages(1, 2, 3, stream="t")),
        short.frames(to, "i", messages(1, 2, 3, epoch="f")),
    ]
    assert len({first, *others}) == 4


async def test_range_with_holes_is_not_cached() -> None:
    short, to = ShortReplays(), await link()
    short.frames(to, "i", messages(1, 2, 3))
    assert short.frames(to, "i", messages(1, 3)) is None


async def test_long_range_is_not_cached() -> None:
    short, to = ShortReplays(), await link()
    assert short.frames(to, "i", messages(*range(1, SHORT_MESSAGES + 2))) is None
    assert short.frames(to, "i", messages(1, payload=b"1" * (SHORT_BYTES + 1))) is None
    assert offsets(short.frames(to, "i", messages(*range(1, SHORT_MESSAGES + 1)))) == list(range(1, SHORT_MESSAGES + 1))


async def test_oldest_range_is_evicted() -> None:
    short, to = ShortReplays(), await link()
    first, second = short.frames(to, "i", messages(1)), short.frames(to, "i", messages(2))
    for offset in range(3, SHORT_REPLAYS + 2):
        short.frames(to, "i", messages(offset))
    assert short.frames(to, "i", messages(2)) is second
    assert short.frames(to, "i", messages(1)) is not first


async def test_empty_range_has_no_frames() -> None:
    assert ShortReplays().frames(await link(), "i", ()) == b""
