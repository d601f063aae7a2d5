"""What the Parquet index caches: bounded by weight, the least used forgotten first."""

from collections.abc import Callable

from ropewalk.adapters.archives.parquet_index import Remembered


def never() -> str:
    raise AssertionError("it was known")


def kept(text: str) -> Callable[[], str]:
    return lambda: text


def test_what_is_known_is_not_made_again() -> None:
    memory: Remembered[str] = Remembered(10)
    assert memory.get("a", kept("x")) == "x"
    assert memory.get("a", never) == "x"


def test_heavy_things_push_out_those_that_were_used_least() -> None:
    memory: Remembered[str] = Remembered(10, weigh=len)
    for name in ("a", "b", "c"):
        memory.get(name, kept(name * 3))
    memory.get("a", never)
    memory.get("d", kept("dddd"))
    assert memory.get("a", never) == "aaa"
    assert memory.get("c", never) == "ccc"
    assert memory.get("b", kept("again")) == "again"


def test_a_thing_heavier_than_the_limit_is_given_but_not_kept_and_leaves_the_count_right() -> None:
    memory: Remembered[str] = Remembered(3, weigh=len)
    assert memory.get("a", kept("xxxx")) == "xxxx"
    assert memory.get("a", kept("yyy")) == "yyy"
    assert memory.get("a", never) == "yyy"
