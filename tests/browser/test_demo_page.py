"""The demo page in a real browser against a real server: two tabs, cuts, returns, and what the page shows of them."""

import re
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


@pytest.fixture
def server(outlives_tabs: ExitStack) -> RunningServer:
    return outlives_tabs.enter_context(running_server("--demo"))


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


def say_five(tab: Tab) -> None:
    for text in FIVE:
        tab.say(text)
    expect(tab.texts("live")).to_have_text(FIVE)


def test_a_tab_that_was_cut_comes_back_to_its_session_and_sees_every_message_once_in_order(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    first_sid = ada.find("#sid").inner_text()
    ada.say("hello")
    expect(bo.texts("live")).to_have_text(["hello"])
    ada.cut()
    for text in FIVE:
        bo.say(text)
    expect(bo.texts("live")).to_have_text(["hello", *FIVE])
    expect(ada.texts()).to_have_text(["hello"])

    ada.come_back()
    expect(ada.texts("replayed")).to_have_text(FIVE)
    expect(ada.texts()).to_have_text(["hello", *FIVE])
    ada.reports(restored="yes", replayed=5, gap="none")
    expect(ada.find("#report-restored")).to_have_text("yes")
    expect(ada.find("#report-subscriptions")).to_have_text("demo/lobby")
    expect(ada.find("#report-replayed")).to_have_text("5 (offsets 2–6)")
    expect(ada.find("#report-previous")).to_have_text(first_sid)
    expect(ada.find("#sid")).not_to_have_text(first_sid)

    ada.say("back again")
    for tab in (ada, bo):
        expect(tab.texts()).to_have_text(["hello", *FIVE, "back again"])
        expect(tab.texts("live").last).to_have_text("back again")
        assert tab.offsets() == [1, 2, 3, 4, 5, 6, 7]
        tab.has_no_fault()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844), (360, 640)], ids=["desktop", "phone", "small phone"])
def test_the_first_view_says_what_it_is_about_and_has_the_button_that_shows_it(
    open_tab: OpenTab, server: RunningServer, size: tuple[int, int]
) -> None:
    tab = open_tab(server.url)
    tab.page.set_viewport_size({"width": size[0], "height": size[1]})
    cut = tab.page.get_by_role("button", name="Cut the connection")
    expect(tab.page.get_by_text("everything you missed arrives, once and in order")).to_be_in_viewport(ratio=1)
    expect(cut).to_be_in_viewport(ratio=1)
    tab.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(cut).to_be_in_viewport(ratio=1)
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"


def test_the_root_of_the_server_leads_to_the_page(open_tab: OpenTab, server: RunningServer) -> None:
    tab = open_tab(server.url)
    tab.page.goto(server.url)
    assert tab.page.url == f"{server.url}/demo"
    tab.is_in_state("online")


