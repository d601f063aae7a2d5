"""What a session over TCP does on each frame, without a socket."""

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


def welcomed(refreshes: bool = False) -> BrokyState:
    state = BrokyState(refreshes)
    assert state.receive(frames.Welcome(max_unacked=1000)) == []
    return state


def ask(state: BrokyState, name: str = "s") -> list[BrokyEffect]:
    return state.subscribe(name, name.encode(), name.encode(), BrokyTrack(name))


def asked(effects: list[BrokyEffect]) -> list[int]:
    """The refs of the subscriptions in these effects."""
    return [
        effect.frame.ref for effect in effects if isinstance(effect, WriteFrame) and isinstance(effect.frame, frames.Subscribe)
    ]


def live(state: BrokyState, offset: int = 0) -> None:
    (ref,) = asked(ask(state))
    assert state.receive(frames.Subscribed(ref, b"e", offset)) == [Confirmed("s")]


def run(offset: int, payload: bytes = b"x") -> Run:
    return Run(0, 1, offset, 0, b"s", epoch=b"e", payload=payload)


class TestSubscribing:
    def test_waits_for_the_welcome(self) -> None:
        state = BrokyState()
        assert ask(state) == []
        assert asked(state.receive(frames.Welcome())) == [1]

    def test_is_refused_for_good(self) -> None:
        state = welcomed()
        (ref,) = asked(ask(state))
        assert state.receive(frames.Refused(ref, 0, Reason.FORBIDDEN, "no")) == [SubscriptionDenied("s", "no")]
        state.lost()
        assert state.receive(frames.Welcome()) == []

    def test_resumes_after_what_was_seen(self) -> None:
        state = welcomed()
        live(state)
        (delivered,) = state.receive(run(1))
        assert isinstance(delivered, DeliverEvents)
        assert delivered.identifier == "s"
        state.lost()
        (again,) = state.receive(frames.Welcome())
        assert again == WriteFrame(frames.Subscribe(2, b"s", epoch=b"e", offset=1))

    def test_again_waits_for_the_answer_to_the_one_that_was_given_up(self) -> None:
        state = welcomed()
        (first,) = asked(ask(state))
        assert state.unsubscribe("s") == [WriteFrame(frames.Unsubscribe(0, b"s"))]
        assert ask(state) == []
        (second,) = asked(state.receive(frames.Subscribed(first, b"e", 0)))
        assert state.receive(run(1)) == []
        assert state.receive(frames.Subscribed(second, b"e", 1)) == [Confirmed("s")]
        (delivered,) = state.receive(run(2))
        assert isinstance(delivered, DeliverEvents)
        assert [event.offset for event in delivered.events if isinstance(event, Message)] == [2]

    def test_ends_and_nothing_more_is_yielded(self) -> None:
        state = welcomed()
        live(state)
        state.unsubscribe("s")
        assert state.receive(run(1)) == []
        assert state.unsubscribe("s") == []

    def test_by_a_signed_name_is_told_by_the_name_in_it(self) -> None:
        state = welcomed()
        (effect,) = state.subscribe("signed", b"s", b"signed", BrokyTrack("s"))
        assert effect == WriteFrame(frames.Subscribe(1, b"signed"))
        state.receive(frames.Subscribed(1, b"e", 0))
        (delivered,) = state.receive(run(1))
        assert isinstance(delivered, DeliverEvents)
        assert delivered.identifier == "signed"
        assert state.unsubscribe("signed") == [WriteFrame(frames.Unsubscribe(0, b"signed"))]


