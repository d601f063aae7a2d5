"""What the session does on each message, without a socket."""

import pytest

from ropewalk.client.effects import Confirmed, End, PresenceResult, Redial, Send, SubscriptionDenied, Yield
from ropewalk.client.errors import Disconnected, TokenExpired, Unauthorized
from ropewalk.client.events import Gap, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.state import CLOCK_DOUBT, ClientState
from ropewalk.model.commands import History, Join, Leave, Pong, Presence, Subscribe, Unsubscribe
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol.server_messages import (
    Data,
    Goodbye,
    HistoryConfirmed,
    HistoryRejected,
    PresenceChanged,
    PresenceFailed,
    PresenceListed,
    ServerPing,
    StreamGap,
    SubscriptionConfirmed,
    SubscriptionRefused,
    UnknownMessage,
    Welcome,
)

NOW = 1000.0


def live_state(since: float | None = None) -> ClientState:
    """Subscribed to `i`, confirmed, at time NOW."""
    state = ClientState()
    state.receive(Welcome("s1"), NOW)
    state.subscribe("i", NOW, since)
    state.receive(SubscriptionConfirmed("i"), NOW)
    return state


def lost_and_welcomed(state: ClientState, *restored: str) -> list[object]:
    state.lost()
    return list(state.receive(Welcome("s2", True, restored) if restored else Welcome("s2"), NOW + 60))


class TestSubscribing:
    def test_waits_for_the_welcome(self) -> None:
        state = ClientState()
        assert state.subscribe("i", NOW) == []
        assert state.receive(Welcome("s1"), NOW) == [Send(Subscribe("i"))]
        assert state.receive(SubscriptionConfirmed("i"), NOW) == [Confirmed("i")]

    def test_asks_for_history_only_if_the_program_does(self) -> None:
        state = ClientState()
        state.receive(Welcome("s1"), NOW)
        assert state.subscribe("i", NOW) == [Send(Subscribe("i"))]
        assert state.subscribe("j", NOW, since=5.0) == [Send(Subscribe("j", HistoryRequest(5.0)))]
        position = {"a": Position("e", 3)}
        assert state.subscribe("k", NOW, positions=position) == [Send(Subscribe("k", HistoryRequest(None, position)))]

    def test_that_is_refused_is_forgotten(self) -> None:
        state = ClientState()
        state.subscribe("i", NOW)
        state.receive(Welcome("s1"), NOW)
        assert state.receive(SubscriptionRefused("i"), NOW) == [SubscriptionDenied("i")]
        assert state.receive(Data("i", b"1", "a", "e", 1), NOW) == []
        assert lost_and_welcomed(state) == []

    def test_again_after_an_unsubscribe_does_not_mistake_late_messages_of_the_first_for_its_own(self) -> None:
        state = live_state()
        state.unsubscribe("i")
        state.subscribe("i", NOW, positions={"a": Position("e", 1)})
        assert state.receive(Data("i", b"9", "a", "e", 9), NOW) == []
        state.receive(SubscriptionConfirmed("i"), NOW)
        assert state.receive(Data("i", b"2", "a", "e", 2), NOW) == [Yield("i", Message(2, "a", "e", 2, "", True))]

    def test_that_is_confirmed_twice_is_told_once(self) -> None:
        assert live_state().receive(SubscriptionConfirmed("i"), NOW) == []


