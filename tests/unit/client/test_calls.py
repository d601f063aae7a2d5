"""Pushes and history reads over TCP, without a socket."""

import pytest

from ropewalk.client.calls import MAX_REF, TcpCalls
from ropewalk.client.effects import CallAnswered, Retry, Send, WritePushes
from ropewalk.client.errors import HistoryRefused, HistoryUnavailable, KeyRefused, PublicationRefused
from ropewalk.client.events import UNREADABLE, Gap, KeptMessages, Message
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Format, HistoryPage, Reason, Run

REF = 7


def start_read(after: Position | None = None, limit: int = 10) -> TcpCalls:
    calls = TcpCalls()
    calls.receive(frames.Welcome())
    position = after or Position("", 0)
    request = frames.History(REF, b"name", position.epoch.encode(), position.offset, limit)
    assert calls.read(REF, "s", b"name", position, limit) == [Send(request)]
    return calls


def run(offset: int, payloads: tuple[bytes, ...] = (b"x",), format: Format = Format.BYTES, ref: int = REF) -> Run:
    sizes = tuple(map(len, payloads))
    return Run(ref, len(payloads), offset, 5, b"s", sizes=sizes, epoch=b"e", payload=b"".join(payloads), format=format)


def page(reason: Reason = Reason.NONE, epoch: bytes = b"e", oldest: int = 1, last: int = 9, tip: int = 9) -> HistoryPage:
    return HistoryPage(REF, reason, epoch, oldest, last, tip)


def finish_read(calls: TcpCalls, end: HistoryPage) -> KeptMessages:
    (effect,) = calls.receive(end)
    assert isinstance(effect, CallAnswered)
    assert effect.ref == REF
    assert isinstance(effect.answer, KeptMessages)
    return effect.answer


class TestPage:
    def test_has_the_received_messages_and_its_end(self) -> None:
        calls = start_read()
        assert calls.receive(run(3, (b"a", b"b"))) == []
        assert calls.receive(run(5, (b'{"c":1}',), Format.JSON)) == []
        answer = finish_read(calls, page(oldest=3, last=5, tip=9))
        messages = [event for event in answer.events if isinstance(event, Message)]
        assert [(each.stream, each.offset, each.data) for each in messages] == [
            ("s", 3, b"a"),
            ("s", 4, b"b"),
            ("s", 5, {"c": 1}),
        ]
        assert all(message.replayed for message in messages)
        assert (answer.position, answer.oldest, answer.tip, answer.more) == (Position("e", 5), 3, 9, True)
        assert calls.receive(page()) == [], "a read has one answer"

    def test_last_page_has_no_more(self) -> None:
        assert not finish_read(start_read(), page()).more

    def test_of_an_unknown_stream_is_empty(self) -> None:
        answer = finish_read(start_read(), page(epoch=b"", last=0, tip=0))
        assert (answer.events, answer.position, answer.more) == ([], None, False)

    def test_of_a_lost_stream_keeps_the_position_that_was_asked_for(self) -> None:
        known = Position("e", 5)
        answer = finish_read(start_read(known), page(Reason.EPOCH_CHANGED, b"", last=0, tip=0))
        assert (answer.events, answer.position, answer.more) == ([Gap("s", "epoch_changed", known)], known, False)

    def test_message_that_cannot_be_decoded_is_a_gap(self) -> None:
        calls = start_read()
        calls.receive(run(8, (b"{", b"2"), Format.JSON))
        gap, message = finish_read(calls, page()).events
        assert gap == Gap("s", UNREADABLE, Position("e", 7), "e", 9, 8)
        assert isinstance(message, Message)
        assert message.offset == 9


class TestGaps:
    def test_trimmed_messages_are_counted(self, subtests: pytest.Subtests) -> None:
        for epoch in ["e", ""]:
            with subtests.test(epoch=epoch):
                calls = start_read(Position(epoch, 2))
                calls.receive(run(6))
                gap = finish_read(calls, page(Reason.TRIMMED, oldest=6)).events[0]
                assert gap == Gap("s", "trimmed", Position("e", 2), "e", 6, 9)
                assert isinstance(gap, Gap)
                assert gap.missed == 3

    def test_all_messages_were_trimmed(self) -> None:
        answer = finish_read(start_read(Position("e", 2)), page(Reason.TRIMMED, oldest=10))
        assert answer.events == [Gap("s", "trimmed", Position("e", 2), "e", 10, 9)]

    def test_changed_epoch_is_a_gap(self) -> None:
        calls = start_read(Position("old", 2))
        calls.receive(run(1))
        assert finish_read(calls, page(Reason.EPOCH_CHANGED)).events[0] == Gap(
            "s", "epoch_changed", Position("old", 2), "e", 1, 9
        )

    def test_stream_no_longer_exists(self) -> None:
        answer = finish_read(start_read(Position("old", 2)), page(Reason.EPOCH_CHANGED, b"", last=0, tip=0))
        assert answer.events == [Gap("s", "epoch_changed", Position("old", 2))]

    def test_position_is_ahead_of_the_stream(self) -> None:
        answer = finish_read(start_read(Position("e", 20)), page(Reason.AHEAD))
        assert answer.events == [Gap("s", "ahead", Position("e", 20), "e", 10, 9)]


