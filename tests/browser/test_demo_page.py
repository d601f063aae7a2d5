"""The demo page in a real browser with a real server: two tabs, lost connections, and the report of the page on them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenTab
from tests.browser.tab import Tab
from tests.browser.wire import wire_to
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_chromium

FIVE = ["one", "two", "three", "four", "five"]
SHARP = '<img src=x onerror="document.title=1"><script>document.title=2</script> & "quotes"'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--demo") as server:
        yield server


@pytest.fixture(scope="module")
def short_history_server() -> Iterator[RunningServer]:
    with running_server("--demo", "--history_limit", "3") as server:
        yield server


@pytest.fixture
def pair(open_tab: OpenTab, server: RunningServer) -> tuple[Tab, Tab]:
    return two_members(open_tab, server.url, server.url)


def two_members(open_tab: OpenTab, url_of_ada: str, url_of_bo: str) -> tuple[Tab, Tab]:
    ada, bo = open_tab(url_of_ada), open_tab(url_of_bo)
    ada.join("Ada")
    bo.join("Bo")
    expect(ada.find("#members li")).to_have_text(["Ada (you)", "Bo"])
    expect(bo.find("#members li")).to_have_text(["Ada", "Bo (you)"])
    return ada, bo


def send_five(tab: Tab) -> None:
    for text in FIVE:
        tab.send(text)
    expect(tab.texts("live")).to_have_text(FIVE)


def test_resumed_tab_shows_every_message_once_in_order(pair: tuple[Tab, Tab], room: str) -> None:
    ada, bo = pair
    first_sid = ada.find("#sid").inner_text()
    ada.send("hello")
    expect(bo.texts("live")).to_have_text(["hello"])
    ada.cut()
    for text in FIVE:
        bo.send(text)
    expect(bo.texts("live")).to_have_text(["hello", *FIVE])
    expect(ada.texts()).to_have_text(["hello"])

    ada.come_back()
    expect(ada.texts("replayed")).to_have_text(FIVE)
    expect(ada.texts()).to_have_text(["hello", *FIVE])
    ada.reports(restored="yes", replayed=5, gap="none")
    expect(ada.find("#report-restored")).to_have_text("yes")
    expect(ada.find("#report-subscriptions")).to_have_text(room)
    expect(ada.find("#report-replayed")).to_have_text("5 (offsets 2–6)")
    expect(ada.find("#report-previous")).to_have_text(first_sid)
    expect(ada.find("#sid")).not_to_have_text(first_sid)

    ada.send("back again")
    for tab in (ada, bo):
        expect(tab.texts()).to_have_text(["hello", *FIVE, "back again"])
        expect(tab.texts("live").last).to_have_text("back again")
        assert tab.offsets() == [1, 2, 3, 4, 5, 6, 7]
        tab.has_no_fault()


SIZES = {"desktop": (1280, 800), "phone": (390, 844), "small phone": (360, 640)}


def test_first_view_has_the_summary_and_the_button_at_every_size(open_tab: OpenTab, server: RunningServer) -> None:
    tab = open_tab(server.url)
    cut = tab.page.get_by_role("button", name="Cut the connection")
    for name, (width, height) in SIZES.items():
        tab.page.set_viewport_size({"width": width, "height": height})
        tab.page.evaluate("scrollTo(0, 0)")
        expect(tab.page.get_by_text("everything you missed arrives, once and in order"), name).to_be_in_viewport(ratio=1)
        expect(cut, name).to_be_in_viewport(ratio=1)
        tab.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        expect(cut, name).to_be_in_viewport(ratio=1)
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"wider than a {name}"


@pytest.mark.parametrize("room", [""], ids=["room of the page"])
def test_root_redirects_to_the_demo_page_with_its_lobby(open_tab: OpenTab, server: RunningServer) -> None:
    tab = open_tab(server.url)
    tab.page.goto(server.url)
    assert tab.page.url == f"{server.url}/demo"
    tab.is_in_state("online")
    expect(tab.find("#chat-title")).to_have_text("demo/lobby")
    tab.join("Ada")
    tab.send("hello")
    expect(tab.texts("live")).to_have_text(["hello"])


@pytest.mark.tier("all")
def test_member_disappears_on_leave_but_not_on_a_short_disconnect(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.cut()
    ada.come_back()
    bo.send("still here?")
    expect(ada.texts("live")).to_have_text(["still here?"])
    expect(bo.find("#members li")).to_have_text(["Ada", "Bo (you)"])
    ada.page.get_by_role("button", name="Leave").click()
    expect(bo.find("#members li")).to_have_text(["Bo (you)"])
    expect(ada.find("#members li")).to_have_text(["Bo"])


@pytest.mark.tier("all")
def test_text_written_offline_is_sent_once_after_the_return(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.cut()
    ada.send("from the island")
    expect(ada.find("#waiting li")).to_have_text(["from the island"])
    bo.send("anyone?")
    expect(bo.texts()).to_have_text(["anyone?"])
    ada.come_back()
    for tab in (ada, bo):
        expect(tab.texts()).to_have_text(["anyone?", "from the island"])
        tab.has_no_fault()
    expect(ada.find("#waiting li")).to_have_count(0)


@pytest.mark.tier("all")
def test_tab_reconnects_after_the_chosen_time(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.page.clock.install()
    ada.page.get_by_label("come back").select_option("15")
    ada.cut()
    send_five(bo)
    ada.page.clock.fast_forward(14_000)
    ada.is_in_state("cut")
    ada.page.clock.fast_forward(1_000)
    ada.has_returned()
    expect(ada.texts("replayed")).to_have_text(FIVE)


@pytest.mark.tier("all")
def test_new_tab_shows_history_as_replayed_and_the_rest_as_live(
    pair: tuple[Tab, Tab], open_tab: OpenTab, server: RunningServer
) -> None:
    _, bo = pair
    send_five(bo)
    late = open_tab(server.url)
    expect(late.texts("replayed")).to_have_text(FIVE)
    bo.send("six")
    expect(late.texts("live")).to_have_text(["six"])
    late.has_no_fault()


@pytest.mark.tier("all")
def test_typing_is_shown_to_the_others(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.page.get_by_label("Message", exact=True).press_sequentially("hm")
    expect(bo.find("#typing")).to_have_text("Ada is typing…")
    expect(ada.find("#typing")).to_have_text("")
    ada.page.get_by_label("Message", exact=True).press("Enter")
    expect(bo.texts()).to_have_text(["hm"])
    expect(bo.find("#typing")).to_have_text("")


def test_input_is_shown_as_text_and_never_as_markup(open_tab: OpenTab, server: RunningServer) -> None:
    mallory, witness = open_tab(server.url), open_tab(server.url)
    mallory.join(SHARP[:40])
    mallory.send(SHARP)
    for tab in (mallory, witness):
        expect(tab.texts()).to_have_text([SHARP])
        expect(tab.find("#members li bdi")).to_have_text([SHARP[:40]])
        expect(tab.find("main img, main script")).to_have_count(0)
        expect(tab.page).to_have_title("Ropewalk demo")
    # Last: the page hides it after some seconds, and the other checks may take longer.
    mallory.page.get_by_label("Message", exact=True).press_sequentially("x")
    expect(witness.find("#typing")).to_contain_text(SHARP[:40])


@pytest.mark.tier("all")
def test_publication_that_is_not_a_chat_message_is_shown_as_json(open_tab: OpenTab, server: RunningServer, room: str) -> None:
    tab = open_tab(server.url)
    for data in ('{"odd":[1]}', '"plain"', "17"):
        answer = tab.page.request.post(f"{server.url}/api/publish", data={"stream": room, "data": data})
        assert answer.status == 201
    expect(tab.texts("live")).to_have_text(['{"odd":[1]}', "plain", "17"])


def test_trimmed_history_is_shown_as_a_gap_before_the_kept_messages(
    open_tab: OpenTab, short_history_server: RunningServer
) -> None:
    ada, bo = two_members(open_tab, short_history_server.url, short_history_server.url)
    bo.send("before")
    expect(ada.texts()).to_have_text(["before"])
    ada.cut()
    for text in FIVE:
        bo.send(text)
    expect(bo.texts()).to_have_text(["before", *FIVE])
    ada.come_back()
    ada.reports(restored="yes", replayed=3, gap="trimmed")
    expect(ada.find('.note.gap[data-reason="trimmed"]')).to_contain_text("offsets 2–3 cannot be replayed")
    bo.send("after")
    expect(ada.texts()).to_have_text(["before", *FIVE[2:], "after"])
    expect(ada.texts("replayed")).to_have_text(FIVE[2:])
    ada.has_no_fault()


@pytest.mark.tier("all")
def test_new_tab_shows_how_far_history_reaches_back(open_tab: OpenTab, short_history_server: RunningServer) -> None:
    bo = open_tab(short_history_server.url)
    bo.join("Bo")
    send_five(bo)
    late = open_tab(short_history_server.url)
    expect(late.texts("replayed")).to_have_text(FIVE[2:])
    expect(late.find('.note.gap[data-reason="trimmed"]')).to_contain_text("history reaches back to offset 3")
    late.has_no_fault()


def test_tab_reconnects_after_a_lost_link_and_misses_no_message(
    open_tab: OpenTab, outlives_tabs: ExitStack, server: RunningServer
) -> None:
    wire = outlives_tabs.enter_context(wire_to(server.url))
    ada, bo = two_members(open_tab, wire.url, server.url)
    wire.cut()
    ada.is_in_state("waiting")
    send_five(bo)
    wire.mend()
    ada.has_returned()
    ada.reports(restored="yes", replayed=5, gap="none")
    expect(ada.texts("replayed")).to_have_text(FIVE)
    ada.has_no_fault()
    ignore_lost_connections(ada)


@pytest.mark.tier("all")
def test_restarted_server_without_the_history_is_shown_as_a_gap(open_tab: OpenTab, outlives_tabs: ExitStack) -> None:
    server = outlives_tabs.enter_context(running_server("--demo"))
    wire = outlives_tabs.enter_context(wire_to(server.url))
    tab = open_tab(wire.url)
    tab.join("Ada")
    tab.send("to the first")
    expect(tab.texts()).to_have_text(["to the first"])
    wire.cut()
    server.kill()
    wire.mend(outlives_tabs.enter_context(running_server("--demo")).url)
    tab.has_returned()
    tab.reports(restored="no", replayed=0, gap="epoch_changed")
    expect(tab.find("#members li")).to_have_text(["Ada (you)"])
    tab.send("to the second")
    expect(tab.texts()).to_have_text(["to the first", "to the second"])
    assert tab.offsets() == [1, 1]
    tab.has_no_fault()
    ignore_lost_connections(tab)


def ignore_lost_connections(tab: Tab) -> None:
    """The browser logs every failed attempt on the console. No page can prevent that."""
    tab.problems[:] = [problem for problem in tab.problems if not re.match(r"WebSocket connection to .* failed", problem)]