class TestComingBack:
    def test_offers_the_last_sid(self) -> None:
        state = ClientState()
        assert state.sid == ""
        state.receive(Welcome("s1"), NOW)
        state.lost()
        assert state.sid == "s1"

    def test_to_a_restored_session_asks_for_history_after_the_known_positions(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 7), NOW)
        known = HistoryRequest(NOW, {"a": Position("e", 7)})
        assert lost_and_welcomed(state, "i") == [Send(History("i", known)), Confirmed("i")]

    def test_to_a_new_session_subscribes_again_with_history(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 7), NOW)
        known = HistoryRequest(NOW, {"a": Position("e", 7)})
        assert lost_and_welcomed(state) == [Send(Subscribe("i", known))]
        assert state.receive(SubscriptionConfirmed("i"), NOW) == [Confirmed("i")]

    def test_subscribes_what_the_old_session_did_not_have(self) -> None:
        state = live_state()
        state.subscribe("j", NOW)
        assert lost_and_welcomed(state, "i")[-1] == Send(Subscribe("j"))

    def test_unsubscribes_what_was_left_while_away(self) -> None:
        state = live_state()
        state.lost()
        assert state.unsubscribe("i") == []
        assert state.receive(Welcome("s2", True, ("i",)), NOW) == [Send(Unsubscribe("i"))]

    def test_asks_from_the_beginning_of_the_subscription_by_the_servers_clock_while_no_position_is_known(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW + 500 + 30), NOW + 30)
        assert lost_and_welcomed(state, "i")[0] == Send(History("i", HistoryRequest(NOW + 500)))

    def test_doubts_its_own_clock_before_the_first_ping(self) -> None:
        assert lost_and_welcomed(live_state(), "i")[0] == Send(History("i", HistoryRequest(NOW - CLOCK_DOUBT)))

    def test_keeps_to_the_time_that_the_program_wished_for(self) -> None:
        assert lost_and_welcomed(live_state(since=5.0), "i")[0] == Send(History("i", HistoryRequest(5.0)))

    def test_joins_again_and_asks_again_who_is_there(self) -> None:
        state = live_state()
        state.join("i", Member("me"))
        state.query("i")
        state.query("i")
        commands = lost_and_welcomed(state, "i")[1:]
        assert commands == [Confirmed("i"), Send(Join("i", Member("me"))), Send(Presence("i")), Send(Presence("i"))]

    def test_counts_the_time_anew_after_a_rejection_without_details(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        lost_and_welcomed(state, "i")
        state.receive(HistoryRejected("i"), NOW + 61)
        assert lost_and_welcomed(state, "i")[0] == Send(History("i", HistoryRequest(NOW + 61)))


class TestHistory:
    def test_that_is_rejected_with_details_goes_on_with_what_is_kept(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 1), NOW)
        lost_and_welcomed(state, "i")
        rejection = HistoryRejected("i", "trimmed", {"a": StreamGap("trimmed", "e", 4, 4)})
        assert state.receive(rejection, NOW) == [Yield("i", Gap("a", "trimmed", Position("e", 1), "e", 4, 4))]
        assert state.receive(Data("i", b"4", "a", "e", 4), NOW) == [Yield("i", Message(4, "a", "e", 4, replayed=True))]
        assert state.receive(HistoryConfirmed("i"), NOW) == []
        assert state.receive(Data("i", b"5", "a", "e", 5), NOW) == [Yield("i", Message(5, "a", "e", 5))]

    def test_that_is_answered_in_part_is_asked_on_for(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 1), NOW)
        lost_and_welcomed(state, "i")
        state.receive(Data("i", b"2", "a", "e", 2), NOW)
        assert state.receive(HistoryRejected("i", "partial", {"a": StreamGap("partial", "e", 3, 6)}), NOW) == []
        assert state.receive(HistoryConfirmed("i"), NOW) == [Send(History("i", HistoryRequest(NOW, {"a": Position("e", 2)})))]

    def test_that_was_dropped_is_not_asked_for(self) -> None:
        rejection = HistoryRejected("i", "dropped", {"a": StreamGap("dropped", "e", 4, 4)})
        assert live_state().receive(rejection, NOW) == [Yield("i", Gap("a", "dropped"))]


