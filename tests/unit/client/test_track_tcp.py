"""The events that a TCP subscription yields for each run."""

import pytest

from ropewalk.client.events import UNREADABLE, BrokyMessage, Event, Gap, Message
from ropewalk.client.messages import DeliveredMessages
from ropewalk.client.track import BEFORE_ALL, DISCONNECTED, KeyTrack, PrefixTrack
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.runs import build_run
from ropewalk.protocol.server_messages import HistoryRejected, StreamGap


def run(offset: int, *payloads: bytes, epoch: bytes = b"e", at: int = 7, format: Format = Format.BYTES) -> DeliveredMessages:
    made = build_run(b"s", payloads)
    epoch = epoch if offset else b""
    return deliver(Run(0, made.count, offset, at, b"s", b"", made.sizes, (), b"", epoch, made.payload, format))


def deliver(run: Run) -> DeliveredMessages:
    return DeliveredMessages("i", "s", run.epoch.decode(), run.offset, run.count, run)


def missing(reason: str, epoch: str = "", last: int = 0) -> HistoryRejected:
    return HistoryRejected("i", reason, {"s": StreamGap(reason, epoch, last + 1)})


def tips(epoch: str = "", offset: int = 0) -> dict[str, Position]:
    return {"s": Position(epoch, offset)}


def offsets(events: list[Event]) -> list[int]:
    assert all(isinstance(event, Message) for event in events), events
    return [event.offset for event in events if isinstance(event, Message)]


GONE = missing("epoch_changed")
"""The server does not know the stream."""


def track(position: Position | None = None, since: float | None = None, tip: int = 0, epoch: str = "e") -> KeyTrack:
    """Returns a track that is subscribed to a stream with this tip."""
    made = KeyTrack("s", position, since)
    made.began(tips(epoch, tip))
    return made


class TestMessages:
    def test_have_bytes_and_metadata(self) -> None:
        (message,) = track().accept(run(1, b"\xff"))
        assert message == BrokyMessage(b"\xff", "s", "e", 1, payload=b"\xff", ts_broker=7)
        assert isinstance(message, BrokyMessage)
        assert (message.key, message.position, message.format) == (b"s", Position("e", 1), Format.BYTES)

    def test_have_decoded_data_if_json(self) -> None:
        (message,) = track().accept(run(1, b'{"a": 1}', format=Format.JSON))
        assert isinstance(message, BrokyMessage)
        assert (message.data, message.payload) == ({"a": 1}, b'{"a": 1}')

    def test_have_times_and_uids_of_their_producers(self) -> None:
        sent = Run(0, 2, 1, 7, b"s", b"", (1, 0), (8, 9), b"a" * 20 + b"b" * 20, b"e", b"x")
        first, second = track().accept(deliver(sent))
        assert isinstance(first, BrokyMessage)
        assert isinstance(second, BrokyMessage)
        assert (first.payload, first.ts_producer, first.uid) == (b"x", 8, b"a" * 20)
        assert (second.payload, second.ts_producer, second.uid, second.offset) == (b"", 9, b"b" * 20, 2)

    def test_without_a_position_are_never_duplicates(self) -> None:
        fresh = track(epoch="")
        for _ in range(2):
            assert offsets(fresh.accept(run(0, b"a", b"b"))) == [0, 0]
        assert fresh.position == Position("", 0)

    def test_that_cannot_be_decoded_are_gaps(self) -> None:
        deep = b"[" * 200 + b"]" * 200
        events = track().accept(run(1, b"1", deep, b"{", b"4", format=Format.JSON))
        assert offsets([events[0], events[3]]) == [1, 4]
        assert events[1:3] == [
            Gap("s", UNREADABLE, Position("e", 1), "e", 3, 2),
            Gap("s", UNREADABLE, Position("e", 2), "e", 4, 3),
        ]

    def test_up_to_the_tip_are_marked_as_replayed(self) -> None:
        resumed = track(Position("e", 1), tip=2)
        events = [*resumed.accept(run(2, b"a")), *resumed.accept(run(3, b"b"))]
        assert [event.replayed for event in events if isinstance(event, Message)] == [True, False]


