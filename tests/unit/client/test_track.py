"""The positions of one subscription: each once, ascending, and no loss without a Gap."""

import pytest

from ropewalk.client.events import Gap, Message
from ropewalk.client.messages import DeliveredMessages
from ropewalk.client.track import Track
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.protocol.server_messages import Data, HistoryRejected, StreamGap


def data(offset: int, stream: str = "a", epoch: str = "e") -> DeliveredMessages:
    return DeliveredMessages("i", stream, epoch, offset, 1, Data("i", b"%d" % offset, stream, epoch, offset))


def message(offset: int, stream: str = "a", epoch: str = "e", replayed: bool = False) -> Message:
    return Message(offset, stream, epoch, offset, "", replayed)


def rejection(reason: str, epoch: str = "e", oldest: int = 1, tip: int = 0, stream: str = "a") -> HistoryRejected:
    return HistoryRejected("i", reason, {stream: StreamGap(reason, epoch, oldest, tip)})


def track_at(offset: int) -> Track:
    return Track(None, {"a": Position("e", offset)})


def test_seen_position_is_not_repeated() -> None:
    track = Track()
    assert track.accept(data(4)) == [message(4)]
    assert track.accept(data(4)) == []
    assert track.accept(data(3)) == []
    assert track.accept(data(5)) == [message(5)]


def test_streams_of_one_subscription_have_separate_positions() -> None:
    track = Track()
    track.accept(data(4))
    assert track.accept(data(1, "b")) == [message(1, "b")]
    assert track.request().streams == {"a": Position("e", 4), "b": Position("e", 1)}


def test_skipped_offset_is_not_a_gap_because_publications_may_exclude_the_session() -> None:
    track = track_at(4)
    assert track.accept(data(6)) == [message(6)]


def test_message_without_a_position_is_always_yielded() -> None:
    track = track_at(4)
    whisper = DeliveredMessages("i", "", "", 0, 1, Data("i", b'"hush"'))
    assert track.accept(whisper) == track.accept(whisper) == [Message("hush", "")]
    assert track.request().streams == {"a": Position("e", 4)}


def test_messages_during_a_history_request_are_marked_as_replayed() -> None:
    track = track_at(4)
    track.request()
    assert track.accept(data(5)) == [message(5, replayed=True)]
    assert track.confirmed() == []
    assert track.accept(data(6)) == [message(6)]


def test_requested_start_time_takes_precedence() -> None:
    assert Track(100.0).request(200.0) == HistoryRequest(100.0)
    assert Track().request(200.0) == HistoryRequest(200.0)


def test_new_epoch_without_a_rejection_is_a_gap() -> None:
    track = track_at(4)
    gap, first = track.accept(data(1, epoch="f"))
    assert (repr(gap), first) == (repr(Gap("a", "epoch_changed", Position("e", 4), "f", 1)), message(1, epoch="f"))


def test_request_from_the_beginning_knows_no_epoch() -> None:
    track = Track(None, {"a": Position("", 0)})
    track.request()
    assert track.accept(data(1)) == [message(1, replayed=True)]


def test_gap_behind_the_beginning_counts_the_missed_messages() -> None:
    track = Track(None, {"a": Position("", 0)})
    track.request()
    (gap,) = track.rejected(rejection("trimmed", "e", 5, 6))
    assert isinstance(gap, Gap)
    assert gap.missed == 4


