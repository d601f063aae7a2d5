"""The JavaScript client in a real browser: page reloads, a lost network, a second tab, and the page of the documentation."""

import itertools
import json
import threading
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.wire import wire_to
from tests.docs.pages import ROOT, blocks
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_chromium

TIMEOUT_MS = 60_000
NEVER = 600_000  # milliseconds: a reconnect that only an event of the browser can bring forward
RELOADS = 5

# The messages are stored as they come, so that they are all of them, of all pages that this tab had.
OPEN = """async ([stream, options]) => {
    const { connect } = await import("/ropewalk.js");
    window.client = connect("/", options);
    window.chat = client.subscribe(stream, { from: "start", resume: sessionStorage });
    const add = (what) => (sessionStorage.seen = JSON.stringify([...JSON.parse(sessionStorage.seen ?? "[]"), what]));
    chat.on("message", ({ data }) => add(data));
    chat.on("gap", ({ reason }) => add(reason));
    window.whispers = [];
    chat.on("transient", ({ data }) => whispers.push(data));
}"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--sse", "--history_limit", "100000") as server:
        yield server


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def publish(server: RunningServer, stream: str, *numbers: int) -> None:
    for number in numbers:
        urlopen(Request(f"{server.url}/api/publish", json.dumps({"stream": stream, "data": number}).encode())).close()


def open_client(page: Page, url: str, stream: str, **options: object) -> None:
    page.goto(f"{url}/health")
    page.evaluate(OPEN, [stream, options])


def until(page: Page, condition: str, arg: object = None) -> None:
    page.wait_for_function(condition, arg=arg, timeout=TIMEOUT_MS)


def sees(page: Page, *messages: object) -> None:
    until(page, "count => JSON.parse(sessionStorage.seen ?? '[]').length >= count", len(messages))
    assert json.loads(page.evaluate("sessionStorage.seen")) == list(messages)


def test_a_page_that_is_reloaded_again_and_again_gets_each_message_once(page: Page, server: RunningServer, room: str) -> None:
    enough = threading.Event()
    published = itertools.count(1)

    def publish_on() -> None:
        while not enough.wait(0.005):
            publish(server, room, next(published))

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        for number in range(1, RELOADS + 1):
            open_client(page, server.url, room)
            until(page, "count => JSON.parse(sessionStorage.seen ?? '[]').length >= count", 20 * number)
    finally:
        enough.set()
        publisher.join()
    open_client(page, server.url, room)
    sees(page, *range(1, next(published)))


@pytest.mark.parametrize("event", ["online", "visibilitychange"])
def test_the_client_reconnects_at_once_on_an_event_of_the_browser(
    page: Page, server: RunningServer, room: str, event: str
) -> None:
    with wire_to(server.url) as wire:
        open_client(page, wire.url, room, minDelay=NEVER, maxDelay=NEVER)
        until(page, "chat.state === 'live'")
        publish(server, room, 1)
        sees(page, 1)
        page.context.set_offline(event == "online")
        wire.cut()
        until(page, "client.state === 'waiting'")
        publish(server, room, 2, 3)
        wire.mend()
        if event == "online":
            page.context.set_offline(False)
        else:
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        sees(page, 1, 2, 3)


def test_two_tabs_are_members_and_hear_each_other(page: Page, server: RunningServer, room: str) -> None:
    second = page.context.new_page()
    for number, tab in enumerate((page, second)):
        open_client(tab, server.url, room)
        tab.evaluate("number => chat.presence.join(`${number}`, { number })", number)
    for tab in (page, second):
        until(tab, "chat.presence.members.map(({ id }) => id).sort().join() === '0,1'")
    page.evaluate("chat.whisper('hello')")
    until(second, "whispers.includes('hello')")
    second.close()
    publish(server, room, 1)
    sees(page, 1)


def test_a_page_that_cannot_open_a_websocket_reads_events(page: Page, server: RunningServer, room: str) -> None:
    page.add_init_script("WebSocket = class { constructor() { setTimeout(() => this.onclose({ code: 1006 })) } close() {} }")
    publish(server, room, 1, 2)
    open_client(page, server.url, room, minDelay=10)
    sees(page, 1, 2)
    publish(server, room, 3)
    sees(page, 1, 2, 3)
    assert page.evaluate("client.transport") == "events"
    assert page.evaluate("chat.whisper(1).catch(({ code }) => code)") == "read_only"


def test_the_plain_page_of_the_documentation_shows_messages(page: Page, server: RunningServer) -> None:
    [html] = [block.text for block in blocks(ROOT / "docs" / "how-to" / "javascript.md") if block.language == "html"]
    html = html.replace("http://127.0.0.1:8080", server.url)
    body = json.dumps({"stream": "chat/42", "data": {"text": "hello"}}).encode()
    urlopen(Request(f"{server.url}/api/publish", body)).close()
    page.set_content(html)
    expect(page.locator("li")).to_have_text(["hello"])
