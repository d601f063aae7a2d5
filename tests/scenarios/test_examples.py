"""The examples run against a server and print the documented lines."""

import subprocess
import sys
from pathlib import Path

from ropewalk.client import Publisher
from tests.scenarios.command_line import SECONDS, running_program
from tests.server import RunningServer

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED = {"publish_and_subscribe.py", "tail_a_stream.py"}
TESTED_WITH_SPARK = {"pipeline_notebook.py", "whole_road.py"}  # in tests/spark/test_pipeline_examples.py


def test_every_example_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED | TESTED_WITH_SPARK


def test_publish_and_subscribe_receives_its_messages(server: RunningServer) -> None:
    program = [sys.executable, str(EXAMPLES / "publish_and_subscribe.py"), server.url]
    result = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (0, "")
    words = [(n, word) for n, word in enumerate(("warp", "weft", "rope"), 1)]
    sent = [f"sent      {word} at offset {n}" for n, word in words]
    assert result.stdout.splitlines() == sent + [f"received  {word} at offset {n}" for n, word in words]


async def test_tail_a_stream_prints_history_and_live_messages(server: RunningServer) -> None:
    async with Publisher(server.url) as publisher:
        await publisher.publish("examples/tail", "before")
        async with running_program(str(EXAMPLES / "tail_a_stream.py"), server.url) as program:
            assert await program.line() == "1: before"
            await publisher.publish("examples/tail", "after")
            assert await program.line() == "2: after"
            assert await program.interrupt() == 0
