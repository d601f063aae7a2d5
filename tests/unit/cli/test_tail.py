"""What `ropewalk tail` says of a gap."""

import pytest

from ropewalk.cli.tail import Page
from ropewalk.client import Gap, Position


@pytest.mark.parametrize(
    ("gap", "told"),
    [
        (
            Gap("a", "trimmed", Position("e", 3), "e", 9, 12),
            "gap in a: 5 messages lost (trimmed); it goes on at epoch=e offset=9",
        ),
        (
            Gap("a", "epoch_changed", Position("e", 3), None, 1),
            "gap in a: messages lost (epoch_changed); it goes on at offset=1",
        ),
        (Gap("a", "disconnected", None), "gap in a: messages may be missing (disconnected)"),
        (Gap("a", ""), "gap in a: messages may be missing (no reason given)"),
    ],
    ids=["trimmed", "without an epoch yet", "without a place", "without a reason"],
)
def test_a_gap_is_told_with_what_is_known_of_it(gap: Gap, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    Page(as_json=False, count=None).warn(gap)
    assert capsys.readouterr().err == f"{told}\n"
