"""What a read of history over TCP yields, without a socket."""

import pytest

from ropewalk.client.broky_state import BrokyState, DeliverEvents, WasRead, WriteFrame
from ropewalk.client.broky_track import BrokyTrack
from ropewalk.client.errors import HistoryRefused, HistoryUnavailable
from ropewalk.client.events import UNREADABLE, Gap, KeptMessages, Message
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Format, HistoryPage, Reason, Run

REF = 7


def reading(after: Position | None = None, limit: int = 10) -> BrokyState:
    state = BrokyState()
    state.receive(frames.Welcome())
    position = after or Position("", 0)
    request = frames.History(REF, b"asked", position.epoch.encode(), position.offset, limit)
    assert state.read(REF, "s", b"asked", after, limit) == [WriteFrame(request)]
    return state


def run(offset: int, payloads: tuple[bytes, ...] = (b"x",), format: Format = Format.BYTES, ref: int = REF) -> Run:
    sizes = tuple(map(len, payloads))
    return Run(ref, len(payloads), offset, 5, b"s", sizes=sizes, epoch=b"e", payload=b"".join(payloads), format=format)


def page(reason: Reason = Reason.NONE, epoch: bytes = b"e", oldest: int = 1, last: int = 9, tip: int = 9) -> HistoryPage:
    return HistoryPage(REF, reason, epoch, oldest, last, tip)


def kept(state: BrokyState, end: HistoryPage) -> KeptMessages:
    (effect,) = state.receive(end)
    assert isinstance(effect, WasRead)
    assert effect.ref == REF
    assert isinstance(effect.answer, KeptMessages)
    return effect.answer


class TestPages:
    def test_has_what_came_and_says_where_it_ends(self) -> None:
        state = reading()
        assert state.receive(run(3, (b"a", b"b"))) == []
        assert state.receive(run(5, (b'{"c":1}',), Format.JSON)) == []
        answer = kept(state, page(oldest=3, last=5, tip=9))
        messages = [event for event in answer.events if isinstance(event, Message)]
        assert [(each.stream, each.offset, each.data) for each in messages] == [
            ("s", 3, b"a"),
            ("s", 4, b"b"),
            ("s", 5, {"c": 1}),
        ]
        assert all(message.replayed for message in messages)
        assert (answer.position, answer.oldest, answer.tip, answer.more) == (Position("e", 5), 3, 9, True)
        assert state.receive(page()) == [], "it is answered once"

    def test_the_last_one_says_so(self) -> None:
        assert not kept(reading(), page()).more

    def test_nothing_is_known_of_a_stream(self) -> None:
        answer = kept(reading(), page(epoch=b"", last=0, tip=0))
        assert (answer.events, answer.position, answer.more) == ([], None, False)

    def test_a_message_that_cannot_be_decoded_is_a_gap_in_its_place(self) -> None:
        state = reading()
        state.receive(run(8, (b"{", b"2"), Format.JSON))
        gap, message = kept(state, page()).events
        assert gap == Gap("s", UNREADABLE, Position("e", 7), "e", 9, 8)
        assert isinstance(message, Message)
        assert message.offset == 9


class TestGaps:
    @pytest.mark.parametrize("epoch", ["e", ""])
    def test_what_was_trimmed_is_counted(self, epoch: str) -> None:
        state = reading(Position(epoch, 2))
        state.receive(run(6))
        gap = kept(state, page(Reason.TRIMMED, oldest=6)).events[0]
        assert gap == Gap("s", "trimmed", Position("e", 2), "e", 6, 9)
        assert isinstance(gap, Gap)
        assert gap.missed == 3

    def test_everything_was_trimmed(self) -> None:
        answer = kept(reading(Position("e", 2)), page(Reason.TRIMMED, oldest=10))
        assert answer.events == [Gap("s", "trimmed", Position("e", 2), "e", 10, 9)]

    def test_another_epoch(self) -> None:
        state = reading(Position("old", 2))
        state.receive(run(1))
        assert kept(state, page(Reason.EPOCH_CHANGED)).events[0] == Gap("s", "epoch_changed", Position("old", 2), "e", 1, 9)

    def test_a_stream_that_is_gone(self) -> None:
        answer = kept(reading(Position("old", 2)), page(Reason.EPOCH_CHANGED, b"", last=0, tip=0))
        assert answer.events == [Gap("s", "epoch_changed", Position("old", 2))]

    def test_ahead(self) -> None:
        answer = kept(reading(Position("e", 20)), page(Reason.AHEAD))
        assert answer.events == [Gap("s", "ahead", Position("e", 20), "e", 10, 9)]


class TestRefusals:
    @pytest.mark.parametrize(
        ("reason", "kind"),
        [
            (Reason.FORBIDDEN, HistoryRefused),
            (Reason.MALFORMED, HistoryRefused),
            (Reason.UNAVAILABLE, HistoryUnavailable),
        ],
    )
    def test_have_a_type_and_the_words_of_the_server(self, reason: Reason, kind: type[HistoryRefused]) -> None:
        (effect,) = reading().receive(frames.Refused(REF, 0, reason, "because"))
        assert isinstance(effect, WasRead)
        assert isinstance(effect.answer, kind)
        assert (effect.answer.stream, effect.answer.reason) == ("s", "because")


class TestConnections:
    def test_waits_for_one(self) -> None:
        state = BrokyState()
        assert state.read(REF, "s", b"s", None, 10) == []
        assert state.receive(frames.Welcome()) == [WriteFrame(frames.History(REF, b"s", b"", 0, 10))]

    def test_what_a_lost_one_left_unanswered_is_asked_again_from_its_beginning(self) -> None:
        state = reading(limit=2)
        state.receive(run(1))
        state.lost()
        assert state.receive(frames.Welcome()) == [WriteFrame(frames.History(REF, b"asked", b"", 0, 2))]
        state.receive(run(1, (b"x", b"x")))
        assert len(kept(state, page()).events) == 2

    def test_what_nobody_waits_for_any_more_is_neither_asked_again_nor_delivered(self) -> None:
        state = reading()
        state.reads.forget(REF)
        assert state.receive(run(1)) == state.receive(page()) == []
        state.lost()
        assert state.receive(frames.Welcome()) == []


def test_a_subscription_to_the_same_stream_gets_nothing_of_it() -> None:
    state = reading()
    state.subscribe("s", b"s", b"s", BrokyTrack("s"))
    state.receive(frames.Subscribed(1, b"e", 0))
    assert state.receive(run(1)) == []
    (live,) = state.receive(run(1, ref=0))
    assert isinstance(live, DeliverEvents)
    assert len(kept(state, page()).events) == 1
