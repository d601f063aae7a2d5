"""The web examples in a real browser: login, messages, members, typing, and a resume after a lost connection."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.web_examples import Site, django_chat, fastapi_chat

pytestmark = pytest.mark.needs_chromium

CHATS = {"fastapi": fastapi_chat, "django": django_chat}


@pytest.fixture(scope="module", params=CHATS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with CHATS[request.param]() as site:
        yield site


class Window:
    """A browser whose connection can be cut. `cables` are its WebSockets."""

    def __init__(self, browser: Browser, site: Site, name: str) -> None:
        self.page: Page = browser.new_context().new_page()
        self.cables: list[WebSocketRoute] = []
        self.page.route_web_socket(re.compile(".*"), self._opened)
        self.page.goto(site.url)
        expect(self.page.locator("#login")).to_be_visible()
        expect(self.page.locator("#chat")).to_be_hidden()
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.locator("#state")).to_have_text("online")
        expect(self.page.locator("#login")).to_be_hidden()
        expect(self.page.locator("#chat")).to_be_visible()

    def send(self, text: str) -> None:
        self.page.get_by_label("Message").fill(text)
        self.page.get_by_role("button", name="Send").click()

    def cut(self) -> None:
        self.cables[-1].close(code=4000)

    def shows(self, *lines: str) -> None:
        expect(self.page.locator("#messages li")).to_have_text(list(lines))

    def sees(self, names: str) -> None:
        expect(self.page.locator("#members")).to_have_text(names)

    def _opened(self, route: WebSocketRoute) -> None:
        self.cables.append(route)
        route.connect_to_server()


def test_two_users_chat_and_one_resumes_after_a_lost_connection(browser: Browser, site: Site) -> None:
    ada, bo = Window(browser, site, "Ada"), Window(browser, site, "Bo")
    for window in (ada, bo):
        window.sees("Ada, Bo")
    ada.page.get_by_label("Message").press_sequentially("hel")
    expect(bo.page.locator("#typing")).to_have_text("Ada is typing…")
    ada.send("hello <b>Bo</b>")
    for window in (ada, bo):
        window.shows("Ada: hello <b>Bo</b>")

    ada.cut()
    bo.send("are you there?")
    ada.shows("Ada: hello <b>Bo</b>", "Bo: are you there?")
    ada.send("again")
    bo.shows("Ada: hello <b>Bo</b>", "Bo: are you there?", "Ada: again")
    for window in (ada, bo):
        window.page.context.close()
