"""What all tests share: markers for what a test needs of the machine, see `tests.prerequisites` and `tests.turns`."""

import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.prerequisites import PREREQUISITES, chromium_path, must_not_skip
from tests.server import all_servers_with
from tests.turns import turn

# Assertions of the shipped suites are shown in full, as those of test files are.
pytest.register_assert_rewrite("ropewalk.testing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that must be alone come last: then they wait for others once, rather than each time."""
    items.sort(key=_alone)


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not hasattr(item.config, "workerinput"):  # not one of several processes
        return (yield)
    with turn(_alone(item), Path(item.config.getoption("basetemp")).parent):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for prerequisite in PREREQUISITES:
        hint = prerequisite.missing() if item.get_closest_marker(prerequisite.marker) else ""
        if hint and must_not_skip(os.environ) and not prerequisite.of_the_system:
            pytest.fail(hint, pytrace=False)
        if hint:
            pytest.skip(hint)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    hints = {prerequisite.missing() for prerequisite in PREREQUISITES}
    for hint in sorted(hints & reasons.keys()):
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{reasons[hint]} tests were skipped, for this machine lacks something. Each {hint}", red=True)


@pytest.fixture(scope="module", params=[(), ("--workers", "2")], ids=["alone", "workers"])
def processes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module twice: with servers of one process ("alone"), and with servers of several ("workers"). What a server
    promises does not depend on how many processes it has, nor on which of them a client reaches. Fixtures of the module that
    start servers ask for it."""
    with all_servers_with(*request.param):
        yield "workers" if request.param else "alone"


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    """All servers of a module have several processes."""
    with all_servers_with("--workers", "2"):
        yield


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser, for tests marked `needs_chromium`."""
    return chromium_path()
