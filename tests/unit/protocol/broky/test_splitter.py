"""Splitting a byte stream into frames."""

import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky.frames import Hello, Ping
from ropewalk.protocol.broky.runs import build_run, encode_run
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode

RUN = encode_run(build_run(b"key", [b"one", b"two"], uid=bytes(40), ts_producer=(1, 2)))


def test_frames_are_split_in_any_fragmentation(subtests: pytest.Subtests) -> None:
    rows: list[int] = [1, 3, 7, 64, 10_000]
    for step in rows:
        with subtests.test(step=step):
            frames = [encode(Ping(1)), RUN, encode(Hello(token=bytes(1000))), RUN, encode(Ping(2))]
            stream = b"".join(frames)
            split = FrameSplitter()
            assert [
                frame for start in range(0, len(stream), step) for frame in split.feed(stream[start : start + step])
            ] == frames


def test_size_above_the_limit_is_refused_before_buffering() -> None:
    split = FrameSplitter(100)
    with pytest.raises(MalformedFrame) as caught:
        list(split.feed((101).to_bytes(4, "little")))
    assert caught.value.code == 1009


def test_frames_before_a_bad_size_are_returned_first() -> None:
    frames = FrameSplitter().feed(encode(Ping(1)) + bytes(4))
    assert next(frames) == encode(Ping(1))
    with pytest.raises(MalformedFrame):
        next(frames)