class TestRejection:
    def test_stored_messages_follow_the_gap(self) -> None:
        track = track_at(2)
        track.request()
        gap = Gap("a", "trimmed", Position("e", 2), "e", 5, 6)
        assert track.rejected(rejection("trimmed", "e", 5, 6)) == [gap]
        assert gap.missed == 2
        assert track.accept(data(5)) + track.accept(data(6)) == [message(5, replayed=True), message(6, replayed=True)]
        assert track.confirmed() == []
        assert not track.wants_more
        assert track.accept(data(7)) == [message(7)]

    def test_each_gap_of_an_answer_is_reported_in_order(self) -> None:
        track = track_at(2)
        track.request()
        assert track.accept(data(3)) == [message(3, replayed=True)]
        assert track.rejected(rejection("trimmed", "e", 5, 8)) == [Gap("a", "trimmed", Position("e", 3), "e", 5, 8)]
        assert track.accept(data(5)) == [message(5, replayed=True)]
        assert track.rejected(rejection("trimmed", "e", 8, 8)) == [Gap("a", "trimmed", Position("e", 5), "e", 8, 8)]
        assert track.accept(data(8)) == [message(8, replayed=True)]

    def test_history_by_time_that_was_trimmed_has_its_start(self) -> None:
        track = Track(50.0)
        track.request()
        assert track.rejected(rejection("trimmed", "e", 40, 41)) == [Gap("a", "trimmed", None, "e", 40, 41)]
        assert track.accept(data(40)) == [message(40, replayed=True)]

    def test_new_epoch_is_read_from_its_oldest_message(self) -> None:
        track = track_at(40)
        track.request()
        assert track.rejected(rejection("epoch_changed", "f", 1, 2)) == [
            Gap("a", "epoch_changed", Position("e", 40), "f", 1, 2)
        ]
        assert track.accept(data(1, epoch="f")) == [message(1, epoch="f", replayed=True)]

    def test_live_messages_during_the_request_are_not_reported_as_lost(self) -> None:
        track = Track(None, {"a": Position("", 0)})
        track.request()
        for offset in (1, 2, 3):
            assert track.accept(data(offset)) == [message(offset, replayed=True)]
        assert track.rejected(rejection("trimmed", "e", 2, 3)) == []
        assert track.confirmed() == []
        assert track.request().streams == {"a": Position("e", 3)}

    def test_gap_of_messages_without_positions_has_no_new_position(self) -> None:
        assert Track().rejected(rejection("trimmed", "")) == [Gap("a", "trimmed")]
        track = track_at(4)
        assert track.rejected(rejection("trimmed", "")) == [Gap("a", "trimmed", Position("e", 4))]
        assert track.request().streams == {"a": Position("e", 4)}

    def test_stream_unknown_to_the_server_continues_with_its_first_message(self) -> None:
        track = track_at(40)
        track.request()
        assert track.rejected(rejection("epoch_changed", "", 1, 0)) == [Gap("a", "epoch_changed", Position("e", 40))]
        assert track.confirmed() == []
        assert track.accept(data(1, epoch="f")) == [message(1, epoch="f")]
        assert track.request().streams == {"a": Position("f", 1)}

    def test_new_epoch_of_a_stream_unknown_before_is_reported_only_if_messages_of_it_are_missing(self) -> None:
        for oldest in (1, 3):
            track = track_at(40)
            track.request()
            track.rejected(rejection("epoch_changed", "", 1, 0))
            track.confirmed()
            gaps = [Gap("a", "epoch_changed", Position("e", 40), "f", oldest, 4)]
            assert track.rejected(rejection("epoch_changed", "f", oldest, 4)) == gaps[: oldest - 1]
            assert track.accept(data(oldest, epoch="f")) == [message(oldest, epoch="f")]

    @pytest.mark.parametrize("reason", ["epoch_changed", "unclaimed", "trimmed", "dropped"])
    def test_gap_without_an_epoch_leaves_the_position(self, reason: str) -> None:
        """The answer to a request from there reports whether messages are missing."""
        track = track_at(40)
        assert track.rejected(rejection(reason, "", 1, 0)) == [Gap("a", reason, Position("e", 40))]
        track.lost()
        assert track.request().streams == {"a": Position("e", 40)}
        assert track.rejected(rejection("epoch_changed", "g", 1, 3)) == [
            Gap("a", "epoch_changed", Position("e", 40), "g", 1, 3)
        ]

    def test_position_ahead_continues_after_the_tip(self) -> None:
        track = track_at(9)
        track.request()
        assert track.rejected(rejection("ahead", "e", 1, 6)) == [Gap("a", "ahead", Position("e", 9), "e", 7, 6)]
        assert track.confirmed() == []
        assert track.accept(data(7)) == [message(7)]