class TestPresence:
    def test_waits_for_the_confirmation(self) -> None:
        state = ClientState()
        state.receive(Welcome("s1"), NOW)
        state.subscribe("i", NOW)
        assert state.join("i", Member("me")) == state.query("i") == []
        confirmed = state.receive(SubscriptionConfirmed("i"), NOW)
        assert confirmed == [Confirmed("i"), Send(Join("i", Member("me"))), Send(Presence("i"))]

    def test_is_sent_at_once_on_a_live_subscription(self) -> None:
        state = live_state()
        assert state.join("i", Member("me")) == [Send(Join("i", Member("me")))]
        assert state.query("i") == [Send(Presence("i"))]
        assert state.leave("i") == [Send(Leave("i"))]

    def test_that_was_left_is_not_joined_again(self) -> None:
        state = live_state()
        state.join("i", Member("me"))
        state.leave("i")
        assert lost_and_welcomed(state, "i")[1:] == [Confirmed("i")]

    def test_answers_and_changes_are_handed_on(self) -> None:
        state = live_state()
        state.query("i")
        listed = PresenceListed("i", 2, (Member("a", b"1"), Member("b")))
        members = (PresentMember("a", 1), PresentMember("b"))
        assert state.receive(listed, NOW) == [PresenceResult("i", PresenceState(2, members))]
        assert state.receive(PresenceFailed("i"), NOW) == [PresenceResult("i", None)]
        changed = PresenceChanged("i", False, Member("b"))
        assert state.receive(changed, NOW) == [Yield("i", PresenceChange(False, PresentMember("b")))]

    def test_a_query_for_a_later_page_is_asked_again_as_it_was(self) -> None:
        state = live_state()
        state.query("i")
        listed = PresenceListed("i", 2, (Member("a"),), "a")
        assert state.receive(listed, NOW) == [PresenceResult("i", PresenceState(2, (PresentMember("a"),), "a"))]
        assert state.query("i", "a") == [Send(Presence("i", after="a"))]
        assert lost_and_welcomed(state, "i")[1:] == [Confirmed("i"), Send(Presence("i", after="a"))]

    def test_a_query_that_was_answered_is_not_asked_again(self) -> None:
        state = live_state()
        state.query("i")
        state.receive(PresenceListed("i", 0), NOW)
        assert lost_and_welcomed(state, "i")[1:] == [Confirmed("i")]


class TestGoodbye:
    def test_with_leave_to_return_returns(self) -> None:
        assert live_state().receive(Goodbye("server_restart", True), NOW) == [Redial()]

    @pytest.mark.parametrize(("told", "waits"), [(0, 0.0), (1500, 1.5), (-5, 0.0), (10**12, 300.0)])
    def test_it_comes_back_when_the_server_says_within_reason(self, told: int, waits: float) -> None:
        assert live_state().receive(Goodbye("server_restart", True, told), NOW) == [Redial(after=waits)]

    @pytest.mark.parametrize(("reason", "kind"), [("unauthorized", Unauthorized), ("remote", Disconnected)])
    def test_for_good_ends_with_its_reason(self, reason: str, kind: type[Disconnected]) -> None:
        match live_state().receive(Goodbye(reason, False), NOW):
            case [End(error)]:
                assert type(error) is kind
                assert reason in str(error)
            case effects:
                pytest.fail(str(effects))

    def test_for_an_expired_token_wants_a_new_one_once_and_a_new_session(self) -> None:
        state = live_state()
        assert state.receive(Goodbye("token_expired", False), NOW) == [Redial(new_token=True)]
        assert state.sid == ""
        state.lost()
        [end] = state.receive(Goodbye("token_expired", False), NOW)
        assert isinstance(end, End)
        assert isinstance(end.error, TokenExpired)

    def test_a_welcome_allows_another_new_token(self) -> None:
        state = live_state()
        state.receive(Goodbye("token_expired", False), NOW)
        lost_and_welcomed(state)
        assert state.receive(Goodbye("token_expired", False), NOW) == [Redial(new_token=True)]


def test_a_ping_is_answered() -> None:
    assert live_state().receive(ServerPing(NOW), NOW) == [Send(Pong())]


def test_what_is_not_known_is_ignored() -> None:
    state = live_state()
    assert state.receive(UnknownMessage("news"), NOW) == []
    assert state.receive(Data("stranger", b"1", "a", "e", 1), NOW) == []
