"""One tab of the demo page, driven as a person would: by its fields and buttons, read by what it shows."""

from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, expect


class Tab:
    """Its own browser context, so that two tabs share nothing but the server."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.page: Page = browser.new_context().new_page()
        self.problems: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", self._failed)
        self.page.goto(f"{url}/demo")
        self.is_in_state("online")

    def join(self, name: str) -> None:
        self.page.get_by_label("Your name").fill(name)
        self.page.get_by_role("button", name="Join").click()

    def say(self, text: str) -> None:
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
        """What was said, in the order in which the page shows it; of one arrival (live, replayed) or of both."""
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
        """The page checks every position by itself: nothing came twice, nothing was left out."""
        expect(self.find("#count-repeated")).to_have_text("0")
        expect(self.find("#count-holes")).to_have_text("0")

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _failed(self, error: Error) -> None:
        self.problems.append(str(error))
