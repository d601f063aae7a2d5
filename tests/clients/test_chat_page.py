"""The JavaScript client of the chat page: the positions from which it requests its history again."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs_node

HERE = Path(__file__).parent
IDENTIFIER = json.dumps({"channel": "ChatChannel", "room": "a"}, separators=(",", ":"))
WELCOME = {"type": "welcome", "sid": "1"}
MESSAGE = {"identifier": IDENTIFIER, "message": {"text": "hello"}, "stream_id": "s", "epoch": "e", "offset": 7}


def run(*connections: list[dict[str, Any]]) -> dict[str, Any]:
    """What the client requested and reported on connections with these frames."""
    frames = json.dumps(connections)
    done = subprocess.run(
        ["node", "chat_page.js"], cwd=HERE, input=frames, capture_output=True, text=True, check=True, timeout=60
    )
    return dict(json.loads(done.stdout))


def gap(reason: str, epoch: str, oldest: int, tip: int) -> dict[str, Any]:
    streams = {"s": {"reason": reason, "epoch": epoch, "oldest": oldest, "tip": tip}}
    return {"type": "reject_history", "identifier": IDENTIFIER, "reason": reason, "streams": streams}


def caught_up(epoch: str, tip: int) -> dict[str, Any]:
    return {"type": "confirm_history", "identifier": IDENTIFIER, "streams": {"s": {"epoch": epoch, "tip": tip}}}


@pytest.mark.parametrize("reason", ["epoch_changed", "trimmed", "dropped"])
def test_gap_without_an_epoch_keeps_the_position(reason: str) -> None:
    seen = run([WELCOME, MESSAGE, gap(reason, "", 1, 0)], [WELCOME])
    assert seen == {"asked": [{}, {"s": {"epoch": "e", "offset": 7}}], "gaps": [reason]}


def test_gap_with_an_epoch_moves_the_position_to_its_end() -> None:
    seen = run([WELCOME, MESSAGE, gap("trimmed", "e", 12, 20)], [WELCOME])
    assert seen["asked"] == [{}, {"s": {"epoch": "e", "offset": 11}}]


def test_tip_without_an_epoch_is_not_a_position() -> None:
    """Otherwise the client would request nothing by time, and miss the first messages of the stream."""
    assert run([WELCOME, caught_up("", 0)], [WELCOME])["asked"] == [{}, {}]


def test_tip_with_an_epoch_is_the_position_of_a_client_without_one() -> None:
    seen = run([WELCOME, caught_up("e", 3)], [WELCOME])
    assert seen["asked"] == [{}, {"s": {"epoch": "e", "offset": 3}}]
