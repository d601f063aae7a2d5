import pytest
from msgspec.msgpack import decode

from ropewalk.adapters.backends.redis import shard
from ropewalk.adapters.backends.redis.shard import RecentAppends


def test_report_has_the_streams_of_all_groups_above_the_counter() -> None:
    appends = RecentAppends()
    appends.start(0)
    for stream, end in (("a", 10), ("b", 20), ("c", 30)):
        appends.answered(appends.begin([stream, "always"], 5), end)
    assert decode(appends.report(20)) == [1, 5, ["always", "c"]]
    assert decode(appends.report(30)) == [1, 0, []]


def test_group_without_an_answer_may_have_been_registered_at_any_time() -> None:
    appends = RecentAppends()
    appends.start(0)
    appends.begin(["unanswered"], 3)
    appends.answered(appends.begin(["a"], 5), 10)
    assert decode(appends.report(10)) == [1, 3, ["unanswered"]]


def test_report_is_incomplete_below_the_groups_that_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MAX_STREAMS", 2)
    appends = RecentAppends()
    appends.start(0)
    for number in range(1, 5):
        appends.answered(appends.begin([f"s{number}"], 1), number)
    assert decode(appends.report(1)) == [0, 2, ["s3", "s4"]]
    assert decode(appends.report(2)) == [1, 2, ["s3", "s4"]]


def test_report_is_incomplete_below_the_start_of_the_process() -> None:
    """An earlier process of the same name may have appended."""
    appends = RecentAppends()
    assert decode(appends.report(5)) == [0, 0, []]
    appends.start(5)
    assert [decode(appends.report(counter))[0] for counter in (4, 5, 6)] == [0, 1, 1]
