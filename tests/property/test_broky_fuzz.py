"""Damaged frames: each is read, or refused with a typed error. `make fuzz` tries a million, and asks the verifier for C++."""

import gc
import os
import shutil
import subprocess
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from ropewalk.model.errors import MalformedFrame
from ropewalk.protocol.broky import splitter
from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.broky.runs import decode, encode_run, payloads_of
from ropewalk.protocol.broky.splitter import FrameSplitter
from tests.broky_frames import damaged

FRAMES = int(os.environ.get("FUZZ_FRAMES", "20000"))
SEED = int(os.environ.get("FUZZ_SEED", "20261116"))
ON_DEMAND = "FUZZ_FRAMES" in os.environ

SCHEMA = Path(splitter.__file__).with_name("broky.fbs")
VERIFIER = Path(__file__).with_name("broky_verifier.cpp")

MOST_USED, MOST_KEPT = 4 << 20, 64 << 10
"""Bytes that may be in use during a run, most of which is what Python keeps of tuples for later ones, and after it."""


def test_damaged_frames_are_read_or_refused_and_leave_nothing_behind() -> None:
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
                assert sum(map(len, payloads_of(body))) == len(body.payload) < len(frame)
                assert decode(encode_run(body)) == body
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read > FRAMES // 20
    assert refused > FRAMES // 4
    assert peak - before < MOST_USED
    assert after - before < MOST_KEPT


def test_a_damaged_stream_ends_with_an_error_or_is_cut_into_frames_within_their_bound() -> None:
    frames = damaged(SEED + 1, FRAMES)
    codes = set()
    for _ in range(FRAMES // 10):
        stream = b"".join(islice(frames, 10))
        cut = FrameSplitter(4096)
        try:
            for at in range(0, len(stream), 97):
                for frame in cut.feed(stream[at : at + 97]):
                    assert 12 <= len(frame) <= 4100
        except MalformedFrame as error:
            codes.add(error.code)
    assert codes == {1002, 1009}


@pytest.mark.skipif(not ON_DEMAND, reason="on demand: make fuzz")
def test_what_is_read_here_passes_the_verifier_for_cpp(tmp_path: Path) -> None:
    compiler, flatc = shutil.which("g++"), shutil.which("flatc")
    assert compiler, "apt-get install g++"
    assert flatc, "apt-get install flatbuffers-compiler libflatbuffers-dev"
    subprocess.run([flatc, "--cpp", "-o", tmp_path, SCHEMA], check=True)
    program = tmp_path / "verifier"
    subprocess.run([compiler, "-O1", "-I", tmp_path, "-o", program, VERIFIER], check=True)
    verifier = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert verifier.stdin is not None
    assert verifier.stdout is not None
    read = 0
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
