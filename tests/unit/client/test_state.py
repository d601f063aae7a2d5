"""Reactions of a session to each message, without a socket."""

import pytest

from ropewalk.client.effects import Confirmed, End, PresenceResult, Redial, Send, SubscriptionDenied, Yield
from ropewalk.client.errors import Disconnected, TokenExpired, Unauthorized
from ropewalk.client.events import Gap, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.state import MAX_CLOCK_SKEW, ClientState
from ropewalk.client.track import Track
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
    """Returns a state with a confirmed subscription to `i` at time NOW."""
    state = ClientState()
    state.receive(Welcome("s1"), NOW)
    state.subscribe("i", Track(since), NOW)
    state.receive(SubscriptionConfirmed("i"), NOW)
    return state


def reconnect(state: ClientState, *restored: str) -> list[object]:
    state.lost()
    return list(state.receive(Welcome("s2", True, restored) if restored else Welcome("s2"), NOW + 60))


class TestSubscribe:
    def test_waits_for_the_welcome(self) -> None:
        state = ClientState()
        assert state.subscribe("i", Track(), NOW) == []
        assert state.receive(Welcome("s1"), NOW) == [Send(Subscribe("i"))]
        assert state.receive(SubscriptionConfirmed("i"), NOW) == [Confirmed("i")]

    def test_requests_history_only_on_demand(self) -> None:
        state = ClientState()
        state.receive(Welcome("s1"), NOW)
        assert state.subscribe("i", Track(), NOW) == [Send(Subscribe("i"))]
        assert state.subscribe("j", Track(5.0), NOW) == [Send(Subscribe("j", HistoryRequest(5.0)))]
        position = {"a": Position("e", 3)}
        assert state.subscribe("k", Track(None, position), NOW) == [Send(Subscribe("k", HistoryRequest(None, position)))]

    def test_rejected_subscription_is_forgotten(self) -> None:
        state = ClientState()
        state.subscribe("i", Track(), NOW)
        state.receive(Welcome("s1"), NOW)
        assert state.receive(SubscriptionRefused("i"), NOW) == [SubscriptionDenied("i")]
        assert state.receive(Data("i", b"1", "a", "e", 1), NOW) == []
        assert reconnect(state) == []

    def test_late_messages_of_the_previous_subscription_are_ignored(self) -> None:
        state = live_state()
        state.unsubscribe("i")
        state.subscribe("i", Track(None, {"a": Position("e", 1)}), NOW)
        assert state.receive(Data("i", b"9", "a", "e", 9), NOW) == []
        state.receive(SubscriptionConfirmed("i"), NOW)
        assert state.receive(Data("i", b"2", "a", "e", 2), NOW) == [Yield("i", [Message(2, "a", "e", 2, "", True)])]

    def test_second_confirmation_is_ignored(self) -> None:
        assert live_state().receive(SubscriptionConfirmed("i"), NOW) == []


