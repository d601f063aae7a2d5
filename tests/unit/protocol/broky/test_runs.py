"""Runs of messages: their layout, and the refusal of malformed frames."""

import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky.frames import Format, Hello, Run
from ropewalk.protocol.broky.runs import build_run, decode, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode, frame_prefix


def patched(frame: bytes, at: int, *values: int) -> bytes:
    """Replace the 32-bit numbers from offset `at` on."""
    data = b"".join(value.to_bytes(4, "little") for value in values)
    return frame[:at] + data + frame[at + len(data) :]


# --- the layout -------------------------------------------------------------------------------------------------------


def test_run_fields_have_the_documented_offsets() -> None:
    run = Run(7, 2, 11, 13, b"key", b"part", (1, 4), (17, 19), bytes(range(40)), b"epoch", b"abcde", Format.JSON)
    frame = encode_run(run)

    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(frame[at : at + size], "little")

    def vector(at: int, width: int = 1) -> bytes:
        start = at + number(at)
        return frame[start + 4 : start + 4 + number(start) * width]

    assert (number(0), number(4), frame[8:12]) == (len(frame) - 4, 44, b"BRK1")
    assert len(frame) % 8 == 0
    assert frame[4:64] == frame_prefix(Run)
    assert (number(64, 8), number(72, 8), number(80), number(84), frame[116], number(120)) == (11, 13, 7, 2, 1, 0)
    assert [vector(at) for at in (88, 92, 104, 108, 112)] == [b"key", b"part", bytes(range(40)), b"epoch", b"abcde"]
    assert memoryview(vector(96, 4)).cast("I").tolist() == [1, 4]
    assert memoryview(vector(100, 8)).cast("Q").tolist() == [17, 19]
    assert 100 + number(100) == 124  # the tail starts with the widest vector, which must be aligned


def test_single_message_of_64_bytes_takes_208() -> None:
    assert len(encode_run(build_run(b"k" * 8, [bytes(64)]))) == 208


def test_absent_columns_share_one_empty_vector() -> None:
    frame = encode_run(build_run(b"key", [b"payload"]))
    assert [at + int.from_bytes(frame[at : at + 4], "little") for at in (92, 96, 100, 104, 108)] == [120] * 5


def test_run_returns_its_payloads() -> None:
    payloads = [b"", b"one", b"", b"three"]
    assert split_payloads(build_run(b"k", payloads)) == payloads
    assert split_payloads(build_run(b"k", [b"single"])) == [b"single"]
    assert split_payloads(build_run(b"k", [b""])) == [b""]


# --- malformed frames -------------------------------------------------------------------------------------------------

RUN = encode_run(build_run(b"key", [b"one", b"two"], uid=bytes(40), ts_producer=(1, 2)))

MALFORMED = {
    "wrong frame size": patched(RUN, 0, len(RUN)),
    "another identifier": RUN[:8] + b"BRK2" + RUN[12:],
    "no messages": patched(RUN, 84, 0),
    "count differs from the sizes": patched(RUN, 84, 3),
    "vector before the tail": patched(RUN, 88, 116 - 88),
    "vector past the end": patched(RUN, 88, len(RUN) - 88),
    "vector far past the end": patched(RUN, 88, 0xFFFFFFFF),
    "misaligned vector": patched(RUN, 88, 126 - 88),
    "misaligned 64-bit numbers": patched(RUN, 100, 128 - 100),
    "vector longer than the frame": patched(RUN, 124, 0xFFFFFFFF),
    "shared empty vector is not empty": patched(RUN, 120, 1),
    "unknown format": patched(RUN, 116, 2),
    "uid too short": encode_run(build_run(b"k", [b"x"], uid=bytes(19))),
    "timestamps for some messages only": encode_run(build_run(b"k", [b"x", b"y"], ts_producer=(1,))),
    "several messages without sizes": encode_run(Run(count=2, payload=b"xy")),
    "sizes do not add up to the payload": encode_run(Run(count=2, sizes=(1, 2), payload=b"xy")),
    "sum of the sizes exceeds 32 bits": encode_run(Run(count=2, sizes=(0xFFFFFFFF, 3), payload=b"xy")),
    "wrong sizes in another layout": encode(Run(count=2, sizes=(1, 2), payload=b"xy")),
    "no root": patched(RUN, 4, 0xFFFFFFFF),
    "misaligned root": patched(RUN, 4, 45),
    "body without a type": RUN[:56] + b"\0" + RUN[57:],
    "body of an unknown type": RUN[:56] + b"\x7f" + RUN[57:],
    "a vtable before the frame": patched(RUN, 48, 0x7FFFFFFF),
    "a vtable past the frame": patched(RUN, 48, 0x80000000),
    "a vtable of an odd size": RUN[:12] + b"\x07" + RUN[13:],
    "a vtable without an end": RUN[:12] + b"\xfe\xff" + RUN[14:],
    "a table without an end": RUN[:14] + b"\xff\xff" + RUN[16:],
    "a body outside its table": RUN[:18] + b"\x0c" + RUN[19:],
    "text is not UTF-8": encode(Hello(name="abc")).replace(b"abc\0", b"ab\xff\0"),
    "text without its terminator": encode(Hello(name="abc")).replace(b"abc\0", b"abcd"),
    "empty frame": b"",
    "size only": bytes(4),
    "header only": (8).to_bytes(4, "little") + bytes(4) + b"BRK1",
}


def test_unsound_frame_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    for name, frame in MALFORMED.items():
        with subtests.test(name):
            with pytest.raises(MalformedFrame) as caught:
                decode(frame)
            assert caught.value.reason
            assert caught.value.code == 1002


def test_refusal_of_wrong_uids_states_their_length() -> None:
    with pytest.raises(MalformedFrame, match="uid has 20 bytes for each message, or none"):
        decode(MALFORMED["uid too short"])
