"""Reactions of a TCP session to each frame, without a socket."""

import pytest

from ropewalk.client.broky_state import (
    BrokyEffect,
    BrokyState,
    DeliverEvents,
    Ponged,
    PushRefused,
    PushRegistered,
    Retry,
    WriteBytes,
    WriteFrame,
)
from ropewalk.client.broky_track import BrokyTrack, PrefixTrack
from ropewalk.client.effects import Confirmed, End, Redial, SubscriptionDenied
from ropewalk.client.errors import Disconnected, KeyRefused, PublicationRefused, TokenExpired, Unauthorized
from ropewalk.client.events import Message
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Match, Reason, Run


def welcomed_state(refreshes: bool = False) -> BrokyState:
    state = BrokyState(refreshes)
    assert state.receive(frames.Welcome(max_unacked=1000)) == []
    return state


def subscribe(state: BrokyState, name: str = "s") -> list[BrokyEffect]:
    return state.subscribe(name, name.encode(), name.encode(), BrokyTrack(name))


def subscribe_refs(effects: list[BrokyEffect]) -> list[int]:
    """The refs of the Subscribe frames in these effects."""
    return [
        effect.frame.ref for effect in effects if isinstance(effect, WriteFrame) and isinstance(effect.frame, frames.Subscribe)
    ]


def subscribe_live(state: BrokyState, offset: int = 0) -> None:
    (ref,) = subscribe_refs(subscribe(state))
    assert state.receive(frames.Subscribed(ref, b"e", offset)) == [Confirmed("s")]


def run(offset: int, payload: bytes = b"x") -> Run:
    return Run(0, 1, offset, 0, b"s", epoch=b"e", payload=payload)


class TestSubscribe:
    def test_waits_for_the_welcome(self) -> None:
        state = BrokyState()
        assert subscribe(state) == []
        assert subscribe_refs(state.receive(frames.Welcome())) == [1]

    def test_is_rejected_permanently(self) -> None:
        state = welcomed_state()
        (ref,) = subscribe_refs(subscribe(state))
        assert state.receive(frames.Refused(ref, 0, Reason.FORBIDDEN, "no")) == [SubscriptionDenied("s", "no")]
        state.lost()
        assert state.receive(frames.Welcome()) == []

    def test_resumes_after_the_last_seen_message(self) -> None:
        state = welcomed_state()
        subscribe_live(state)
        (delivered,) = state.receive(run(1))
        assert isinstance(delivered, DeliverEvents)
        assert delivered.identifier == "s"
        state.lost()
        (again,) = state.receive(frames.Welcome())
        assert again == WriteFrame(frames.Subscribe(2, b"s", epoch=b"e", offset=1))

    def test_repeated_subscription_waits_for_the_cancelled_one(self) -> None:
        state = welcomed_state()
        (first,) = subscribe_refs(subscribe(state))
        assert state.unsubscribe("s") == [WriteFrame(frames.Unsubscribe(0, b"s"))]
        assert subscribe(state) == []
        (second,) = subscribe_refs(state.receive(frames.Subscribed(first, b"e", 0)))
        assert state.receive(run(1)) == []
        assert state.receive(frames.Subscribed(second, b"e", 1)) == [Confirmed("s")]
        (delivered,) = state.receive(run(2))
        assert isinstance(delivered, DeliverEvents)
        assert [event.offset for event in delivered.events if isinstance(event, Message)] == [2]

    def test_yields_nothing_after_unsubscribe(self) -> None:
        state = welcomed_state()
        subscribe_live(state)
        state.unsubscribe("s")
        assert state.receive(run(1)) == []
        assert state.unsubscribe("s") == []

    def test_signed_name_is_matched_by_its_plain_name(self) -> None:
        state = welcomed_state()
        (effect,) = state.subscribe("signed", b"s", b"signed", BrokyTrack("s"))
        assert effect == WriteFrame(frames.Subscribe(1, b"signed"))
        state.receive(frames.Subscribed(1, b"e", 0))
        (delivered,) = state.receive(run(1))
        assert isinstance(delivered, DeliverEvents)
        assert delivered.identifier == "signed"
        assert state.unsubscribe("signed") == [WriteFrame(frames.Unsubscribe(0, b"signed"))]


