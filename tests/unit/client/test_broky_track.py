"""What a subscription over TCP yields, run by run."""

import pytest

from ropewalk.client.broky_track import DISCONNECTED, BrokyTrack, PrefixTrack
from ropewalk.client.events import UNREADABLE, BrokyMessage, Event, Gap, Message
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Format, Match, Reason, Run, Subscribed
from ropewalk.protocol.broky.runs import run_of


def run(offset: int, *payloads: bytes, epoch: bytes = b"e", at: int = 7, format: Format = Format.BYTES) -> Run:
    made = run_of(b"s", payloads)
    return Run(0, made.count, offset, at, b"s", b"", made.sizes, (), b"", epoch if offset else b"", made.payload, format)


def offsets(events: list[Event]) -> list[int]:
    assert all(isinstance(event, Message) for event in events), events
    return [event.offset for event in events if isinstance(event, Message)]


def track(position: Position | None = None, since: float | None = None, tip: int = 0, epoch: bytes = b"e") -> BrokyTrack:
    """Subscribed, where the stream stands at `tip`."""
    made = BrokyTrack("s", position, since)
    made.began(Subscribed(1, epoch, tip))
    return made


class TestMessages:
    def test_carry_bytes_and_what_broky_tells_of_them(self) -> None:
        (message,) = track().accept(run(1, b"\xff"))
        assert message == BrokyMessage(b"\xff", "s", "e", 1, payload=b"\xff", ts_broker=7)
        assert isinstance(message, BrokyMessage)
        assert (message.key, message.position, message.format) == (b"s", Position("e", 1), Format.BYTES)

    def test_carry_data_where_their_format_is_json(self) -> None:
        (message,) = track().accept(run(1, b'{"a": 1}', format=Format.JSON))
        assert isinstance(message, BrokyMessage)
        assert (message.data, message.payload) == ({"a": 1}, b'{"a": 1}')

    def test_carry_times_and_uids_of_their_producers(self) -> None:
        sent = Run(0, 2, 1, 7, b"s", b"", (1, 0), (8, 9), b"a" * 20 + b"b" * 20, b"e", b"x")
        first, second = track().accept(sent)
        assert isinstance(first, BrokyMessage)
        assert isinstance(second, BrokyMessage)
        assert (first.payload, first.ts_producer, first.uid) == (b"x", 8, b"a" * 20)
        assert (second.payload, second.ts_producer, second.uid, second.offset) == (b"", 9, b"b" * 20, 2)

    def test_without_a_position_are_all_yielded(self) -> None:
        fresh = track(epoch=b"")
        for _ in range(2):
            assert offsets(fresh.accept(run(0, b"a", b"b"))) == [0, 0]
        assert fresh.position == Position("", 0)

    def test_that_cannot_be_decoded_are_gaps_of_one(self) -> None:
        deep = b"[" * 200 + b"]" * 200
        events = track().accept(run(1, b"1", deep, b"{", b"4", format=Format.JSON))
        assert offsets([events[0], events[3]]) == [1, 4]
        assert events[1:3] == [
            Gap("s", UNREADABLE, Position("e", 1), "e", 3, 2),
            Gap("s", UNREADABLE, Position("e", 2), "e", 4, 3),
        ]

    def test_up_to_the_tip_of_the_subscription_are_replayed(self) -> None:
        resumed = track(Position("e", 1), tip=2)
        events = [*resumed.accept(run(2, b"a")), *resumed.accept(run(3, b"b"))]
        assert [event.replayed for event in events if isinstance(event, Message)] == [True, False]


