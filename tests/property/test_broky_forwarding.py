"""Damaged runs on the fast path: forwarded frames are well-formed and equal to the decoded run."""

import os
import subprocess
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ropewalk.adapters.endpoints.broky_pushes import CollectedRuns, Pushes
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import EVERYTHING
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect, TransientRun
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.runs import build_run, decode, encode_run, split_payloads
from ropewalk.protocol.publications import PublicationLimits
from tests.broky_frames import built, damaged
from tests.property.cpp_verifier import build_verifier

FRAMES = int(os.environ.get("FUZZ_FRAMES", "5000"))
SEED = int(os.environ.get("FUZZ_SEED", "20261116"))
NOW = 1_800_000_000.0
LIMIT = 1 << 20


class Recorder:
    """A `RunPublisher` for which every stream is ephemeral."""

    derives_partitions = False

    def __init__(self, *heard: str) -> None:
        self.runs: list[TransientRun] = []
        self.listened_streams: Container[str] = heard

    def is_ephemeral(self, stream: str) -> bool:
        return True

    def check_partition(self, stream: str, named: str) -> None:
        pass

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self.runs += runs

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        raise NotImplementedError

    async def disconnect(self, order: RemoteDisconnect) -> int:
        raise NotImplementedError


def make_runs(publisher: Recorder, stats: Stats | None = None) -> CollectedRuns:
    return CollectedRuns(Pushes(publisher, PublicationLimits(max_batch=5), stats or Stats(), lambda: NOW, True))


def encoded_answer(runs: CollectedRuns) -> bytes:
    answer = runs.hand_over()
    assert isinstance(answer, bytes)
    return answer


def forward(frame: bytes) -> list[TransientRun]:
    publisher = Recorder()
    publisher.listened_streams = EVERYTHING
    runs = make_runs(publisher)
    if not runs.take(frame, 0, LIMIT, LIMIT):
        try:
            body = decode(frame)
        except MalformedFrame:
            return []
        if not isinstance(body, Run) or not runs.add(body):
            return []
    encoded_answer(runs)
    return publisher.runs


def forwarded_frames(seed: int) -> Iterator[tuple[bytes, TransientRun]]:
    for frame in damaged(seed, FRAMES):
        for run in forward(frame):
            yield frame, run


def test_forwarded_frame_equals_the_decoded_one() -> None:
    total = 0
    for frame, forwarded in forwarded_frames(SEED + 3):
        body, read = (
            decode(forwarded.frame),
            decode(frame[: int.from_bytes(frame[:4], "little") + 4]),
        )  # trailing bytes are the next frame
        assert isinstance(read, Run)
        assert body == replace(read, ref=0, offset=0, ts_broker=int(NOW * 1_000_000), epoch=b"")
        assert len(forwarded.frame) % 8 == 0
        messages = forwarded.messages()
        assert len(messages) == forwarded.count == read.count <= 5
        assert {message.stream for message in messages} == {forwarded.stream}
        total += 1
    assert total > FRAMES // 20


@pytest.mark.needs_flatc
@pytest.mark.tier("standard")
def test_each_forwarded_frame_passes_the_cpp_verifier(tmp_path: Path) -> None:
    program = build_verifier(tmp_path)
    frames = [forwarded.frame for _, forwarded in forwarded_frames(SEED + 4)]
    answers = subprocess.run(
        [program], input=b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames), capture_output=True, check=True
    ).stdout
    assert len(answers) == len(frames) > FRAMES // 20
    assert [frame.hex() for frame, answer in zip(frames, answers, strict=True) if answer != ord("1")] == []


# --- well-formed runs -------------------------------------------------------------------------------------------------


def test_runs_without_listeners_are_counted_unless_they_need_an_answer() -> None:
    publisher, stats = Recorder("heard"), Stats()
    runs = make_runs(publisher, stats)
    data = b"".join(
        encode_run(run)
        for run in (
            build_run(b"unheard", [b"1", b"2"]),
            build_run(b"heard", [b"3"]),
            build_run(b"unheard", [b"4"], ref=9),
            build_run(b"heard", [b"5", b"6", b"7"], ref=10),
        )
    )
    assert runs.take(data, 0, LIMIT, LIMIT) == len(data)
    answer = decode(encoded_answer(runs))
    assert (answer.refs, answer.offsets, answer.epochs) == ((9, 10), (0, 0), b"\0\0")  # type: ignore[union-attr]
    assert [(run.stream, run.count) for run in publisher.runs] == [("heard", 1), ("heard", 3)]
    assert (stats.publications, stats.publications_unheard) == (3, 3)  # listened ones are counted when published
    assert not runs


@pytest.mark.parametrize("count", [1, 2, 64, 65, 300])
def test_answer_without_positions_equals_the_general_encoder(count: int) -> None:
    publisher = Recorder()
    runs = make_runs(publisher)
    data = b"".join(encode_run(build_run(b"k", [b"x"], ref=number + 1)) for number in range(count))
    assert runs.take(data, 0, LIMIT, LIMIT) == len(data)
    answer = decode(encoded_answer(runs))
    assert answer.refs == tuple(range(1, count + 1))  # type: ignore[union-attr]
    assert answer.offsets == (0,) * count  # type: ignore[union-attr]
    assert answer.epochs == bytes(count)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "run",
    [
        build_run(b"", [b"x"]),
        build_run(b"k" * 10_000, [b"x"]),
        build_run(b"k", [b"x"] * 6),
        build_run(b"k", [bytes(1_000_000)]),
        build_run(b"k", [b"x"], key_partition=b"p" * 10_000),
        build_run(b"k", [b"{}"], format=Format.JSON),
        replace(build_run(b"k", [b"x"]), epoch=b"e"),
    ],
)
def test_runs_that_need_full_decoding_are_not_taken(run: Run) -> None:
    publisher = Recorder("", "k", "k" * 10_000)
    assert make_runs(publisher).take(encode_run(run), 0, 1 << 22, LIMIT) == 0


def test_run_of_another_layout_is_rebuilt() -> None:
    pushed = build_run(b"key", [b"one", b"two"], 7, Format.BYTES, b"part", bytes(40), (1, 2))
    (forwarded,) = forward(built(pushed))
    body = decode(forwarded.frame)
    assert isinstance(body, Run)
    assert split_payloads(body) == [b"one", b"two"]
    assert forwarded.frame == encode_run(replace(pushed, ref=0, ts_broker=int(NOW * 1_000_000)))
