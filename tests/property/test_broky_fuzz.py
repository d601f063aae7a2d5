"""Damaged frames are decoded, or refused with a typed error. `make fuzz` tries a million."""

import gc
import os
import subprocess
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.broky.runs import decode, encode_run, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter
from tests.broky_frames import damaged
from tests.property.cpp_verifier import build_verifier

FRAMES = int(os.environ.get("FUZZ_FRAMES", "5000"))
SEED = int(os.environ.get("FUZZ_SEED", "20261116"))


MAX_USED_BYTES, MAX_KEPT_BYTES = 4 << 20, 64 << 10
"""During a run (mostly Python's free lists of tuples) and after it."""


def test_damaged_frame_is_decoded_or_refused_without_leaking_memory() -> None:
    read = refused = 0
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for frame in damaged(SEED, FRAMES):
            try:
                body = decode(frame)
            except MalformedFrame:
                refused += 1
                continue
            read += 1
            if isinstance(body, Run):
                assert sum(map(len, split_payloads(body))) == len(body.payload) < len(frame)
                assert decode(encode_run(body)) == body
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read > FRAMES // 20
    assert refused > FRAMES // 4
    assert peak - before < MAX_USED_BYTES
    assert after - before < MAX_KEPT_BYTES


def test_damaged_stream_is_split_within_the_size_limit_or_refused() -> None:
    frames = damaged(SEED + 1, FRAMES)
    codes = set()
    for _ in range(FRAMES // 10):
        stream = b"".join(islice(frames, 10))
        frame_splitter = FrameSplitter(4096)
        try:
            for at in range(0, len(stream), 97):
                for frame in frame_splitter.feed(stream[at : at + 97]):
                    assert 12 <= len(frame) <= 4100
        except MalformedFrame as error:
            codes.add(error.code)
    assert codes == {1002, 1009}


@pytest.mark.needs_flatc
@pytest.mark.tier("all")
def test_each_accepted_frame_passes_the_cpp_verifier(tmp_path: Path) -> None:
    program = build_verifier(tmp_path)
    read = 0
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as verifier:
        assert verifier.stdin is not None
        assert verifier.stdout is not None
        for frame in damaged(SEED + 2, FRAMES):
            try:
                body = decode(frame)
            except MalformedFrame:
                continue
            for passed in (frame, encode_run(body)) if isinstance(body, Run) else (frame,):
                verifier.stdin.write(len(passed).to_bytes(4, "little") + passed)
                verifier.stdin.flush()
                assert verifier.stdout.read(1) == b"1", passed.hex()
                read += 1
        verifier.stdin.close()
        assert verifier.wait() == 0
    assert read > FRAMES // 20
