"""Event ids that hold all positions of a connection: writing and parsing."""

import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.errors import BadRequest
from ropewalk.model.messages import Position
from ropewalk.protocol.event_ids import MAX_BYTES, PIECE_BYTES, EventIds, LastEventId, id_line, parse_event_id, subscription_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NAMES = st.sampled_from(["a", "b;c", "d/e", "100%", "ü x", "new\nline"])


def key(identifier: str) -> bytes:
    return subscription_key(identifier).encode() + b":"


def event(*lines: bytes) -> bytes:
    return b"data: x\n" + b"".join(lines) + b"\n"


def ids(streams: Mapping[str, Sequence[str]], known: Mapping[str, Mapping[str, Position]] | None = None) -> EventIds:
    return EventIds(streams, known or {}, keyed=len(streams) > 1)


def stamped(tracker: EventIds, *events: bytes) -> list[str]:
    """The ids of the events that have one."""
    return [found.decode() for found in re.findall(rb"^id: (.*)$", b"".join(tracker.stamped(b"".join(events))), re.M)]


# --- writing ----------------------------------------------------------------------------------------------------------


def test_id_of_a_single_stream_equals_that_of_the_reference_server() -> None:
    tracker = ids({"i": ["chat"]})
    assert tracker.plain
    assert b"".join(tracker.stamped(event(id_line("chat", "e1", 7)))) == b"data: x\nid: 7/e1/chat\n\n"


def test_each_event_has_the_current_positions_of_all_streams() -> None:
    tracker = ids({"i": ["a", "b"]})
    assert not tracker.plain
    events = [event(id_line("a", "e1", 3), id_line("b", "e2", 9)), event(id_line("b", "e2", 10)), event(id_line("a", "e1", 4))]
    assert stamped(tracker, *events) == [";3/e1/a;9/e2/b", ";3/e1/a;10/e2/b", ";4/e1/a;10/e2/b"]


def test_event_without_a_position_is_unchanged() -> None:
    tracker = ids({"i": ["a", "b"]})
    text = b"data: id: 1/e/a\ndata:\n\n:\n\nevent: ping\ndata: 1\n\n"
    assert b"".join(tracker.stamped(text)) == text


def test_event_with_only_an_id_is_kept() -> None:
    assert b"".join(ids({"i": ["a", "b"]}).stamped(id_line("a", "e1", 3) + b"\n")) == b"id: 3/e1/a\n\n"


def test_positions_of_the_client_stand_until_their_stream_advances() -> None:
    tracker = ids({"i": ["a", "b"]}, {"i": {"a": Position("e1", 3), "b": Position("e2", 9), "gone": Position("e", 1)}})
    assert stamped(tracker, event(id_line("a", "e1", 4))) == [";4/e1/a;9/e2/b"]


def test_wrong_position_of_the_client_is_corrected() -> None:
    tracker = ids({"i": ["a"]}, {"i": {"a": Position("e1", 500)}})
    assert stamped(tracker, event(id_line("a", "e1", 3))) == ["3/e1/a"]


def test_position_never_moves_back_within_its_epoch() -> None:
    tracker = ids({"i": ["a"]})
    events = [event(id_line("a", "e1", 8)), event(id_line("a", "e1", 5)), event(id_line("a", "e2", 1))]
    assert stamped(tracker, *events) == ["8/e1/a", "8/e1/a", "1/e2/a"]


def test_stream_of_two_subscriptions_has_two_entries_while_they_differ() -> None:
    tracker = ids({"x": ["chat"], "y": ["chat"]})
    first, second = event(id_line("chat", "e1", 7, key("x"))), event(id_line("chat", "e1", 7, key("y")))
    uneven, even = stamped(tracker, first, second)
    assert uneven == f";{subscription_key('x')}:7/e1/chat"
    assert even == "7/e1/chat"
    (uneven,) = stamped(tracker, event(id_line("chat", "e1", 8, key("y"))))
    last = parse_event_id(uneven)
    assert last.of("x") == {"chat": Position("e1", 7)}
    assert last.of("y") == {"chat": Position("e1", 8)}


