"""Frames of a TCP session to replies and commands to frames, together with the state, without a socket."""

import pytest

from ropewalk.client.broky import BrokyClientCodec
from ropewalk.client.codec import Target
from ropewalk.client.effects import Confirmed, Effect, End, Redial, Send, SubscriptionDenied, Yield
from ropewalk.client.errors import AlreadySubscribed, Disconnected, NotSupported, TokenExpired, Unauthorized
from ropewalk.client.events import Gap, Message
from ropewalk.client.state import ClientState
from ropewalk.client.track import DISCONNECTED, KeyTrack, PrefixTrack
from ropewalk.model.errors import UserMistake
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Body, Match, Reason, Run
from ropewalk.protocol.broky.runs import decode
from ropewalk.protocol.broky.tables import encode


class Session:
    """Codec and state. `sent`: the frames that were written since the last look."""

    def __init__(self, refreshes: bool = False) -> None:
        self.codec = BrokyClientCodec()
        self.state = ClientState(refreshes_unauthorized=refreshes)
        self.effects: list[Effect] = []
        self.frames: list[Body] = []
        self.codec.open("")

    def subscribe(self, name: str = "s", position: Position | None = None, prefix: bool = False) -> None:
        self.add(self.codec.public(name, None, position, presence_events=False, prefix=prefix))

    def add(self, target: Target) -> None:
        self.codec.add(target)
        self._execute(self.state.subscribe(target.identifier, target.track, 0.0))

    def unsubscribe(self, identifier: str = "s") -> None:
        self._execute(self.state.unsubscribe(identifier))
        self.codec.remove(identifier)

    def receive(self, body: Body) -> list[Effect]:
        """Returns all effects but writes."""
        for reply in self.codec.decode(encode(body)):
            self._execute(self.state.receive(reply, 0.0))
        effects, self.effects = self.effects, []
        return effects

    def reconnect(self) -> list[Body]:
        self.state.lost()
        self.codec.open("")
        assert self.receive(frames.Welcome()) == []
        return self.sent()

    def sent(self) -> list[Body]:
        sent, self.frames = self.frames, []
        return sent

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                data = self.codec.encode(effect.command, self.state.calls.next_ref())
                self.frames += [decode(data)] if data else []
            else:
                self.effects.append(effect)


def welcomed_session() -> Session:
    session = Session()
    assert session.receive(frames.Welcome(max_unacked=1000)) == []
    return session


def subscribed_session() -> Session:
    session = welcomed_session()
    session.subscribe()
    session.sent()
    assert session.receive(frames.Subscribed(1, b"e", 0)) == [Confirmed("s")]
    return session


def run(offset: int, key: bytes = b"s") -> Run:
    return Run(0, 1, offset, 0, key, epoch=b"e" if offset else b"", payload=b"x")


def offsets(effects: list[Effect], identifier: str = "s") -> list[int]:
    (delivered,) = effects
    assert isinstance(delivered, Yield)
    assert delivered.identifier == identifier
    return [event.offset for event in delivered.events if isinstance(event, Message)]


