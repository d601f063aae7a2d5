"""Frames read ahead of their consumer."""

import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky.frames import Hello, Ping
from ropewalk.protocol.broky.read_ahead import SMALL, ReadAhead
from ropewalk.protocol.broky.tables import encode


def test_bad_size_is_raised_after_the_frames_before_it_and_again() -> None:
    ahead, ping = ReadAhead(100), encode(Ping(1))
    ahead.put(ping + ping)
    ahead.put((101).to_bytes(4, "little"))
    for _ in range(2):
        assert ahead.frame() == ping
        ahead.pass_by(len(ping))
    for _ in range(2):
        with pytest.raises(MalformedFrame):
            ahead.frame()


def test_raised_limit_applies_to_frames_not_yet_requested() -> None:
    ahead, hello = ReadAhead(100), encode(Hello(token=bytes(1000)))
    ahead.put(encode(Ping(1)) + hello)
    ahead.pass_by(len(ahead.frame()))
    ahead.limit = 2000
    assert ahead.frame() == hello


def test_small_chunks_are_joined() -> None:
    ahead, ping = ReadAhead(100), encode(Ping(1))
    ahead.put(ping)
    for byte in ping * 1000:
        ahead.put(bytes([byte]))
    pieces = set()
    while ahead.frame():
        pieces.add(ahead.data)
        ahead.pass_by(len(ping))
    assert max(map(len, pieces)) >= SMALL
    assert ahead.size == 0


def test_cleared_input_holds_no_incomplete_frame() -> None:
    ahead = ReadAhead(100)
    ahead.put(encode(Ping(1))[:-1])
    assert ahead.frame() == b""
    assert not ahead.empty
    ahead.clear()
    assert ahead.empty