class TestRejections:
    def test_error_type_and_text_follow_the_reason(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[Reason, type[HistoryRefused | HistoryUnavailable]]] = [
            (Reason.FORBIDDEN, HistoryRefused),
            (Reason.MALFORMED, HistoryRefused),
            (Reason.UNAVAILABLE, HistoryUnavailable),
        ]
        for reason, kind in cases:
            with subtests.test(reason=reason):
                (effect,) = start_read().receive(frames.Refused(REF, 0, reason, "because"))
                assert isinstance(effect, CallAnswered)
                assert isinstance(effect.answer, kind)
                assert (effect.answer.stream, effect.answer.reason) == ("s", "because")


class TestConnection:
    def test_read_waits_for_a_connection(self) -> None:
        calls = TcpCalls()
        assert calls.read(REF, "s", b"s", Position("", 0), 10) == []
        assert calls.receive(frames.Welcome()) == [Send(frames.History(REF, b"s", b"", 0, 10))]

    def test_interrupted_read_restarts_on_the_next_connection(self) -> None:
        calls = start_read(limit=2)
        calls.receive(run(1))
        calls.lost()
        assert calls.receive(frames.Welcome()) == [Send(frames.History(REF, b"name", b"", 0, 2))]
        calls.receive(run(1, (b"x", b"x")))
        assert len(finish_read(calls, page()).events) == 2

    def test_discarded_read_is_neither_repeated_nor_delivered(self) -> None:
        calls = start_read()
        calls.discard_read(REF)
        assert calls.receive(run(1)) == calls.receive(page()) == []
        calls.lost()
        assert calls.receive(frames.Welcome()) == []


def welcomed() -> TcpCalls:
    calls = TcpCalls()
    assert calls.receive(frames.Welcome(max_unacked=1000)) == []
    return calls


class TestPush:
    def test_is_acknowledged_by_ref(self) -> None:
        calls = welcomed()
        calls.push(4, b"four")
        calls.push(5, b"five")
        effects = calls.receive(frames.Pushed((5, 4), (1, 9), b"\x01e\x02ee"))
        assert effects == [CallAnswered(5, Position("e", 1)), CallAnswered(4, Position("ee", 9))]

    def test_is_repeated_after_a_lost_connection(self) -> None:
        calls = welcomed()
        assert calls.push(4, b"four") == [WritePushes([b"four"])]
        calls.lost()
        assert calls.receive(frames.Welcome(max_unacked=9)) == [WritePushes([b"four"])]

    def test_is_rejected_permanently_or_temporarily(self) -> None:
        calls = welcomed()
        for ref in (1, 2, 3):
            calls.push(ref, b"x")
        (rejected,) = calls.receive(frames.Refused(1, 3, Reason.MALFORMED, "no JSON"))
        assert isinstance(rejected, CallAnswered)
        assert isinstance(rejected.answer, PublicationRefused)
        assert rejected.answer.index == 3
        (rejected,) = calls.receive(frames.Refused(2, 0, Reason.FORBIDDEN, "no key"))
        assert isinstance(rejected, CallAnswered)
        assert isinstance(rejected.answer, KeyRefused)
        (retry,) = calls.receive(frames.Refused(3, 0, Reason.UNAVAILABLE, "not now"))
        assert isinstance(retry, Retry)
        assert (retry.ref, retry.failures) == (3, 1)
        assert calls.retry(3) == [WritePushes([b"x"])]

    def test_error_of_the_connection_is_kept_for_pushes_until_the_next_one(self) -> None:
        calls = welcomed()
        calls.receive(frames.Error(Reason.UNAUTHORIZED, "Auth Failed"))
        assert isinstance(calls.error, KeyRefused)
        calls.receive(frames.Welcome())
        assert calls.error is None


def test_ping_is_answered_by_ref() -> None:
    assert welcomed().receive(frames.Pong(7)) == [CallAnswered(7, None)]


def test_refs_start_again_after_the_highest() -> None:
    calls = TcpCalls()
    assert [calls.next_ref(), calls.next_ref()] == [1, 2]
    calls._ref = MAX_REF
    assert calls.next_ref() == 1