class TestSubscribe:
    def test_waits_for_the_welcome(self) -> None:
        session = Session()
        session.subscribe()
        assert session.sent() == []
        session.receive(frames.Welcome())
        assert session.sent() == [frames.Subscribe(1, b"s")]

    def test_is_rejected_permanently(self) -> None:
        session = welcomed_session()
        session.subscribe()
        assert session.receive(frames.Refused(1, 0, Reason.FORBIDDEN, "no")) == [SubscriptionDenied("s", "no")]
        session.sent()
        assert session.reconnect() == []
        session.subscribe()

    def test_resumes_after_the_last_seen_message(self) -> None:
        session = subscribed_session()
        assert offsets(session.receive(run(1))) == [1]
        assert session.reconnect() == [frames.Subscribe(2, b"s", epoch=b"e", offset=1)]

    def test_position_selects_the_requested_history(self, subtests: pytest.Subtests) -> None:
        cases = [
            (None, frames.Subscribe(1, b"s")),
            (Position("e", 3), frames.Subscribe(1, b"s", epoch=b"e", offset=3)),
            (Position("", 0), frames.Subscribe(1, b"s", history=True)),
            (Position("", 9), frames.Subscribe(1, b"s", epoch=b"?", offset=9)),
        ]
        for position, frame in cases:
            with subtests.test(position=position):
                session = welcomed_session()
                session.subscribe("s", position)
                assert session.sent() == [frame]

    def test_start_time_requests_all_history(self) -> None:
        session = welcomed_session()
        session.add(session.codec.public("s", 10.0, None, presence_events=False, prefix=False))
        assert session.sent() == [frames.Subscribe(1, b"s", history=True)]

    def test_repeated_subscription_waits_for_the_cancelled_one(self) -> None:
        session = welcomed_session()
        session.subscribe()
        session.unsubscribe()
        session.subscribe()
        assert session.sent() == [frames.Subscribe(1, b"s"), frames.Unsubscribe(0, b"s")]
        assert session.receive(frames.Subscribed(1, b"e", 0)) == []
        (again,) = session.sent()
        assert isinstance(again, frames.Subscribe)
        assert session.receive(run(1)) == []
        assert session.receive(frames.Subscribed(again.ref, b"e", 1)) == [Confirmed("s")]
        assert offsets(session.receive(run(2))) == [2]

    def test_prefix_waits_for_a_cancelled_subscription_to_the_same_key(self) -> None:
        session = welcomed_session()
        session.subscribe()
        session.unsubscribe()
        session.subscribe(prefix=True)
        session.sent()
        session.receive(frames.Subscribed(1, b"e", 0))
        (requested,) = session.sent()
        assert isinstance(requested, frames.Subscribe)
        assert (requested.key, requested.match) == (b"s", Match.PREFIX)

    def test_yields_nothing_after_unsubscribe(self) -> None:
        session = subscribed_session()
        session.unsubscribe()
        assert session.receive(run(1)) == []
        session.unsubscribe()
        assert session.sent() == [frames.Unsubscribe(0, b"s")]

    def test_signed_name_is_matched_by_its_plain_name(self) -> None:
        session = welcomed_session()
        session.add(Target("signed", KeyTrack("s"), False, b"s", b"signed", stream="s"))
        assert session.sent() == [frames.Subscribe(1, b"signed")]
        session.receive(frames.Subscribed(1, b"e", 0))
        assert offsets(session.receive(run(1)), "signed") == [1]
        session.unsubscribe("signed")
        assert session.sent() == [frames.Unsubscribe(0, b"signed")]

    def test_gap_of_the_server_is_yielded(self) -> None:
        session = subscribed_session()
        missed = session.receive(frames.Gap(b"s", Reason.SLOW, b"e", 1, 5))
        assert missed == [Yield("s", [Gap("s", "dropped", Position("e", 0), "e", 6, 0)])]

    def test_requests_without_a_frame_are_not_supported(self) -> None:
        codec = BrokyClientCodec()
        with pytest.raises(NotSupported):
            codec.identifier("i", None, None, presence_events=False)
        with pytest.raises(NotSupported):
            codec.public("s", None, None, presence_events=True, prefix=False)
        with pytest.raises(UserMistake):
            codec.public("s", 1.0, None, presence_events=False, prefix=True)
        with pytest.raises(UserMistake):
            codec.signed("unsigned", None, None, presence_events=False)