class TestPosition:
    def test_seen_messages_are_not_repeated(self) -> None:
        seen = track()
        assert offsets(seen.accept(run(1, b"a", b"b"))) == [1, 2]
        assert seen.accept(run(1, b"a")) == []
        assert seen.accept(run(1, b"a", b"b")) == []
        assert offsets(seen.accept(run(2, b"b", b"c", b"d"))) == [3, 4]

    def test_request_continues_after_the_last_message(self) -> None:
        seen = track()
        seen.accept(run(1, b"a", b"b"))
        assert seen.request().streams == {"s": Position("e", 2)}

    def test_request_continues_at_the_tip_without_messages(self) -> None:
        assert track(tip=8).request().streams == {"s": Position("e", 8)}

    def test_request_reads_all_history_of_a_stream_that_did_not_exist(self) -> None:
        assert track(epoch="").request().streams == {"s": BEFORE_ALL}

    def test_request_repeats_the_given_position_without_messages(self) -> None:
        assert track(Position("e", 3), tip=8).request().streams == {"s": Position("e", 3)}
        assert track(Position("", 0), tip=8).request().streams == {"s": BEFORE_ALL}

    def test_offset_without_an_epoch_is_an_epoch_change(self) -> None:
        lost = track(Position("", 9), tip=3)
        assert lost.request().streams == {"s": Position("", 9)}
        gaps = lost.rejected(missing("epoch_changed", "e", 0))
        assert gaps == [Gap("s", "epoch_changed", Position("", 9), "e", 1, 3)]
        assert offsets(lost.accept(run(1, b"a"))) == [1]

    def test_without_a_start_position_is_live(self) -> None:
        assert KeyTrack("s").request().streams == {}


class TestGaps:
    def test_have_the_position_where_the_stream_continues(self, subtests: pytest.Subtests) -> None:
        cases = [
            "trimmed",
            "epoch_changed",
            "ahead",
            "dropped",
        ]
        for word in cases:
            with subtests.test(reason=word):
                resumed = track(Position("e", 1), tip=9)
                gaps = resumed.rejected(missing(word, "e", 5))
                assert gaps == [Gap("s", word, Position("e", 1), "e", 6, 9)]
                assert repr(gaps) == repr([Gap("s", word, Position("e", 1), "e", 6, 9)]), (
                    "plain text, because programs print it"
                )
                assert offsets(resumed.accept(run(6, b"x"))) == [6]

    def test_without_missing_messages_are_not_reported(self) -> None:
        assert track(Position("e", 5), tip=9).rejected(missing("", "e", 5)) == []

    def test_are_detected_without_a_gap_frame(self) -> None:
        jumped = track()
        jumped.accept(run(1, b"a"))
        gap, message = jumped.accept(run(4, b"d"))
        assert gap == Gap("s", "", Position("e", 1), "e", 4)
        assert isinstance(gap, Gap)
        assert gap.missed == 2
        assert offsets([message]) == [4]
        (gap, _) = jumped.accept(run(1, b"z", epoch=b"f"))
        assert repr(gap) == repr(Gap("s", "epoch_changed", Position("e", 4), "f", 1))

    def test_of_an_ephemeral_stream_are_reported_after_each_reconnect(self, subtests: pytest.Subtests) -> None:
        for start in [None, Position("", 0)]:
            for messages in [0, 1]:
                with subtests.test(start=start, messages=messages):
                    ephemeral = KeyTrack("s", start)
                    assert ephemeral.began(tips()) == []
                    for _ in range(2):
                        for _message in range(messages):
                            ephemeral.accept(run(0, b"x"))
                        assert ephemeral.began(tips()) == [Gap("s", DISCONNECTED, Position("", 0))]

    def test_are_not_reported_if_the_stream_resumes(self) -> None:
        silent = track(tip=4)
        silent.accept(run(0, b"a transient one"))
        assert silent.began(tips("e", 4)) == []
        created_meanwhile = track(epoch="")
        assert created_meanwhile.request().streams == {"s": BEFORE_ALL}
        assert created_meanwhile.began(tips("e", 2)) == []
        assert offsets(created_meanwhile.accept(run(1, b"a", b"b"))) == [1, 2]

    def test_of_messages_without_positions_have_no_new_position(self, subtests: pytest.Subtests) -> None:
        reasons = ["trimmed", "dropped"]
        for messages in [0, 1]:
            for word in reasons:
                with subtests.test(reason=word, messages=messages):
                    ephemeral = track(epoch="")
                    for _ in range(messages):
                        ephemeral.accept(run(0, b"x"))
                    for _ in range(2):
                        assert ephemeral.rejected(missing(word)) == [Gap("s", word, Position("", 0))]
                    placed = track(tip=4)
                    assert placed.rejected(missing(word)) == [Gap("s", word, Position("e", 4))]
                    assert offsets(placed.accept(run(5, b"x"))) == [5]

    def test_of_a_lost_stream_restart_at_its_beginning(self) -> None:
        lost = track(Position("e", 5), epoch="")
        assert lost.rejected(GONE) == [Gap("s", "epoch_changed", Position("e", 5))]
        assert offsets(lost.accept(run(1, b"a", epoch=b"f"))) == [1]
        assert lost.request().streams == {"s": Position("f", 1)}

    def test_of_a_lost_stream_are_reported_once_if_its_new_epoch_is_complete(self) -> None:
        for last in (0, 2):
            lost = track(Position("e", 5), epoch="")
            lost.rejected(GONE)
            gaps = [Gap("s", "epoch_changed", Position("e", 5), "f", last + 1)]
            assert lost.rejected(missing("epoch_changed", "f", last)) == gaps[:last]
            assert offsets(lost.accept(run(last + 1, b"a", epoch=b"f"))) == [last + 1]

    def test_of_a_lost_stream_leave_the_position(self) -> None:
        """The answer to a request from there reports whether messages are missing."""
        lost = track(Position("e", 5), epoch="")
        lost.rejected(GONE)
        assert lost.request().streams == {"s": Position("e", 5)}
        assert lost.began(tips("g", 3)) == []
        (gap,) = lost.rejected(missing("epoch_changed", "g", 0))
        assert gap == Gap("s", "epoch_changed", Position("e", 5), "g", 1, 3)