class TestWhatWasSeen:
    def test_comes_once(self) -> None:
        seen = track()
        assert offsets(seen.accept(run(1, b"a", b"b"))) == [1, 2]
        assert seen.accept(run(1, b"a")) == []
        assert seen.accept(run(1, b"a", b"b")) == []
        assert offsets(seen.accept(run(2, b"b", b"c", b"d"))) == [3, 4]

    def test_is_what_is_asked_for_next(self) -> None:
        seen = track()
        seen.accept(run(1, b"a", b"b"))
        assert seen.request(5, b"s") == frames.Subscribe(5, b"s", epoch=b"e", offset=2)

    def test_is_where_the_stream_stood_if_nothing_came(self) -> None:
        assert track(tip=8).request(5, b"s") == frames.Subscribe(5, b"s", epoch=b"e", offset=8)

    def test_is_nothing_of_a_stream_that_did_not_exist(self) -> None:
        assert track(epoch=b"").request(5, b"s") == frames.Subscribe(5, b"s", history=True)

    def test_is_what_the_program_has_until_something_comes(self) -> None:
        assert track(Position("e", 3), tip=8).request(5, b"s") == frames.Subscribe(5, b"s", epoch=b"e", offset=3)
        assert track(Position("", 0), tip=8).request(5, b"s") == frames.Subscribe(5, b"s", history=True)

    def test_is_of_no_epoch_that_there_is_where_only_an_offset_is_known(self) -> None:
        lost = track(Position("", 9), tip=3)
        assert lost.request(5, b"s") == frames.Subscribe(5, b"s", epoch=b"?", offset=9)
        told = lost.missing(frames.Gap(b"s", Reason.EPOCH_CHANGED, b"e", 0, 0))
        assert told == [Gap("s", "epoch_changed", Position("", 9), "e", 1, 3)]
        assert offsets(lost.accept(run(1, b"a"))) == [1]

    def test_begins_live_without_a_wish(self) -> None:
        assert BrokyTrack("s").request(5, b"s") == frames.Subscribe(5, b"s")


class TestGaps:
    @pytest.mark.parametrize(
        ("reason", "word"),
        [
            (Reason.TRIMMED, "trimmed"),
            (Reason.EPOCH_CHANGED, "epoch_changed"),
            (Reason.AHEAD, "ahead"),
            (Reason.SLOW, "dropped"),
        ],
    )
    def test_are_told_with_where_the_stream_goes_on(self, reason: Reason, word: str) -> None:
        resumed = track(Position("e", 1), tip=9)
        told = resumed.missing(frames.Gap(b"s", reason, b"e", 0, 5))
        assert told == [Gap("s", word, Position("e", 1), "e", 6, 9)]
        assert repr(told) == repr([Gap("s", word, Position("e", 1), "e", 6, 9)]), "programs print it: plain text"
        assert offsets(resumed.accept(run(6, b"x"))) == [6]

    def test_of_nothing_are_not_told(self) -> None:
        assert track(Position("e", 5), tip=9).missing(frames.Gap(b"s", Reason.NONE, b"e", 0, 5)) == []

    def test_that_nobody_told_are_told_all_the_same(self) -> None:
        jumped = track()
        jumped.accept(run(1, b"a"))
        gap, message = jumped.accept(run(4, b"d"))
        assert gap == Gap("s", "", Position("e", 1), "e", 4)
        assert isinstance(gap, Gap)
        assert gap.missed == 2
        assert offsets([message]) == [4]
        (gap, _) = jumped.accept(run(1, b"z", epoch=b"f"))
        assert repr(gap) == repr(Gap("s", "epoch_changed", Position("e", 4), "f", 1))

    @pytest.mark.parametrize("before", [0, 1])
    @pytest.mark.parametrize("wish", [None, Position("", 0)])
    def test_of_a_stream_without_positions_are_told_whenever_it_is_followed_again(
        self, before: int, wish: Position | None
    ) -> None:
        ephemeral = BrokyTrack("s", wish)
        assert ephemeral.began(Subscribed(1)) == []
        for ref in (2, 3):
            for _ in range(before):
                ephemeral.accept(run(0, b"x"))
            assert ephemeral.began(Subscribed(ref)) == [Gap("s", DISCONNECTED, Position("", 0))]

    def test_of_a_stream_with_positions_are_not_told_when_it_can_go_on(self) -> None:
        silent = track(tip=4)
        silent.accept(run(0, b"a transient one"))
        assert silent.began(Subscribed(2, b"e", 4)) == []
        begun_meanwhile = track(epoch=b"")
        assert begun_meanwhile.request(2, b"s") == frames.Subscribe(2, b"s", history=True)
        assert begun_meanwhile.began(Subscribed(2, b"e", 2)) == []
        assert offsets(begun_meanwhile.accept(run(1, b"a", b"b"))) == [1, 2]

    @pytest.mark.parametrize(("reason", "word"), [(Reason.TRIMMED, "trimmed"), (Reason.SLOW, "dropped")])
    @pytest.mark.parametrize("before", [0, 1])
    def test_of_messages_without_positions_are_told_and_say_nothing_of_positions(
        self, reason: Reason, word: str, before: int
    ) -> None:
        ephemeral = track(epoch=b"")
        for _ in range(before):
            ephemeral.accept(run(0, b"x"))
        for _ in range(2):
            assert ephemeral.missing(frames.Gap(b"s", reason)) == [Gap("s", word, Position("", 0))]
        placed = track(tip=4)
        assert placed.missing(frames.Gap(b"s", reason)) == [Gap("s", word, Position("e", 4))]
        assert offsets(placed.accept(run(5, b"x"))) == [5]

    def test_of_a_stream_that_is_unknown_now_lead_to_its_beginning(self) -> None:
        lost = track(Position("e", 5), epoch=b"")
        assert lost.missing(frames.Gap(b"s", Reason.EPOCH_CHANGED, b"", 1, 0)) == [
            Gap("s", "epoch_changed", Position("e", 5), None, 1, 0)
        ]
        assert lost.request(2, b"s") == frames.Subscribe(2, b"s", history=True)
        assert offsets(lost.accept(run(1, b"a", epoch=b"f"))) == [1]