class TestPrefix:
    def test_receives_keys_without_their_own_subscription(self) -> None:
        session = subscribed_session()
        session.subscribe("t", prefix=True)
        (requested,) = session.sent()
        assert isinstance(requested, frames.Subscribe)
        session.receive(frames.Subscribed(requested.ref))
        for key, identifier in ((b"s", "s"), (b"t", "t…"), (b"t/1", "t…")):
            assert offsets(session.receive(run(0, key)), identifier) == [0]
        assert session.receive(run(0, b"u")) == []
        session.unsubscribe("t…")
        assert session.sent() == [frames.Unsubscribe(0, b"t", Match.PREFIX)]
        assert session.receive(run(0, b"t/1")) == []

    def test_reports_a_gap_after_a_lost_connection(self) -> None:
        session = welcomed_session()
        session.subscribe("t", prefix=True)
        session.receive(frames.Subscribed(1))
        session.sent()
        assert session.reconnect() == [frames.Subscribe(2, b"t", Match.PREFIX)]
        assert session.receive(frames.Subscribed(2)) == [Confirmed("t…"), Yield("t…", [Gap("t", DISCONNECTED)])]

    def test_overlaps_with_other_prefixes(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str]] = [("", "st"), ("s", ""), ("st", "s"), ("s", "st")]
        for held, wanted in cases:
            with subtests.test(held=held, wanted=wanted):
                session = welcomed_session()
                session.subscribe(held, prefix=True)
                with pytest.raises(AlreadySubscribed):
                    session.subscribe(wanted, prefix=True)
                with pytest.raises(AlreadySubscribed):
                    session.subscribe("st")
                if held:
                    session.subscribe("x", prefix=True)

    def test_overlaps_with_a_key(self) -> None:
        session = subscribed_session()
        with pytest.raises(AlreadySubscribed):
            session.subscribe(prefix=True)
        with pytest.raises(AlreadySubscribed):
            session.add(Target("signed", KeyTrack("s"), False, b"s", b"signed", stream="s"))
        session.subscribe("s/", prefix=True)
        session.unsubscribe("s/…")
        session.subscribe("s/")
        session.add(Target("r…", PrefixTrack("r"), False, b"r", b"r", Match.PREFIX))


class TestError:
    def test_with_reconnect_allowed_redials(self, subtests: pytest.Subtests) -> None:
        cases = [
            (frames.Error(Reason.DRAINING, "restarts", True), Redial(reason="restarts")),
            (frames.Error(Reason.DRAINING, "restarts", True, 1500), Redial(after=1.5, reason="restarts")),
            (frames.Error(Reason.SLOW, "", True, 2**31), Redial(after=300.0, reason="slow")),
        ]
        for error, redial in cases:
            with subtests.test(error=error):
                assert welcomed_session().receive(error) == [redial]

    def test_rejected_token_is_refreshed_once(self) -> None:
        session = Session(refreshes=True)
        rejected = frames.Error(Reason.UNAUTHORIZED, "Auth Failed")
        assert session.receive(rejected) == [Redial(new_token=True, reason="unauthorized")]
        session.state.lost()
        (end,) = session.receive(rejected)
        assert isinstance(end, End)
        assert isinstance(end.error, Unauthorized)

    def test_rejected_token_without_a_refresher_is_unauthorized(self) -> None:
        (end,) = Session().receive(frames.Error(Reason.UNAUTHORIZED, "Auth Failed"))
        assert isinstance(end, End)
        assert isinstance(end.error, Unauthorized)

    def test_accepted_token_is_reported_as_expired(self) -> None:
        session = welcomed_session()
        rejected = frames.Error(Reason.UNAUTHORIZED, "Auth Failed")
        assert session.receive(rejected) == [Redial(new_token=True, reason="token_expired")]
        (end,) = session.receive(rejected)
        assert isinstance(end, End)
        assert isinstance(end.error, TokenExpired)

    def test_permanent_error_has_a_reason(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str]] = [("a reason", "a reason"), ("", "too_big")]
        for text, reason in cases:
            with subtests.test(text=text):
                (end,) = welcomed_session().receive(frames.Error(Reason.TOO_BIG, text))
                assert isinstance(end, End)
                assert isinstance(end.error, Disconnected)
                assert end.error.reason == reason

    def test_frames_of_clients_are_ignored(self) -> None:
        assert welcomed_session().receive(frames.Hello()) == []


def test_messages_of_a_read_are_not_delivered_to_a_subscription() -> None:
    session = subscribed_session()
    assert session.receive(Run(7, 1, 1, 0, b"s", epoch=b"e", payload=b"x")) == []
    assert offsets(session.receive(run(1))) == [1]
