"""Runs a conformance suite without pytest's collection, to find the tests that a fake fails."""

import inspect
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

Suite = Callable[[], object]


async def failed_tests(suite: Suite, home: Path, *only: str) -> set[str]:
    """Returns the names of the failed tests. Runs all or `only` these, each on a new instance and in a new directory."""
    number, found = count(), set()
    for name in only or [name for name in dir(suite) if name.startswith("test_")]:
        for arguments in _cases(getattr(suite, name)):
            directory = home / str(next(number))
            directory.mkdir()
            try:
                await _run(getattr(suite(), name), directory, arguments)
            except (Exception, pytest.fail.Exception):
                found.add(name)
    return found


async def _run(test: Callable[..., Any], directory: Path, arguments: dict[str, object]) -> None:
    given = {"tmp_path": directory} if "tmp_path" in inspect.signature(test).parameters else {}
    running = test(**given, **arguments)
    if inspect.isawaitable(running):
        await running


def _cases(test: Any) -> Iterator[dict[str, object]]:
    """The arguments of each case, from the `parametrize` marks of the test."""
    marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for chosen in product(*(values for _, values in marks)):
        arguments: dict[str, object] = {}
        for (names, _), value in zip(marks, chosen, strict=True):
            arguments |= {names: value} if isinstance(names, str) else dict(zip(names, value, strict=True))
        yield arguments