class TestReconnect:
    def test_sends_the_last_sid(self) -> None:
        state = ClientState()
        assert state.sid == ""
        state.receive(Welcome("s1"), NOW)
        state.lost()
        assert state.sid == "s1"

    def test_restored_session_requests_history_after_known_positions(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 7), NOW)
        known = HistoryRequest(NOW, {"a": Position("e", 7)})
        assert reconnect(state, "i") == [Send(History("i", known)), Confirmed("i")]

    def test_new_session_subscribes_with_history(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 7), NOW)
        known = HistoryRequest(NOW, {"a": Position("e", 7)})
        assert reconnect(state) == [Send(Subscribe("i", known))]
        assert state.receive(SubscriptionConfirmed("i"), NOW) == [Confirmed("i")]

    def test_missing_subscription_is_repeated(self) -> None:
        state = live_state()
        state.subscribe("j", Track(), NOW)
        assert reconnect(state, "i")[-1] == Send(Subscribe("j"))

    def test_unsubscribe_while_disconnected_is_sent(self) -> None:
        state = live_state()
        state.lost()
        assert state.unsubscribe("i") == []
        assert state.receive(Welcome("s2", True, ("i",)), NOW) == [Send(Unsubscribe("i"))]

    def test_history_starts_at_the_subscription_by_the_servers_clock_without_positions(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW + 500 + 30), NOW + 30)
        assert reconnect(state, "i")[0] == Send(History("i", HistoryRequest(NOW + 500)))

    def test_history_starts_earlier_before_the_first_ping(self) -> None:
        assert reconnect(live_state(), "i")[0] == Send(History("i", HistoryRequest(NOW - MAX_CLOCK_SKEW)))

    def test_history_starts_at_the_requested_time(self) -> None:
        assert reconnect(live_state(since=5.0), "i")[0] == Send(History("i", HistoryRequest(5.0)))

    def test_presence_joins_and_queries_are_repeated(self) -> None:
        state = live_state()
        state.join("i", Member("me"))
        state.query("i")
        state.query("i")
        commands = reconnect(state, "i")[1:]
        assert commands == [Confirmed("i"), Send(Join("i", Member("me"))), Send(Presence("i")), Send(Presence("i"))]

    def test_rejection_without_details_restarts_the_time(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        reconnect(state, "i")
        state.receive(HistoryRejected("i"), NOW + 61)
        assert reconnect(state, "i")[0] == Send(History("i", HistoryRequest(NOW + 61)))


class TestHistory:
    def test_rejection_with_details_continues_with_stored_messages(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 1), NOW)
        reconnect(state, "i")
        rejection = HistoryRejected("i", "trimmed", {"a": StreamGap("trimmed", "e", 4, 4)})
        assert state.receive(rejection, NOW) == [Yield("i", [Gap("a", "trimmed", Position("e", 1), "e", 4, 4)])]
        assert state.receive(Data("i", b"4", "a", "e", 4), NOW) == [Yield("i", [Message(4, "a", "e", 4, replayed=True)])]
        assert state.receive(HistoryConfirmed("i"), NOW) == []
        assert state.receive(Data("i", b"5", "a", "e", 5), NOW) == [Yield("i", [Message(5, "a", "e", 5)])]

    def test_partial_answer_is_followed_by_another_request(self) -> None:
        state = live_state()
        state.receive(ServerPing(NOW), NOW)
        state.receive(Data("i", b"1", "a", "e", 1), NOW)
        reconnect(state, "i")
        state.receive(Data("i", b"2", "a", "e", 2), NOW)
        assert state.receive(HistoryRejected("i", "partial", {"a": StreamGap("partial", "e", 3, 6)}), NOW) == []
        assert state.receive(HistoryConfirmed("i"), NOW) == [Send(History("i", HistoryRequest(NOW, {"a": Position("e", 2)})))]

    def test_dropped_messages_are_not_requested(self) -> None:
        rejection = HistoryRejected("i", "dropped", {"a": StreamGap("dropped", "e", 4, 4)})
        assert live_state().receive(rejection, NOW) == [Yield("i", [Gap("a", "dropped")])]