class TestPartialAnswer:
    def test_live_messages_are_held_until_the_history_is_complete(self) -> None:
        track = Track(None, {"a": Position("", 0)})
        track.request()
        assert track.accept(data(1)) == [message(1, replayed=True)]
        assert track.rejected(rejection("partial", oldest=2, tip=3)) == []
        assert not track.wants_more
        assert track.confirmed() == []
        assert track.wants_more
        assert track.accept(data(4)) == []  # live, and held until the history is complete
        assert track.request().streams == {"a": Position("e", 1)}
        assert track.accept(data(2)) == [message(2, replayed=True)]
        assert track.rejected(rejection("partial", oldest=3, tip=4)) == []
        assert track.confirmed() == []
        assert track.request().streams == {"a": Position("e", 2)}
        assert track.accept(data(3)) == [message(3, replayed=True)]
        assert track.confirmed() == [message(4)]
        assert not track.wants_more

    def test_held_messages_survive_a_trimmed_part(self) -> None:
        track = track_at(2)
        track.request()
        track.rejected(rejection("partial", "e", 5, 7))
        track.confirmed()
        track.request()
        track.accept(data(8))
        track.accept(data(9))
        again = track.rejected(rejection("trimmed", "e", 9, 9))
        assert again == [Gap("a", "trimmed", Position("e", 4), "e", 8, 9)]
        assert track.confirmed() == [message(8), message(9)]

    def test_other_streams_of_the_subscription_are_not_held(self) -> None:
        track = Track(None, {"a": Position("e", 2), "b": Position("e", 1)})
        track.request()
        track.rejected(rejection("partial", "e", 5, 7))
        track.confirmed()
        assert track.accept(data(2, "b")) == [message(2, "b")]

    def test_held_messages_are_requested_again_after_a_lost_connection(self) -> None:
        track = track_at(2)
        track.request()
        track.rejected(rejection("partial", "e", 5, 7))
        track.confirmed()
        track.accept(data(8))
        track.lost()
        assert not track.wants_more
        assert track.request().streams == {"a": Position("e", 4)}
        assert track.accept(data(5)) == [message(5, replayed=True)]


class TestRejectionWithoutDetails:
    def test_is_a_gap_for_every_known_stream_and_resets_positions(self) -> None:
        track = Track(50.0, {"a": Position("e", 2)})
        track.request()
        assert track.rejected(HistoryRejected("i")) == [Gap("a", "", Position("e", 2))]
        assert track.accept(data(1, epoch="f")) == [message(1, epoch="f")]
        assert track.request(70.0) == HistoryRequest(70.0, {"a": Position("f", 1)})

    def test_is_a_gap_even_without_a_known_stream(self) -> None:
        track = Track(50.0)
        track.request()
        assert track.rejected(HistoryRejected("i")) == [Gap("")]


class TestUnrequestedRejection:
    def test_dropped_messages_are_a_gap_before_the_newest(self) -> None:
        track = track_at(2)
        assert track.rejected(rejection("dropped", "e", 9, 9)) == [Gap("a", "dropped", Position("e", 2))]
        assert track.accept(data(9)) == [message(9)]

    def test_unclaimed_history_without_a_request_is_a_gap(self) -> None:
        track = track_at(2)
        assert track.accept(data(5)) == [message(5)]
        assert track.rejected(rejection("unclaimed", "e", 1, 5)) == [Gap("a", "unclaimed", Position("e", 5))]
        assert track.accept(data(6)) == [message(6)]

    def test_unclaimed_history_during_its_request_is_not_a_gap(self, subtests: pytest.Subtests) -> None:
        for known in [Position("e", 2), Position("", 0)]:
            with subtests.test(known=known):
                track = Track(None, {"a": known})
                track.request()
                held = [track.accept(data(5)), track.accept(data(6))]  # the server held these since the restore
                assert held == [[], []]
                assert track.rejected(rejection("unclaimed", "e", 1, 6)) == []
                assert track.asked
                assert track.accept(data(7)) == []
                missed = range(known.offset + 1, 5)
                assert [track.accept(data(offset)) for offset in missed] == [
                    [message(offset, replayed=True)] for offset in missed
                ]
                assert track.confirmed() == [message(5), message(6), message(7)]


def test_stream_without_messages_resumes_from_its_live_start() -> None:
    track = Track()
    track.began({"s": Position("e", 7), "new": Position("", 0)})
    assert track.request(5.0).streams == {"s": Position("e", 7), "new": Position("", 0)}
    track.accept(data(8, "s"))
    track.began({"s": Position("e", 7)})
    assert track.positions["s"] == Position("e", 8)