class TestPrefixes:
    def test_get_what_no_other_subscription_does(self) -> None:
        state = welcomed()
        live(state)
        assert asked(state.subscribe("t…", b"t", b"t", PrefixTrack("t"))) == [2]
        state.receive(frames.Subscribed(2))
        for key, identifier in ((b"s", "s"), (b"t", "t…"), (b"t/1", "t…")):
            (delivered,) = state.receive(Run(0, 1, 0, 0, key, payload=b"x"))
            assert isinstance(delivered, DeliverEvents)
            assert delivered.identifier == identifier
        assert state.receive(Run(key=b"u")) == []
        assert state.unsubscribe("t…") == [WriteFrame(frames.Unsubscribe(0, b"t", Match.PREFIX))]
        assert state.receive(Run(key=b"t/1")) == []

    def test_are_told_of_what_they_missed(self) -> None:
        state = welcomed()
        state.subscribe("t…", b"t", b"t", PrefixTrack("t"))
        state.receive(frames.Subscribed(1))
        state.lost()
        assert state.receive(frames.Welcome()) == [WriteFrame(frames.Subscribe(2, b"t", Match.PREFIX))]
        confirmed, missed = state.receive(frames.Subscribed(2))
        assert confirmed == Confirmed("t…")
        assert isinstance(missed, DeliverEvents)

    @pytest.mark.parametrize(("held", "wanted"), [("", "st"), ("s", ""), ("st", "s"), ("s", "st")])
    def test_do_not_overlap_with_anything(self, held: str, wanted: str) -> None:
        state = welcomed()
        state.subscribe(f"{held}…", held.encode(), held.encode(), PrefixTrack(held))
        assert state.overlaps(wanted.encode(), PrefixTrack(wanted))
        assert state.overlaps(b"st", BrokyTrack("st"))
        assert not state.overlaps(b"x", PrefixTrack("x")) or not held

    def test_do_not_overlap_with_a_key(self) -> None:
        state = welcomed()
        live(state)
        assert state.overlaps(b"s", PrefixTrack("s"))
        assert state.overlaps(b"s", BrokyTrack("s"))
        assert not state.overlaps(b"s/", PrefixTrack("s/"))
        assert not state.overlaps(b"s/", BrokyTrack("s/"))


class TestPushing:
    def test_is_answered_by_ref(self) -> None:
        state = welcomed()
        state.push(4, b"four")
        state.push(5, b"five")
        effects = state.receive(frames.Pushed((5, 4), (1, 9), b"\x01e\x02ee"))
        assert effects == [PushRegistered(5, Position("e", 1)), PushRegistered(4, Position("ee", 9))]

    def test_is_repeated_after_a_loss(self) -> None:
        state = welcomed()
        assert state.push(4, b"four") == [WriteBytes([b"four"])]
        state.lost()
        assert state.receive(frames.Welcome(max_unacked=9)) == [WriteBytes([b"four"])]

    def test_is_refused_for_good_or_for_now(self) -> None:
        state = welcomed()
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

    def test_is_known_to_be_done_with_a_pong(self) -> None:
        assert welcomed().receive(frames.Pong(7)) == [Ponged(7)]


class TestTheEnd:
    def test_with_leave_to_come_back(self) -> None:
        assert welcomed().receive(frames.Error(Reason.DRAINING, "restarts", True)) == [Redial()]
        assert welcomed().receive(frames.Error(Reason.DRAINING, "restarts", True, 1500)) == [Redial(after=1.5)]
        assert welcomed().receive(frames.Error(Reason.SLOW, "", True, 2**31)) == [Redial(after=300.0)]

    def test_for_a_token_that_is_not_good_asks_for_another_once(self) -> None:
        state = BrokyState(refreshes=True)
        refused = frames.Error(Reason.UNAUTHORIZED, "Auth Failed")
        assert state.receive(refused) == [Redial(new_token=True)]
        state.lost()
        (end,) = state.receive(refused)
        assert isinstance(end, End)
        assert isinstance(end.error, Unauthorized)

    def test_for_a_token_that_was_good_says_that_it_has_expired(self) -> None:
        (end,) = welcomed().receive(frames.Error(Reason.UNAUTHORIZED, "Auth Failed"))
        assert isinstance(end, End)
        assert isinstance(end.error, TokenExpired)
        assert welcomed(refreshes=True).receive(frames.Error(Reason.UNAUTHORIZED)) == [Redial(new_token=True)]

    @pytest.mark.parametrize(("text", "told"), [("a reason", "a reason"), ("", "too_big")])
    def test_for_good_says_why(self, text: str, told: str) -> None:
        (end,) = welcomed().receive(frames.Error(Reason.TOO_BIG, text))
        assert isinstance(end, End)
        assert isinstance(end.error, Disconnected)
        assert end.error.reason == told

    def test_frames_that_only_clients_say_are_passed_over(self) -> None:
        assert welcomed().receive(frames.Hello()) == []
