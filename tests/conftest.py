"""What all tests share: tiers, what a test needs of the machine, and how tests are spread over processes."""

import gc
import os
import secrets
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.alone import run_slot
from tests.prerequisites import PREREQUISITES, chromium_path, must_not_skip
from tests.tiers import DIRECTORIES, Tier, tier_of

# Assertions of the shipped suites are shown in full, as those of test files are.
pytest.register_assert_rewrite("ropewalk.testing")

SPARK = "tests/spark/"
SHARING = (SPARK, "tests/clients/")

hypothesis.settings.register_profile("fast", max_examples=25, stateful_step_count=20, deadline=None, derandomize=True)
hypothesis.settings.register_profile("all", max_examples=200, stateful_step_count=40, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers = [tier.name.lower() for tier in Tier]
    parser.addoption("--tier", choices=tiers, default="standard", help="run this tier and those below it: " + ", ".join(tiers))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_FailureNames(config))
    everything = config.option.tier == "all"
    hypothesis.settings.load_profile("all" if everything else "fast")
    if everything and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbelow(2**32))  # xdist passes it on to its processes


class _FailureNames:
    """Names a failed case at once: its report comes at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\n{report.when} failed: {report.nodeid}", red=True)


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"tier: {config.option.tier}" + (f", --hypothesis-seed={seed}" if seed else "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Directories above the wanted tier are not even imported."""
    if config.args != config.getini("testpaths") or collection_path.parent != config.rootpath / "tests":
        return None
    above = DIRECTORIES.get(collection_path.name, Tier.FAST) > Tier[config.option.tier.upper()]
    return True if above else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _require_fixtures(items)
    if config.args == config.getini("testpaths"):
        wanted = Tier[config.option.tier.upper()]
        config.hook.pytest_deselected(items=[item for item in items if tier_of(item) > wanted])
        items[:] = [item for item in items if tier_of(item) <= wanted]
    items.sort(key=_place)


def _require_fixtures(items: list[pytest.Item]) -> None:
    """A fixture that no longer exists stops every run that imports the test, also one whose tier leaves the test out."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        missing = set(item.fixturenames) - item._fixtureinfo.name2fixturedefs.keys() - {"request"}
        if missing:
            raise pytest.UsageError(f"{item.nodeid}: no fixture {', '.join(sorted(missing))}")


def _place(item: pytest.Item) -> tuple[bool, bool, bool]:
    """Spark first, because one process runs all of it; then the tests that start servers. Tests that must run alone come last,
    so that the other processes wait for them once."""
    return (_alone(item), not item.nodeid.startswith(SPARK), tier_of(item) is Tier.FAST)


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


class _Scheduling(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """A file runs in one process. So do the directories whose files share a Spark session or Node processes."""

    def _split_scope(self, nodeid: str) -> str:
        return next((name for name in SHARING if nodeid.startswith(name)), str(super()._split_scope(nodeid)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Scheduling:
    return _Scheduling(config, log)


def pytest_collection_finish() -> None:
    gc.freeze()  # the modules and cases, so that `collect_garbage` is quick


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not hasattr(item.config, "workerinput"):  # not one of several processes
        return (yield)
    with run_slot(_alone(item), Path(item.config.getoption("basetemp")).parent):
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


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser, for tests marked `needs_chromium`."""
    return chromium_path()


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """A resource that was not closed fails the case that opened it, not a random later one."""
    yield
    gc.collect()
