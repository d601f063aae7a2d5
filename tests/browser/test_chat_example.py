"""The chat of the tutorial in a real browser: two tabs, one of them offline for a while."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.wire import wire_to
from tests.server import LISTENING, RunningServer, running_server

pytestmark = pytest.mark.needs_chromium

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "3") as server:
        yield server


@pytest.fixture
def chat(server: RunningServer) -> Iterator[str]:
    with running_chat(server.url) as address:
        yield address


@contextmanager
def running_chat(ropewalk: str) -> Iterator[str]:
    """The web application of the chat; yields its address."""
    program = [sys.executable, str(ROOT / "examples" / "chat" / "app.py"), "--port", "0", "--ropewalk", ropewalk]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as application:
        try:
            assert application.stdout is not None
            found = LISTENING.search(application.stdout.readline())
            assert found
            yield found[1]
        finally:
            application.terminate()


def refuse(route: Route) -> None:
    """The tests work without a network."""
    route.abort()


def open_chat(browser: Browser, address: str, name: str) -> Page:
    page = browser.new_page()
    page.route(re.compile(r"^(?!http://127\.0\.0\.1:)"), refuse)
    page.add_init_script("Math.random = () => 0")  # the client reconnects after its shortest delay
    page.goto(address)
    expect(page.locator("#state")).to_have_text("online")
    page.get_by_label("Name").fill(name)
    return page


def send(page: Page, *texts: str) -> None:
    for text in texts:
        page.get_by_label("Message").fill(text)
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_label("Message")).to_have_value("")


def test_resumed_and_new_tabs_show_every_message_once_and_in_order(browser: Browser, chat: str) -> None:
    ada, bo = open_chat(browser, chat, "Ada"), open_chat(browser, chat, "Bo")
    send(ada, "hello")
    expect(bo.locator("li")).to_have_text(["Ada: hello #1"])

    ada.get_by_role("button", name="Unplug").click()
    expect(ada.locator("#state")).to_have_text("offline")
    send(bo, "one", "two")
    ada.get_by_role("button", name="Plug in").click()

    expect(ada.locator("#state")).to_have_text("online again")
    expect(ada.locator("li")).to_have_text(["Ada: hello #1", "Bo: one #2", "Bo: two #3"])
    new = open_chat(browser, chat, "Cy")
    expect(new.locator("li")).to_have_text(["Ada: hello #1", "Bo: one #2", "Bo: two #3"])


@pytest.mark.tier("all")
def test_tab_that_was_offline_longer_than_the_history_shows_a_notice(
    browser: Browser, server: RunningServer, chat: str
) -> None:
    with wire_to(server.url) as wire, running_chat(wire.url) as behind_a_wire:
        ada, bo = open_chat(browser, behind_a_wire, "Ada"), open_chat(browser, chat, "Bo")
        send(bo, "hello")
        expect(ada.locator("li")).to_have_text(["Bo: hello #1"])

        wire.cut()
        send(bo, "one", "two", "three", "four", "five")
        wire.mend()

        expect(ada.locator(".notice")).to_have_text("Some messages are gone. The messages still kept follow.")
        expect(ada.locator("li:not(.notice)")).to_have_text(["Bo: hello #1", "Bo: three #4", "Bo: four #5", "Bo: five #6"])
