"""Every example runs against the real server and does what it says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.client import Publisher
from tests.scenarios.command_line import SECONDS, running_program
from tests.server import RunningServer, running_server

EXAMPLES = Path(__file__).parents[2] / "examples"
TRIED = {"publish_and_subscribe.py", "tail_a_stream.py"}
TRIED_WITH_SPARK = {"pipeline_notebook.py", "whole_road.py"}  # in tests/spark/test_pipeline_examples.py


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public") as server:
        yield server


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TRIED | TRIED_WITH_SPARK


def test_publish_and_subscribe_receives_what_it_sent(server: RunningServer) -> None:
    program = [sys.executable, str(EXAMPLES / "publish_and_subscribe.py"), server.url]
    result = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
    words = [(n, word) for n, word in enumerate(("warp", "weft", "rope"), 1)]
    sent = [f"sent      {word} at offset {n}" for n, word in words]
    assert result.stdout.splitlines() == sent + [f"received  {word} at offset {n}" for n, word in words]


async def test_tail_a_stream_shows_the_past_and_what_comes(server: RunningServer) -> None:
    async with Publisher(server.url) as publisher:
        await publisher.publish("examples/tail", "before")
        async with running_program(str(EXAMPLES / "tail_a_stream.py"), server.url) as program:
            assert await program.line() == "1: before"
            await publisher.publish("examples/tail", "after")
            assert await program.line() == "2: after"
            assert await program.interrupt() == 0
