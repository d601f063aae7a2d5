import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import flatbuffers
import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky import ksuid, splitter
from ropewalk.protocol.broky.frames import Format, Hello, History, Ping, Run
from ropewalk.protocol.broky.read_ahead import SMALL, ReadAhead
from ropewalk.protocol.broky.runs import decode, encode_run, payloads_of, run_of
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import IDENTIFIER, encode, prefix_of, read
from tests import broky_generated

SCHEMA = Path(splitter.__file__).with_name("broky.fbs")


def patched(frame: bytes, at: int, *values: int) -> bytes:
    """The frame with these numbers, of four bytes each, from there on."""
    data = b"".join(value.to_bytes(4, "little") for value in values)
    return frame[:at] + data + frame[at + len(data) :]


# --- the layout -------------------------------------------------------------------------------------------------------


def test_a_run_has_its_fields_where_the_page_says() -> None:
    run = Run(7, 2, 11, 13, b"key", b"part", (1, 4), (17, 19), bytes(range(40)), b"epoch", b"abcde", Format.JSON)
    frame = encode_run(run)

    def number(at: int, size: int = 4) -> int:
        return int.from_bytes(frame[at : at + size], "little")

    def vector(at: int, width: int = 1) -> bytes:
        start = at + number(at)
        return frame[start + 4 : start + 4 + number(start) * width]

    assert (number(0), number(4), frame[8:12]) == (len(frame) - 4, 44, b"BRK1")
    assert len(frame) % 8 == 0
    assert frame[4:64] == prefix_of(Run)
    assert (number(64, 8), number(72, 8), number(80), number(84), frame[116], number(120)) == (11, 13, 7, 2, 1, 0)
    assert [vector(at) for at in (88, 92, 104, 108, 112)] == [b"key", b"part", bytes(range(40)), b"epoch", b"abcde"]
    assert memoryview(vector(96, 4)).cast("I").tolist() == [1, 4]
    assert memoryview(vector(100, 8)).cast("Q").tolist() == [17, 19]
    assert 100 + number(100) == 124  # the tail begins with the widest, which has to be aligned


def test_alignment_counts_from_the_size() -> None:
    """A buffer that was finished without its size is 4 bytes off when the size is put before it."""
    made: Any = broky_generated

    def built() -> tuple[Any, int]:
        builder: Any = flatbuffers.Builder(0)
        key = builder.CreateByteVector(b"key")
        made.HistoryStart(builder)
        made.HistoryAddKey(builder, key)
        made.HistoryAddOffset(builder, 7)
        body = made.HistoryEnd(builder)
        made.FrameStart(builder)
        made.FrameAddBodyType(builder, made.Body.History)
        made.FrameAddBody(builder, body)
        return builder, made.FrameEnd(builder)

    builder, root = built()
    builder.FinishSizePrefixed(root, IDENTIFIER)
    assert read(bytes(builder.Output())) == History(key=b"key", offset=7)

    builder, root = built()
    builder.Finish(root, IDENTIFIER)
    unsized = bytes(builder.Output())
    with pytest.raises(MalformedFrame, match="not aligned"):
        read(len(unsized).to_bytes(4, "little") + unsized)


def test_a_single_message_of_64_bytes_takes_208() -> None:
    assert len(encode_run(run_of(b"k" * 8, [bytes(64)]))) == 208


def test_absent_columns_share_one_empty_vector() -> None:
    frame = encode_run(run_of(b"key", [b"payload"]))
    assert [at + int.from_bytes(frame[at : at + 4], "little") for at in (92, 96, 100, 104, 108)] == [120] * 5


def test_the_payloads_of_a_run_are_those_it_was_made_of() -> None:
    payloads = [b"", b"one", b"", b"three"]
    assert payloads_of(run_of(b"k", payloads)) == payloads
    assert payloads_of(run_of(b"k", [b"single"])) == [b"single"]
    assert payloads_of(run_of(b"k", [b""])) == [b""]


@pytest.mark.needs_flatc
def test_the_generated_code_is_what_the_compiler_makes_of_the_schema(tmp_path: Path) -> None:
    flatc = shutil.which("flatc")
    assert flatc is not None
    subprocess.run([flatc, "--python", "--gen-onefile", "-o", tmp_path, SCHEMA], check=True)
    assert (tmp_path / "broky_generated.py").read_text() == Path(broky_generated.__file__).read_text()


# --- what is refused --------------------------------------------------------------------------------------------------

RUN = encode_run(run_of(b"key", [b"one", b"two"], uid=bytes(40), ts_producer=(1, 2)))

