"""The name of a replay belongs to one selection: others are rejected and have other producers."""

from pathlib import Path

import msgspec
import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.jobs.replay import ReplayOptions, ReplaySelection, check_name, remember

CHATS = ReplaySelection("archive", "/archive", pattern="chat/.*")


def test_unused_name_accepts_any_selection(tmp_path: Path) -> None:
    check_name(tmp_path, "copy", CHATS)
    check_name(tmp_path, "copy", msgspec.structs.replace(CHATS, pattern=""))


def test_same_selection_continues_under_its_name(tmp_path: Path) -> None:
    remember(tmp_path, "copy", CHATS)
    check_name(tmp_path, "copy", CHATS)
    check_name(tmp_path, "another", msgspec.structs.replace(CHATS, pattern=""))


def test_other_selection_under_a_used_name_is_rejected(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for key in [field.name for field in msgspec.structs.fields(ReplaySelection)]:
        with subtests.test(key=key):
            remember(tmp_path, "copy", CHATS)
            other = msgspec.structs.replace(CHATS, **{key: "else"})
            with pytest.raises(UserMistake, match=f"'copy' was begun with another selection: {key} was .* and is 'else'"):
                check_name(tmp_path, "copy", other)
            assert other.producer("copy", 3) != CHATS.producer("copy", 3)


def test_unreadable_selection_is_an_error(tmp_path: Path) -> None:
    remember(tmp_path, "copy", CHATS)
    (path,) = tmp_path.rglob("copy.json")
    path.write_bytes(b"")
    with pytest.raises(UserMistake, match=r"copy\.json cannot be read"):
        check_name(tmp_path, "copy", CHATS)


def test_equal_times_are_the_same_selection() -> None:
    one, same, later = (
        ReplayOptions(since=since).selection("/archive")
        for since in ("2026-01-31", "2026-01-31T01:00:00+01:00", "2026-01-31T12:00:00Z")
    )
    assert one == same != later


def test_archive_is_part_of_a_selection_only_if_it_is_the_source() -> None:
    assert ReplayOptions(source="journal").selection("/a") == ReplayOptions(source="journal").selection("/b")
    assert ReplayOptions().selection("/a") != ReplayOptions().selection("/b")


def test_speed_and_fail_on_data_loss_are_not_part_of_a_selection() -> None:
    assert ReplayOptions(speed=3.0, fail_on_data_loss=False).selection("/a") == ReplayOptions().selection("/a")
