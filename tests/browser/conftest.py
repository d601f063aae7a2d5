"""A headless Chromium for the browser tests, and tabs in it that must end without a word on their console."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.tab import Tab

# No sandbox: in containers the tests run as root. The rest keeps the browser from talking to anyone but the server.
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

OpenTab = Callable[[str], Tab]


# By module, not by session: while Playwright runs, its event loop is this thread's, and asynchronous tests get none.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=20_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def outlives_tabs() -> Iterator[ExitStack]:
    """Servers and wires are entered here: a tab would complain of one that ended before it."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def open_tab(browser: Browser, outlives_tabs: ExitStack) -> Iterator[OpenTab]:
    tabs: list[Tab] = []

    def opened(url: str) -> Tab:
        tabs.append(Tab(browser, url))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.page.context.close()
    assert [tab.problems for tab in tabs] == [[] for _ in tabs]
