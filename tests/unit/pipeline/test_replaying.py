"""A replay's name stands for one selection: another one is refused, and never shares its producers."""

from pathlib import Path

import msgspec
import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.jobs.replay import ReplayOptions
from ropewalk.pipeline.replaying import ReplaySelection, check_name, remember

CHATS = ReplaySelection("archive", "/archive", pattern="chat/.*")


def test_a_name_is_free_until_something_is_published_under_it(tmp_path: Path) -> None:
    check_name(tmp_path, "copy", CHATS)
    check_name(tmp_path, "copy", msgspec.structs.replace(CHATS, pattern=""))


def test_the_same_selection_goes_on_under_its_name(tmp_path: Path) -> None:
    remember(tmp_path, "copy", CHATS)
    check_name(tmp_path, "copy", CHATS)
    check_name(tmp_path, "another", msgspec.structs.replace(CHATS, pattern=""))


@pytest.mark.parametrize("key", [field.name for field in msgspec.structs.fields(ReplaySelection)])
def test_another_selection_is_refused_under_a_used_name_and_has_other_producers(tmp_path: Path, key: str) -> None:
    remember(tmp_path, "copy", CHATS)
    other = msgspec.structs.replace(CHATS, **{key: "else"})
    with pytest.raises(UserMistake, match=f"'copy' was begun with another selection: {key} was .* and is 'else'"):
        check_name(tmp_path, "copy", other)
    assert other.producer("copy", 3) != CHATS.producer("copy", 3)


def test_a_selection_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    remember(tmp_path, "copy", CHATS)
    (path,) = tmp_path.rglob("copy.json")
    path.write_bytes(b"")
    with pytest.raises(UserMistake, match=r"copy\.json cannot be read"):
        check_name(tmp_path, "copy", CHATS)


def test_times_are_the_same_selection_however_they_are_written() -> None:
    one, same, later = (
        ReplayOptions(since=since).selection("/archive")
        for since in ("2026-01-31", "2026-01-31T01:00:00+01:00", "2026-01-31T12:00:00Z")
    )
    assert one == same != later


def test_the_archive_belongs_to_a_selection_only_where_rows_come_from_it() -> None:
    assert ReplayOptions(source="journal").selection("/a") == ReplayOptions(source="journal").selection("/b")
    assert ReplayOptions().selection("/a") != ReplayOptions().selection("/b")


def test_pace_and_patience_with_losses_are_no_part_of_a_selection() -> None:
    assert ReplayOptions(speed=3.0, fail_on_data_loss=False).selection("/a") == ReplayOptions().selection("/a")