def test_a_member_that_leaves_disappears_and_a_short_cut_goes_unnoticed(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.cut()
    ada.come_back()
    bo.say("still here?")
    expect(ada.texts("live")).to_have_text(["still here?"])
    expect(bo.find("#members li")).to_have_text(["Ada", "Bo (you)"])
    ada.page.get_by_role("button", name="Leave").click()
    expect(bo.find("#members li")).to_have_text(["Bo (you)"])
    expect(ada.find("#members li")).to_have_text(["Bo"])


def test_what_is_written_while_cut_off_waits_and_is_sent_once_after_the_return(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.cut()
    ada.say("from the island")
    expect(ada.find("#waiting li")).to_have_text(["from the island"])
    bo.say("anyone?")
    expect(bo.texts()).to_have_text(["anyone?"])
    ada.come_back()
    for tab in (ada, bo):
        expect(tab.texts()).to_have_text(["anyone?", "from the island"])
        tab.has_no_fault()
    expect(ada.find("#waiting li")).to_have_count(0)


def test_a_tab_comes_back_by_itself_after_the_chosen_time(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.page.clock.install()
    ada.page.get_by_label("come back").select_option("15")
    ada.cut()
    say_five(bo)
    ada.page.clock.fast_forward(14_000)
    ada.is_in_state("cut")
    ada.page.clock.fast_forward(1_000)
    ada.has_returned()
    expect(ada.texts("replayed")).to_have_text(FIVE)


def test_a_new_tab_sees_the_recent_past_as_replayed_and_the_rest_as_live(
    pair: tuple[Tab, Tab], open_tab: OpenTab, server: RunningServer
) -> None:
    _, bo = pair
    say_five(bo)
    late = open_tab(server.url)
    expect(late.texts("replayed")).to_have_text(FIVE)
    bo.say("six")
    expect(late.texts("live")).to_have_text(["six"])
    late.has_no_fault()


def test_others_see_that_someone_is_typing(pair: tuple[Tab, Tab]) -> None:
    ada, bo = pair
    ada.page.get_by_label("Message", exact=True).press_sequentially("hm")
    expect(bo.find("#typing")).to_have_text("Ada is typing…")
    expect(ada.find("#typing")).to_have_text("")
    ada.page.get_by_label("Message", exact=True).press("Enter")
    expect(bo.texts()).to_have_text(["hm"])
    expect(bo.find("#typing")).to_have_text("")


def test_what_people_type_is_shown_as_text_and_never_becomes_markup(open_tab: OpenTab, server: RunningServer) -> None:
    mallory, witness = open_tab(server.url), open_tab(server.url)
    mallory.join(SHARP[:40])
    mallory.say(SHARP)
    for tab in (mallory, witness):
        expect(tab.texts()).to_have_text([SHARP])
        expect(tab.find("#members li bdi")).to_have_text([SHARP[:40]])
        expect(tab.find("main img, main script")).to_have_count(0)
        expect(tab.page).to_have_title("Ropewalk demo")
    # Last: what is shown of it goes away by itself after some seconds, and looking at all the rest may take longer.
    mallory.page.get_by_label("Message", exact=True).press_sequentially("x")
    expect(witness.find("#typing")).to_contain_text(SHARP[:40])


def test_a_publication_that_is_not_a_chat_message_is_shown_as_the_json_it_is(open_tab: OpenTab, server: RunningServer) -> None:
    tab = open_tab(server.url)
    for data in ('{"odd":[1]}', '"plain"', "17"):
        answer = tab.page.request.post(f"{server.url}/api/publish", data={"stream": "demo/lobby", "data": data})
        assert answer.status == 201
    expect(tab.texts("live")).to_have_text(['{"odd":[1]}', "plain", "17"])


def test_history_that_does_not_reach_back_is_shown_as_a_gap_and_what_is_kept_follows(
    open_tab: OpenTab, outlives_tabs: ExitStack
) -> None:
    server = outlives_tabs.enter_context(running_server("--demo", "--history_limit", "3"))
    ada, bo = two_members(open_tab, server.url, server.url)
    bo.say("before")
    expect(ada.texts()).to_have_text(["before"])
    ada.cut()
    for text in FIVE:
        bo.say(text)
    expect(bo.texts()).to_have_text(["before", *FIVE])
    ada.come_back()
    ada.reports(restored="yes", replayed=3, gap="trimmed")
    expect(ada.find('.note.gap[data-reason="trimmed"]')).to_contain_text("offsets 2–3 cannot be replayed")
    bo.say("after")
    expect(ada.texts()).to_have_text(["before", *FIVE[2:], "after"])
    expect(ada.texts("replayed")).to_have_text(FIVE[2:])
    ada.has_no_fault()


def test_a_new_tab_is_told_how_far_its_recent_past_reaches_back(open_tab: OpenTab, outlives_tabs: ExitStack) -> None:
    server = outlives_tabs.enter_context(running_server("--demo", "--history_limit", "3"))
    bo = open_tab(server.url)
    bo.join("Bo")
    say_five(bo)
    late = open_tab(server.url)
    expect(late.texts("replayed")).to_have_text(FIVE[2:])
    expect(late.find('.note.gap[data-reason="trimmed"]')).to_contain_text("history reaches back to offset 3")
    late.has_no_fault()


def test_a_connection_lost_without_the_button_comes_back_by_itself_with_nothing_missed(
    open_tab: OpenTab, outlives_tabs: ExitStack, server: RunningServer
) -> None:
    wire = outlives_tabs.enter_context(wire_to(server.url))
    ada, bo = two_members(open_tab, wire.url, server.url)
    wire.cut()
    ada.is_in_state("waiting")
    say_five(bo)
    wire.mend()
    ada.has_returned()
    ada.reports(restored="yes", replayed=5, gap="none")
    expect(ada.texts("replayed")).to_have_text(FIVE)
    ada.has_no_fault()
    forgive_lost_connections(ada)


def test_a_restarted_server_that_lost_the_past_is_told_as_a_gap(
    open_tab: OpenTab, outlives_tabs: ExitStack, server: RunningServer
) -> None:
    wire = outlives_tabs.enter_context(wire_to(server.url))
    tab = open_tab(wire.url)
    tab.join("Ada")
    tab.say("to the first")
    expect(tab.texts()).to_have_text(["to the first"])
    wire.cut()
    server.kill()
    wire.mend(outlives_tabs.enter_context(running_server("--demo")).url)
    tab.has_returned()
    tab.reports(restored="no", replayed=0, gap="epoch_changed")
    expect(tab.find("#members li")).to_have_text(["Ada (you)"])
    tab.say("to the second")
    expect(tab.texts()).to_have_text(["to the first", "to the second"])
    assert tab.offsets() == [1, 1]
    tab.has_no_fault()
    forgive_lost_connections(tab)


def forgive_lost_connections(tab: Tab) -> None:
    """A browser writes every failed attempt to the console by itself; no page can keep it from doing so."""
    tab.problems[:] = [problem for problem in tab.problems if not re.match(r"WebSocket connection to .* failed", problem)]