class TestPresence:
    def test_waits_for_the_confirmation(self) -> None:
        state = ClientState()
        state.receive(Welcome("s1"), NOW)
        state.subscribe("i", Track(), NOW)
        assert state.join("i", Member("me")) == state.query("i") == []
        confirmed = state.receive(SubscriptionConfirmed("i"), NOW)
        assert confirmed == [Confirmed("i"), Send(Join("i", Member("me"))), Send(Presence("i"))]

    def test_is_sent_at_once_on_a_live_subscription(self) -> None:
        state = live_state()
        assert state.join("i", Member("me")) == [Send(Join("i", Member("me")))]
        assert state.query("i") == [Send(Presence("i"))]
        assert state.leave("i") == [Send(Leave("i"))]

    def test_left_presence_is_not_joined_again(self) -> None:
        state = live_state()
        state.join("i", Member("me"))
        state.leave("i")
        assert reconnect(state, "i")[1:] == [Confirmed("i")]

    def test_results_and_changes_are_delivered(self) -> None:
        state = live_state()
        state.query("i")
        listed = PresenceListed("i", 2, (Member("a", b"1"), Member("b")))
        members = (PresentMember("a", 1), PresentMember("b"))
        assert state.receive(listed, NOW) == [PresenceResult("i", PresenceState(2, members))]
        assert state.receive(PresenceFailed("i"), NOW) == [PresenceResult("i", None)]
        changed = PresenceChanged("i", False, Member("b"))
        assert state.receive(changed, NOW) == [Yield("i", [PresenceChange(False, PresentMember("b"))])]

    def test_query_of_a_later_page_is_repeated_after_a_reconnect(self) -> None:
        state = live_state()
        state.query("i")
        listed = PresenceListed("i", 2, (Member("a"),), "a")
        assert state.receive(listed, NOW) == [PresenceResult("i", PresenceState(2, (PresentMember("a"),), "a"))]
        assert state.query("i", "a") == [Send(Presence("i", after="a"))]
        assert reconnect(state, "i")[1:] == [Confirmed("i"), Send(Presence("i", after="a"))]

    def test_answered_query_is_not_repeated(self) -> None:
        state = live_state()
        state.query("i")
        state.receive(PresenceListed("i", 0), NOW)
        assert reconnect(state, "i")[1:] == [Confirmed("i")]


class TestGoodbye:
    def test_with_reconnect_allowed_redials(self) -> None:
        assert live_state().receive(Goodbye("server_restart", True), NOW) == [Redial(reason="server_restart")]

    def test_delay_of_the_server_is_kept_within_limits(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[int, float]] = [(0, 0.0), (1500, 1.5), (-5, 0.0), (10**12, 300.0)]
        for given, delay in cases:
            with subtests.test(given=given):
                assert live_state().receive(Goodbye("server_restart", True, given), NOW) == [
                    Redial(after=delay, reason="server_restart")
                ]

    def test_permanent_goodbye_ends_with_its_reason(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, type[Disconnected]]] = [("unauthorized", Unauthorized), ("remote", Disconnected)]
        for reason, kind in cases:
            with subtests.test(reason=reason):
                match live_state().receive(Goodbye(reason, False), NOW):
                    case [End(error)]:
                        assert type(error) is kind
                        assert reason in str(error)
                    case effects:
                        pytest.fail(str(effects))

    def test_expired_token_is_refreshed_once_for_a_new_session(self) -> None:
        state = live_state()
        assert state.receive(Goodbye("token_expired", False), NOW) == [Redial(new_token=True, reason="token_expired")]
        assert state.sid == ""
        state.lost()
        [end] = state.receive(Goodbye("token_expired", False), NOW)
        assert isinstance(end, End)
        assert isinstance(end.error, TokenExpired)

    def test_unauthorized_is_refreshed_once_if_the_protocol_reports_no_other_token_error(self) -> None:
        state = ClientState(refreshes_unauthorized=True)
        assert state.receive(Goodbye("unauthorized", False), NOW) == [Redial(new_token=True, reason="unauthorized")]
        [end] = state.receive(Goodbye("unauthorized", False), NOW)
        assert isinstance(end, End)
        assert isinstance(end.error, Unauthorized)

    def test_welcome_allows_another_refresh(self) -> None:
        state = live_state()
        state.receive(Goodbye("token_expired", False), NOW)
        reconnect(state)
        assert state.receive(Goodbye("token_expired", False), NOW) == [Redial(new_token=True, reason="token_expired")]


def test_ping_is_answered() -> None:
    assert live_state().receive(ServerPing(NOW), NOW) == [Send(Pong())]


def test_unknown_messages_are_ignored() -> None:
    state = live_state()
    assert state.receive(UnknownMessage("news"), NOW) == []
    assert state.receive(Data("stranger", b"1", "a", "e", 1), NOW) == []
