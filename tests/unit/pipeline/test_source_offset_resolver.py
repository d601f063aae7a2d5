"""Start and end offsets of a query: numbers and words become marks in the right generation."""

import json

import pytest

from ropewalk.model.journal import GENERATION_SIZE, ShardMark, ShardSpan
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.options import Boundary, source_options
from ropewalk.pipeline.source import OffsetResolver

OPTIONS = source_options({"url": "http://127.0.0.1:1"}, streaming=True)
GONE, NEW = ShardSpan(0, "old", 90, 90), ShardSpan(0, "new", GENERATION_SIZE + 20, GENERATION_SIZE + 50)


def resolve(offsets: object, *own: ShardSpan) -> ShardMark:
    text = offsets if isinstance(offsets, str) else json.dumps({"0": offsets})
    return OffsetResolver(OPTIONS, JournalClient(OPTIONS.address)).resolve(Boundary(text), {0: own})[0]


def test_offset_is_resolved_to_a_mark_in_its_generation(subtests: pytest.Subtests) -> None:
    cases: list[tuple[object, ShardMark]] = [
        (40, ShardMark("old", 40)),
        (90, ShardMark("new", GENERATION_SIZE)),
        (GENERATION_SIZE + 30, ShardMark("new", GENERATION_SIZE + 30)),
        (GENERATION_SIZE + 60, ShardMark("new", GENERATION_SIZE + 60)),
        (-1, ShardMark("new", GENERATION_SIZE + 50)),
        (-2, ShardMark("new", GENERATION_SIZE + 20)),
        ({"e": "old", "p": 90}, ShardMark("old", 90)),
        ("earliest", ShardMark("new", GENERATION_SIZE + 20)),
        ("latest", ShardMark("new", GENERATION_SIZE + 50)),
    ]
    for given, mark in cases:
        with subtests.test(given=given):
            assert resolve(given, GONE, NEW) == mark


def test_offset_below_all_known_generations_is_kept() -> None:
    assert resolve(40, NEW) == ShardMark("new", 40)


def test_shard_without_spans_starts_at_zero() -> None:
    assert resolve("earliest") == resolve("latest") == ShardMark("", 0)