def test_long_ids_are_written_in_pieces_that_end_between_lines() -> None:
    names = [f"stream/{number:03}" for number in range(150)]
    tracker = ids({"i": names}, {"i": {name: Position("epoch", 10**12) for name in names}})
    blob = b"".join(event(id_line(names[0], "epoch", offset)) for offset in range(10**12, 10**12 + 100))
    pieces = list(tracker.stamped(blob))
    assert len(pieces) > 3
    assert max(map(len, pieces)) < PIECE_BYTES + MAX_BYTES + 100
    found = re.findall(rb"^id: (.*)$", b"".join(pieces), re.M)
    assert [parse_event_id(text.decode()).positions[names[0]].offset for text in found] == list(range(10**12, 10**12 + 100))


@given(st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), NAMES, st.integers(0, 3)), max_size=40))
def test_each_id_can_resume_all_subscriptions(moves: list[tuple[str, str, int]]) -> None:
    streams = {identifier: ["a", "b;c", "d/e", "100%", "ü x", "new\nline"] for identifier in ("x", "y", "z")}
    tracker = ids(streams)
    model: dict[str, dict[str, Position]] = {identifier: {} for identifier in streams}
    for identifier, stream, step in moves:
        offset = model[identifier].get(stream, Position("e", 0)).offset + step
        model[identifier][stream] = Position("e", offset)
        (text,) = stamped(tracker, event(id_line(stream, "e", offset, key(identifier))))
        assert text.isascii()
        last = parse_event_id(text)
        assert {each: last.of(each) for each in streams} == model


# --- maximum length -----------------------------------------------------------------------------------------------------


@given(st.dictionaries(TEXT, st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=4))
def test_id_length_does_not_exceed_the_reported_bound(streams: dict[str, list[str]]) -> None:
    tracker = EventIds(streams, {}, keyed=True)
    bound = tracker.longest()
    for number, (identifier, names) in enumerate(streams.items()):
        for name in names:
            line = id_line(name, "e" * 16, 2**63 - 1 - number, key(identifier))
            (text,) = stamped(tracker, event(line))
            assert len(text) <= bound


# --- parsing ------------------------------------------------------------------------------------------------------------


def test_last_event_id_has_a_stream_and_a_position() -> None:
    assert parse_event_id("7/e1/chat/room/1") == LastEventId({"chat/room/1": Position("e1", 7)})
    assert parse_event_id("7/e1/a;b").positions == {"a;b": Position("e1", 7)}
    assert parse_event_id("0//chat").positions == {"chat": Position("", 0)}
    assert parse_event_id("") == LastEventId()


def test_last_event_id_can_have_several_streams() -> None:
    assert parse_event_id(";7/e1/a%3Bb;0//new").positions == {"a;b": Position("e1", 7), "new": Position("", 0)}


def test_malformed_last_event_id_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "7",
        "7/e1",
        "7/e1/",
        "7//chat",
        "/e1/chat",
        "x/e1/chat",
        "-7/e1/chat",
        "9223372036854775808/e1/chat",
        "１/e/s",
        "7/e/\udcff",
        ";",
        ";7/e1",
        ";7/e1/a;",
        ";7/e1/a;;8/e2/b",
        ";7/e1/a;x/e2/b",
        ";short:7/e1/a",
        ";7//a",
        ";9223372036854775808/e1/a",
        ";7/e/\udcff",
        "7/e/" + "x" * MAX_BYTES,
    ]
    for text in rows:
        with subtests.test(text=text), pytest.raises(BadRequest, match="Last-Event-ID"):
            parse_event_id(text)


@given(st.one_of(st.text(st.characters()), st.text(st.sampled_from("0123;:/%ab\n\udcff"))))
def test_any_last_event_id_is_parsed_or_refused(text: str) -> None:
    try:
        answer = parse_event_id(text)
    except BadRequest:
        return
    assert all(position.offset >= 0 for position in [*answer.positions.values(), *answer.own.values()])
