"""What all tests share: markers for what a test needs of the machine, see `tests.prerequisites`."""

import os
from collections.abc import Iterator

import pytest

from tests.prerequisites import PREREQUISITES, chromium_path, must_not_skip
from tests.server import all_servers_with

# Assertions of the shipped suites are shown in full, as those of test files are.
pytest.register_assert_rewrite("ropewalk.testing")

_hints: dict[str, int] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for prerequisite in PREREQUISITES:
        hint = prerequisite.missing() if item.get_closest_marker(prerequisite.marker) else ""
        if hint and must_not_skip(os.environ) and not prerequisite.of_the_system:
            pytest.fail(hint, pytrace=False)
        if hint:
            _hints[hint] = _hints.get(hint, 0) + 1
            pytest.skip(hint)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for hint, count in _hints.items():
        terminalreporter.section("NOT TESTED", sep="!", red=True, bold=True)
        terminalreporter.line(f"{count} tests were skipped, for this machine lacks something. Each {hint}", red=True)


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