class TestSince:
    """The protocol has no requests by time: the client filters."""

    SINCE = 10.0
    OLD, NEW = 9_000_000, 10_000_000

    def test_skips_older_messages_up_to_the_first_newer_one(self) -> None:
        by_time = track(since=self.SINCE, tip=4)
        assert by_time.accept(run(1, b"a", at=self.OLD)) == []
        assert offsets(by_time.accept(run(2, b"b", at=self.NEW))) == [2]
        assert offsets(by_time.accept(run(3, b"c", at=self.OLD))) == [3]

    def test_resumes_after_the_last_message_after_a_lost_connection(self) -> None:
        by_time = track(since=self.SINCE, tip=4)
        by_time.accept(run(1, b"a", b"b", at=self.OLD))
        assert by_time.request().streams == {"s": Position("e", 2)}

    def test_reports_a_gap_only_if_wanted_messages_may_be_missing(self) -> None:
        trimmed = missing("trimmed", "e", 2)
        harmless = track(since=self.SINCE, tip=4)
        assert harmless.rejected(trimmed) == []
        assert harmless.accept(run(3, b"c", at=self.OLD)) == []
        assert offsets(harmless.accept(run(4, b"d", at=self.NEW))) == [4]
        harmful = track(since=self.SINCE, tip=4)
        assert harmful.rejected(trimmed) == []
        gap, message = harmful.accept(run(3, b"c", at=self.NEW))
        assert gap == Gap("s", "trimmed", Position("", 0), "e", 3, 4)
        assert offsets([message]) == [3]

    def test_reports_a_gap_if_no_messages_are_left(self) -> None:
        assert len(track(since=self.SINCE, tip=4).rejected(missing("trimmed", "e", 4))) == 1

    def test_yields_live_messages_with_an_older_time(self) -> None:
        assert offsets(track(since=self.SINCE, tip=4).accept(run(5, b"e", at=self.OLD))) == [5]


class TestPrefix:
    def test_yields_messages_with_the_name_of_their_stream(self) -> None:
        prefix = PrefixTrack("s")
        assert prefix.request() == HistoryRequest()
        assert prefix.began(tips()) == []
        (message,) = prefix.accept(run(7, b"x"))
        assert isinstance(message, BrokyMessage)
        assert (message.stream, message.offset, message.replayed) == ("s", 7, False)

    def test_reports_a_gap_after_a_reconnect(self) -> None:
        prefix = PrefixTrack("s")
        prefix.began(tips())
        assert prefix.began(tips()) == [Gap("s", DISCONNECTED)]
        assert prefix.rejected(missing("dropped")) == [Gap("s", "dropped")]