class TestPrefix:
    def test_receives_keys_without_their_own_subscription(self) -> None:
        state = welcomed_state()
        subscribe_live(state)
        assert subscribe_refs(state.subscribe("t…", b"t", b"t", PrefixTrack("t"))) == [2]
        state.receive(frames.Subscribed(2))
        for key, identifier in ((b"s", "s"), (b"t", "t…"), (b"t/1", "t…")):
            (delivered,) = state.receive(Run(0, 1, 0, 0, key, payload=b"x"))
            assert isinstance(delivered, DeliverEvents)
            assert delivered.identifier == identifier
        assert state.receive(Run(key=b"u")) == []
        assert state.unsubscribe("t…") == [WriteFrame(frames.Unsubscribe(0, b"t", Match.PREFIX))]
        assert state.receive(Run(key=b"t/1")) == []

    def test_reports_a_gap_after_a_lost_connection(self) -> None:
        state = welcomed_state()
        state.subscribe("t…", b"t", b"t", PrefixTrack("t"))
        state.receive(frames.Subscribed(1))
        state.lost()
        assert state.receive(frames.Welcome()) == [WriteFrame(frames.Subscribe(2, b"t", Match.PREFIX))]
        confirmed, missed = state.receive(frames.Subscribed(2))
        assert confirmed == Confirmed("t…")
        assert isinstance(missed, DeliverEvents)

    def test_overlaps_with_other_prefixes(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str]] = [("", "st"), ("s", ""), ("st", "s"), ("s", "st")]
        for held, wanted in cases:
            with subtests.test(held=held, wanted=wanted):
                state = welcomed_state()
                state.subscribe(f"{held}…", held.encode(), held.encode(), PrefixTrack(held))
                assert state.overlaps(wanted.encode(), PrefixTrack(wanted))
                assert state.overlaps(b"st", BrokyTrack("st"))
                assert not state.overlaps(b"x", PrefixTrack("x")) or not held

    def test_overlaps_with_a_key(self) -> None:
        state = welcomed_state()
        subscribe_live(state)
        assert state.overlaps(b"s", PrefixTrack("s"))
        assert state.overlaps(b"s", BrokyTrack("s"))
        assert not state.overlaps(b"s/", PrefixTrack("s/"))
        assert not state.overlaps(b"s/", BrokyTrack("s/"))


class TestPush:
    def test_is_acknowledged_by_ref(self) -> None:
        state = welcomed_state()
        state.push(4, b"four")
        state.push(5, b"five")
        effects = state.receive(frames.Pushed((5, 4), (1, 9), b"\x01e\x02ee"))
        assert effects == [PushRegistered(5, Position("e", 1)), PushRegistered(4, Position("ee", 9))]

    def test_is_repeated_after_a_lost_connection(self) -> None:
        state = welcomed_state()
        assert state.push(4, b"four") == [WriteBytes([b"four"])]
        state.lost()
        assert state.receive(frames.Welcome(max_unacked=9)) == [WriteBytes([b"four"])]

    def test_is_rejected_permanently_or_temporarily(self) -> None:
        state = welcomed_state()
        for ref in (1, 2, 3):
            state.push(ref, b"x")
        (refused,) = state.receive(frames.Refused(1, 3, Reason.MALFORMED, "no JSON"))
        assert isinstance(refused, PushRefused)
        assert isinstance(refused.error, PublicationRefused)
        assert refused.error.index == 3
        (refused,) = state.receive(frames.Refused(2, 0, Reason.FORBIDDEN, "no key"))
        assert isinstance(refused, PushRefused)
        assert isinstance(refused.error, KeyRefused)
        (retry,) = state.receive(frames.Refused(3, 0, Reason.UNAVAILABLE, "not now"))
        assert isinstance(retry, Retry)
        assert (retry.ref, retry.failures) == (3, 1)
        assert state.again(3) == [WriteBytes([b"x"])]

    def test_pong_is_reported(self) -> None:
        assert welcomed_state().receive(frames.Pong(7)) == [Ponged(7)]


class TestError:
    def test_with_reconnect_allowed_redials(self) -> None:
        assert welcomed_state().receive(frames.Error(Reason.DRAINING, "restarts", True)) == [Redial()]
        assert welcomed_state().receive(frames.Error(Reason.DRAINING, "restarts", True, 1500)) == [Redial(after=1.5)]
        assert welcomed_state().receive(frames.Error(Reason.SLOW, "", True, 2**31)) == [Redial(after=300.0)]

    def test_rejected_token_is_refreshed_once(self) -> None:
        state = BrokyState(refreshes=True)
        refused = frames.Error(Reason.UNAUTHORIZED, "Auth Failed")
        assert state.receive(refused) == [Redial(new_token=True)]
        state.lost()
        (end,) = state.receive(refused)
        assert isinstance(end, End)
        assert isinstance(end.error, Unauthorized)

    def test_accepted_token_is_reported_as_expired(self) -> None:
        (end,) = welcomed_state().receive(frames.Error(Reason.UNAUTHORIZED, "Auth Failed"))
        assert isinstance(end, End)
        assert isinstance(end.error, TokenExpired)
        assert welcomed_state(refreshes=True).receive(frames.Error(Reason.UNAUTHORIZED)) == [Redial(new_token=True)]

    def test_permanent_error_has_a_reason(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str]] = [("a reason", "a reason"), ("", "too_big")]
        for text, reason in cases:
            with subtests.test(text=text):
                (end,) = welcomed_state().receive(frames.Error(Reason.TOO_BIG, text))
                assert isinstance(end, End)
                assert isinstance(end.error, Disconnected)
                assert end.error.reason == reason

    def test_frames_of_clients_are_ignored(self) -> None:
        assert welcomed_state().receive(frames.Hello()) == []
