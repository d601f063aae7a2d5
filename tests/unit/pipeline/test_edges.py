"""Where a query begins: numbers and words become marks, in the generation of the shard to which they belong."""

import json

import pytest

from ropewalk.model.journal import GENERATION_SIZE, ShardMark, ShardSpan
from ropewalk.pipeline.edges import Edges
from ropewalk.pipeline.options import Edge, source_options
from ropewalk.pipeline.wire import Wire

OPTIONS = source_options({"url": "http://127.0.0.1:1"}, streaming=True)
GONE, NEW = ShardSpan(0, "old", 90, 90), ShardSpan(0, "new", GENERATION_SIZE + 20, GENERATION_SIZE + 50)


def resolved(offsets: object, *own: ShardSpan) -> ShardMark:
    text = offsets if isinstance(offsets, str) else json.dumps({"0": offsets})
    return Edges(OPTIONS, Wire(OPTIONS.address)).resolve(Edge(text), {0: own})[0]


@pytest.mark.parametrize(
    ("given", "mark"),
    [
        (40, ShardMark("old", 40)),
        (90, ShardMark("new", GENERATION_SIZE)),
        (GENERATION_SIZE + 30, ShardMark("new", GENERATION_SIZE + 30)),
        (GENERATION_SIZE + 60, ShardMark("new", GENERATION_SIZE + 60)),
        (-1, ShardMark("new", GENERATION_SIZE + 50)),
        (-2, ShardMark("new", GENERATION_SIZE + 20)),
        ({"e": "old", "p": 90}, ShardMark("old", 90)),
        ("earliest", ShardMark("new", GENERATION_SIZE + 20)),
        ("latest", ShardMark("new", GENERATION_SIZE + 50)),
    ],
)
def test_a_number_tells_its_generation_and_the_earliest_is_what_is_still_there(given: object, mark: ShardMark) -> None:
    assert resolved(given, GONE, NEW) == mark


def test_a_number_below_all_generations_that_are_known_stays_what_it_is() -> None:
    assert resolved(40, NEW) == ShardMark("new", 40)


def test_in_a_shard_without_spans_everything_is_still_to_come() -> None:
    assert resolved("earliest") == resolved("latest") == ShardMark("", 0)
