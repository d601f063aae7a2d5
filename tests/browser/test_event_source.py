"""A browser's own EventSource behind a network that fails: what it keeps of an event id, and comes back with."""

import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.wire import wire_to
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_chromium

CONNECT = """address => {
    window.seen = [];
    window.source = new EventSource(address);
    source.onmessage = event => seen.push(event.data);
}"""


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--sse") as server:
        yield server


def say(server: RunningServer, *texts: str, transient: bool = False) -> None:
    for text in texts:
        body = json.dumps({"stream": "news", "data": json.dumps(text), "meta": {"transient": transient}}).encode()
        urlopen(Request(f"{server.url}/_broadcast", body)).close()


def sees(page: Page, *texts: str) -> None:
    page.wait_for_function("wanted => seen.length >= wanted", arg=len(texts), timeout=20_000)
    assert page.evaluate("seen") == list(texts)


@pytest.mark.parametrize("mode", ["", "&raw=1"])
def test_an_event_source_that_is_cut_off_before_its_first_message_gets_what_it_missed(
    browser: Browser, server: RunningServer, mode: str
) -> None:
    say(server, "from before")
    with wire_to(server.url) as wire:
        page = browser.new_page()
        page.goto(f"{wire.url}/health")
        page.evaluate(CONNECT, f"/events?stream=news{mode}")
        page.wait_for_function("source.readyState === EventSource.OPEN")
        say(server, "no position", transient=True)  # whoever sees it has read the confirmation before it
        sees(page, "no position")
        wire.cut()
        say(server, "one", "two")
        wire.mend()
        sees(page, "no position", "one", "two")
        say(server, "three")
        sees(page, "no position", "one", "two", "three")
        page.close()
