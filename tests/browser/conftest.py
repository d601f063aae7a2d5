"""A headless Chromium for the browser tests. Its tabs must report no error or warning on their console."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.tab import Tab

# No sandbox: in containers the tests run as root. The rest stops connections of the browser to other hosts.
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

EXPECT_SECONDS = 60

OpenTab = Callable[[str], Tab]


# For the tests of this directory, not of the session: while Playwright runs, its event loop occupies the thread, and
# asynchronous tests cannot have one.
@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=EXPECT_SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def outlives_tabs() -> Iterator[ExitStack]:
    """For servers and wires that must end after the tabs: a tab would report the lost connection."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def room(request: pytest.FixtureRequest) -> str:
    """The stream of a test. Tests that share a server do not see each other's messages."""
    return f"demo/{request.node.name}"


@pytest.fixture
def open_tab(browser: Browser, outlives_tabs: ExitStack, room: str) -> Iterator[OpenTab]:
    tabs: list[Tab] = []

    def opened(url: str) -> Tab:
        tabs.append(Tab(browser, url, room))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.page.context.close()
    assert [tab.problems for tab in tabs] == [[] for _ in tabs]
