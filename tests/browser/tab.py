"""One tab of the demo page, driven by its fields and buttons and read by what it shows."""

import json

from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, expect

# The page reads its stream from the body, in a script that runs after parsing.
CHANGE_ROOM = """document.addEventListener("readystatechange", () => {
    if (document.readyState === "interactive") document.body.dataset.stream = ROOM;
})"""


class Tab:
    """In a browser context of its own, so that two tabs share only the server. `room`: another stream than the page has."""

    def __init__(self, browser: Browser, url: str, room: str = "") -> None:
        self.page: Page = browser.new_context().new_page()
        self.problems: list[str] = []
        self.page.on("console", self._record_console)
        self.page.on("pageerror", self._record_error)
        if room:
            self.page.add_init_script(CHANGE_ROOM.replace("ROOM", json.dumps(room)))
        self.page.goto(f"{url}/demo")
        self.is_in_state("online")

    def join(self, name: str) -> None:
        self.page.get_by_label("Your name").fill(name)
        self.page.get_by_role("button", name="Join").click()

    def send(self, text: str) -> None:
        field = self.page.get_by_label("Message", exact=True)
        field.fill(text)
        field.press("Enter")

    def cut(self) -> None:
        self.page.get_by_role("button", name="Cut the connection").click()
        self.is_in_state("cut")

    def come_back(self) -> None:
        self.page.get_by_role("button", name="Come back").click()
        self.has_returned()

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def texts(self, arrival: str = "") -> Locator:
        """The messages in the order of the page, of one arrival (live, replayed) or of both."""
        return self.find(f'.message[data-arrival="{arrival}"] .what' if arrival else ".message .what")

    def offsets(self) -> list[int]:
        return [int(item.get_attribute("data-offset") or 0) for item in self.find(".message").all()]

    def is_in_state(self, state: str) -> None:
        expect(self.find("#status")).to_have_attribute("data-state", state)

    def has_returned(self, times: int = 1) -> None:
        expect(self.find("#report")).to_have_attribute("data-returns", str(times))

    def reports(self, *, restored: str, replayed: int, gap: str) -> None:
        report = self.find("#report")
        expect(report).to_have_attribute("data-restored", restored)
        expect(report).to_have_attribute("data-replayed", str(replayed))
        expect(report).to_have_attribute("data-gap", gap)

    def has_no_fault(self) -> None:
        """The page itself checks every offset: none is repeated, none is missing."""
        expect(self.find("#count-repeated")).to_have_text("0")
        expect(self.find("#count-holes")).to_have_text("0")

    def _record_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _record_error(self, error: Error) -> None:
        self.problems.append(str(error))