REFUSED = {
    "a size that is not the frame's": patched(RUN, 0, len(RUN)),
    "another identifier": RUN[:8] + b"BRK2" + RUN[12:],
    "no message": patched(RUN, 84, 0),
    "a count that is not that of the sizes": patched(RUN, 84, 3),
    "a vector before the tail": patched(RUN, 88, 116 - 88),
    "a vector behind the end": patched(RUN, 88, len(RUN) - 88),
    "a vector far away": patched(RUN, 88, 0xFFFFFFFF),
    "a vector that is not aligned": patched(RUN, 88, 126 - 88),
    "numbers of eight bytes that are not aligned": patched(RUN, 100, 128 - 100),
    "a vector longer than the frame": patched(RUN, 124, 0xFFFFFFFF),
    "an empty vector that is not empty": patched(RUN, 120, 1),
    "a format that is none": patched(RUN, 116, 2),
    "a uid too short": encode_run(run_of(b"k", [b"x"], uid=bytes(19))),
    "times for some messages only": encode_run(run_of(b"k", [b"x", b"y"], ts_producer=(1,))),
    "several messages without sizes": encode_run(Run(count=2, payload=b"xy")),
    "sizes that are not those of the payload": encode_run(Run(count=2, sizes=(1, 2), payload=b"xy")),
    "sizes whose sum is beyond 32 bits": encode_run(Run(count=2, sizes=(0xFFFFFFFF, 3), payload=b"xy")),
    "the same in another layout": encode(Run(count=2, sizes=(1, 2), payload=b"xy")),
    "no root": patched(RUN, 4, 0xFFFFFFFF),
    "a root that is not aligned": patched(RUN, 4, 45),
    "a body of no kind": RUN[:56] + b"\0" + RUN[57:],
    "a body of an unknown kind": RUN[:56] + b"\x7f" + RUN[57:],
    "a vtable before the frame": patched(RUN, 48, 0x7FFFFFFF),
    "a vtable behind the frame": patched(RUN, 48, 0x80000000),
    "a vtable of an odd size": RUN[:12] + b"\x07" + RUN[13:],
    "a vtable without an end": RUN[:12] + b"\xfe\xff" + RUN[14:],
    "a table without an end": RUN[:14] + b"\xff\xff" + RUN[16:],
    "a body outside its table": RUN[:18] + b"\x0c" + RUN[19:],
    "a text that is not UTF-8": encode(Hello(name="abc")).replace(b"abc\0", b"ab\xff\0"),
    "a text without its end": encode(Hello(name="abc")).replace(b"abc\0", b"abcd"),
    "nothing": b"",
    "a size alone": bytes(4),
    "the smallest": (8).to_bytes(4, "little") + bytes(4) + b"BRK1",
}


@pytest.mark.parametrize("frame", REFUSED.values(), ids=REFUSED.keys())
def test_a_frame_that_is_not_sound_is_refused_with_a_reason(frame: bytes) -> None:
    with pytest.raises(MalformedFrame) as caught:
        decode(frame)
    assert caught.value.reason
    assert caught.value.code == 1002


def test_a_run_whose_uids_do_not_fit_is_told_how_long_they_are() -> None:
    with pytest.raises(MalformedFrame, match="uid has 20 bytes for each message, or none"):
        decode(REFUSED["a uid too short"])


def test_fields_of_a_later_version_are_passed_over() -> None:
    ping = encode(Ping(5))
    vtable = 20  # as in the layout of a run
    assert read(ping) == Ping(5)
    longer = bytearray(ping)
    longer[vtable : vtable + 2] = (8).to_bytes(2, "little")  # one entry more, which was padding
    longer[vtable + 6 : vtable + 8] = (4).to_bytes(2, "little")
    assert read(bytes(longer)) == Ping(5)


# --- the stream of bytes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 3, 7, 64, 10_000])
def test_a_stream_is_cut_into_its_frames_however_it_arrives(step: int) -> None:
    frames = [encode(Ping(1)), RUN, encode(Hello(token=bytes(1000))), RUN, encode(Ping(2))]
    stream = b"".join(frames)
    cut = FrameSplitter()
    assert [frame for start in range(0, len(stream), step) for frame in cut.feed(stream[start : start + step])] == frames


def test_a_size_is_refused_before_anything_is_kept_for_it() -> None:
    cut = FrameSplitter(100)
    with pytest.raises(MalformedFrame) as caught:
        list(cut.feed((101).to_bytes(4, "little")))
    assert caught.value.code == 1009


def test_what_was_whole_before_a_bad_size_comes_first() -> None:
    frames = FrameSplitter().feed(encode(Ping(1)) + bytes(4))
    assert next(frames) == encode(Ping(1))
    with pytest.raises(MalformedFrame):
        next(frames)


def test_a_bad_size_in_what_was_read_ahead_is_told_once_all_before_it_is_passed_by_and_again() -> None:
    ahead, ping = ReadAhead(100), encode(Ping(1))
    ahead.put(ping + ping)
    ahead.put((101).to_bytes(4, "little"))
    for _ in range(2):
        assert ahead.frame() == ping
        ahead.pass_by(len(ping))
    for _ in range(2):
        with pytest.raises(MalformedFrame):
            ahead.frame()


def test_the_limit_of_a_frame_counts_for_those_that_nobody_has_asked_for() -> None:
    ahead, hello = ReadAhead(100), encode(Hello(token=bytes(1000)))
    ahead.put(encode(Ping(1)) + hello)
    ahead.pass_by(len(ahead.frame()))
    ahead.limit = 2000
    assert ahead.frame() == hello


def test_small_pieces_that_nobody_asks_for_are_joined() -> None:
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


# --- KSUIDs -----------------------------------------------------------------------------------------------------------


def test_a_ksuid_is_written_as_others_write_it() -> None:
    raw = bytes.fromhex("0669f7efb5a1cd34b5f99d1154fb6853345c9735")  # the example of its authors
    assert ksuid.ksuid_text(raw) == "0ujtsYcgvSTl8PAuAdqWYSMnLOv"
    assert ksuid.ksuid_of("0ujtsYcgvSTl8PAuAdqWYSMnLOv") == raw


def test_ksuids_sort_by_time_as_bytes_and_as_text() -> None:
    chance = Random(1)
    made = [ksuid.new_ksuid(1_700_000_000 + second, chance.randbytes) for second in range(50)]
    assert made == sorted(made)
    assert [ksuid.ksuid_text(each) for each in made] == sorted(map(ksuid.ksuid_text, made))


@pytest.mark.parametrize("text", ["", "0" * 26, "0" * 28, "z" * 27, "0" * 26 + "-", "0" * 26 + "é"])
def test_what_is_no_ksuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="KSUID"):
        ksuid.ksuid_of(text)
