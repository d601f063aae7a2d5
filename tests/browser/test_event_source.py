"""EventSource of a browser with a lost link: it resumes from the last event id."""

import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.wire import Wire, wire_to
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_chromium

TIMEOUT_MS = 60_000
CONNECT = """address => {
    window.seen = [];
    window.source = new EventSource(address);
    source.onmessage = event => seen.push(event.data);
}"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--sse") as server:
        yield server


def publish(server: RunningServer, *texts: str, transient: bool = False) -> None:
    for text in texts:
        body = json.dumps({"stream": "news", "data": json.dumps(text), "meta": {"transient": transient}}).encode()
        urlopen(Request(f"{server.url}/_broadcast", body)).close()


def sees(page: Page, *texts: str) -> None:
    page.wait_for_function("wanted => seen.length >= wanted", arg=len(texts), timeout=TIMEOUT_MS)
    assert page.evaluate("seen") == list(texts)


def test_event_sources_without_a_message_yet_resume_after_a_lost_link(browser: Browser, server: RunningServer) -> None:
    publish(server, "from before")
    with wire_to(server.url) as wire:
        pages = [connect(browser, wire, f"/events?stream=news{mode}") for mode in ("", "&raw=1")]
        publish(server, "no position", transient=True)  # arrives after the confirmation
        for page in pages:
            sees(page, "no position")
        wire.cut()
        publish(server, "one", "two")
        wire.mend()
        for page in pages:
            sees(page, "no position", "one", "two")
        publish(server, "three")
        for page in pages:
            sees(page, "no position", "one", "two", "three")
            page.close()


def connect(browser: Browser, wire: Wire, path: str) -> Page:
    page = browser.new_page()
    page.goto(f"{wire.url}/health")
    page.evaluate(CONNECT, path)
    page.wait_for_function("source.readyState === EventSource.OPEN", timeout=TIMEOUT_MS)
    return page
