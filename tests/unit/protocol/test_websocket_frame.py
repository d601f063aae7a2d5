"""WebSocket frames written by the server."""

import pytest

from ropewalk.protocol.websocket_frame import PING_FRAME, close_frame, readable, text_frame


def test_text_frame_uses_the_shortest_length_encoding(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, bytes]] = [(125, b"\x81\x7d"), (126, b"\x81\x7e\x00\x7e"), (65536, b"\x81\x7f" + (65536).to_bytes(8))]
    for size, header in rows:
        with subtests.test(size=size, header=header):
            assert text_frame(b"x" * size) == header + b"x" * size


def test_close_reason_is_cut_to_the_size_of_a_control_frame() -> None:
    frame = close_frame(1007, "ü" * 100)
    assert frame[1] == len(frame) - 2 <= 125
    assert frame[4:].decode() == "ü" * 61


def test_frames_are_readable_in_the_log(subtests: pytest.Subtests) -> None:
    rows: list[int] = [0, 1, 125, 126, 65_535, 65_536]
    for size in rows:
        with subtests.test(size=size):
            text = "ä" * (size // 2) + "x" * (size % 2)

            assert (
                readable(text_frame(text.encode()) + PING_FRAME + close_frame(1001, "bye"))
                == f"{text}\n(ping)\n(close)\x03�bye"
            )
            assert readable(text.encode()) == text