class TestSince:
    """The wire has no requests by time."""

    SINCE = 10.0
    OLD, NEW = 9_000_000, 10_000_000

    def test_leaves_out_what_is_older_and_yields_all_from_the_first_that_is_not(self) -> None:
        by_time = track(since=self.SINCE, tip=4)
        assert by_time.accept(run(1, b"a", at=self.OLD)) == []
        assert offsets(by_time.accept(run(2, b"b", at=self.NEW))) == [2]
        assert offsets(by_time.accept(run(3, b"c", at=self.OLD))) == [3]

    def test_asks_from_what_it_has_seen_after_a_loss(self) -> None:
        by_time = track(since=self.SINCE, tip=4)
        by_time.accept(run(1, b"a", b"b", at=self.OLD))
        assert by_time.request(2, b"s") == frames.Subscribe(2, b"s", epoch=b"e", offset=2)

    def test_tells_a_gap_only_if_what_is_missing_may_be_wanted(self) -> None:
        trimmed = frames.Gap(b"s", Reason.TRIMMED, b"e", 0, 2)
        harmless = track(since=self.SINCE, tip=4)
        assert harmless.missing(trimmed) == []
        assert harmless.accept(run(3, b"c", at=self.OLD)) == []
        assert offsets(harmless.accept(run(4, b"d", at=self.NEW))) == [4]
        harmful = track(since=self.SINCE, tip=4)
        assert harmful.missing(trimmed) == []
        gap, message = harmful.accept(run(3, b"c", at=self.NEW))
        assert gap == Gap("s", "trimmed", Position("", 0), "e", 3, 4)
        assert offsets([message]) == [3]

    def test_tells_a_gap_if_nothing_is_kept(self) -> None:
        assert len(track(since=self.SINCE, tip=4).missing(frames.Gap(b"s", Reason.TRIMMED, b"e", 0, 4))) == 1

    def test_yields_what_is_new_whatever_the_clocks_say(self) -> None:
        assert offsets(track(since=self.SINCE, tip=4).accept(run(5, b"e", at=self.OLD))) == [5]


class TestPrefix:
    def test_yields_whatever_comes_under_the_name_of_its_stream(self) -> None:
        prefix = PrefixTrack("s")
        assert prefix.request(3, b"s") == frames.Subscribe(3, b"s", Match.PREFIX)
        assert prefix.began(Subscribed(3)) == []
        (message,) = prefix.accept(run(7, b"x"))
        assert isinstance(message, BrokyMessage)
        assert (message.stream, message.offset, message.replayed) == ("s", 7, False)

    def test_says_that_what_came_meanwhile_is_missing(self) -> None:
        prefix = PrefixTrack("s")
        prefix.began(Subscribed(3))
        assert prefix.began(Subscribed(4)) == [Gap("s", DISCONNECTED)]
        assert prefix.missing(frames.Gap(b"s", Reason.SLOW)) == [Gap("s", "dropped")]
