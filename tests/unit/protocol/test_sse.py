"""Server-sent events as written by the server and parsed by a browser."""

import json
import re
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model import closing as closings
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import Member, PresencePage
from ropewalk.protocol.event_ids import parse_event_id, subscription_key
from ropewalk.protocol.sse import NEVER, SseCodec

GET = SseCodec(unwrap=True, raw=False)
POST = SseCodec(unwrap=False, raw=False)
RAW = SseCodec(unwrap=True, raw=True)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


class Event(NamedTuple):
    kind: str
    data: str
    id: str | None


def read(text: bytes) -> list[Event]:
    """Parse a stream as an EventSource does by the HTML standard."""
    events: list[Event] = []
    data: list[str] = []
    kind, seen = "", None
    *lines, rest = re.split(r"\r\n|\r|\n", text.decode())
    assert rest == "", "the last event is complete"
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            events += [Event(kind, "\n".join(data), seen)] if data else []
            kind, data, seen = "", [], None
        elif name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id":
            seen = value
    return events


def registered(payload: bytes, stream: str = "chat", broadcast_type: str = "") -> Registered:
    return Registered(stream, payload, 100.0, "e1", 7, broadcast_type=broadcast_type)


def sent(codec: SseCodec, message: Registered) -> bytes:
    return codec.message(codec.head('{"channel":"C"}'), message)


# --- data messages ----------------------------------------------------------------------------------------------------


def test_get_receives_the_message_with_its_position_as_id() -> None:
    assert sent(GET, registered(b'{"n":1}')) == b'data: {"n":1}\nid: 7/e1/chat\n\n'


def test_get_receives_a_string_as_lines_of_text() -> None:
    assert sent(GET, registered(b'"one\\ntwo\\r\\n\\u00e9"')) == "data: one\ndata: two\ndata: é\nid: 7/e1/chat\n\n".encode()


def test_empty_string_is_an_event_with_empty_data() -> None:
    assert read(sent(GET, registered(b'""'))) == [Event("", "", "7/e1/chat")]


def test_multi_line_json_stays_the_same_json() -> None:
    (event,) = read(sent(GET, registered(b'{"a":\r\n[1,\n2,\r3]}')))
    assert json.loads(event.data) == {"a": [1, 2, 3]}


def test_post_receives_the_whole_object() -> None:
    (event,) = read(sent(POST, registered(b"12345678901234567890")))
    assert event.kind == ""
    assert (
        event.data
        == '{"identifier":"{\\"channel\\":\\"C\\"}","message":12345678901234567890,"stream_id":"chat","epoch":"e1","offset":7}'
    )


def test_transient_message_has_no_id() -> None:
    assert sent(GET, Registered("chat", b"1", 100.0)) == b"data: 1\n\n"


def test_broadcast_type_is_the_event_name_of_the_whole_object(subtests: pytest.Subtests) -> None:
    rows: list[SseCodec] = [GET, POST]
    for codec in rows:
        with subtests.test(codec=codec):
            (event,) = read(sent(codec, registered(b'"x"', broadcast_type="alert")))
            assert event.kind == "alert"
            assert event.id == "7/e1/chat"
            assert json.loads(event.data)["message"] == "x"


# --- typed messages ---------------------------------------------------------------------------------------------------

GAP = Gap("chat", GapReason.TRIMMED, "e1", 5, 9)
PAGE = PresencePage("chat", 1, (Member("42", b'{"name":"Bo"}'),))


def typed(codec: SseCodec) -> dict[str, bytes]:
    return {
        "welcome": codec.welcome("s1", None),
        "confirm_subscription": codec.confirm_subscription("i"),
        "reject_subscription": codec.reject_subscription("i"),
        "confirm_history": codec.confirm_history("i"),
        "reject_history": codec.reject_history("i", [GAP]),
        "presence": codec.presence("i", PAGE, True),
        "ping": codec.ping(1694041735),
        "pong": codec.pong(),
        "disconnect": codec.disconnect(closings.SERVER_RESTART),
        "alert": sent(codec, registered(b"1", broadcast_type="alert")),
    }


def test_typed_message_is_an_event_of_its_type_with_the_full_json(subtests: pytest.Subtests) -> None:
    rows: list[SseCodec] = [GET, POST]
    for codec in rows:
        with subtests.test(codec=codec):
            for kind, text in typed(codec).items():
                (event,) = read(text)
                assert event.kind == kind
                assert json.loads(event.data)["type"] == kind


def test_raw_omits_typed_messages_and_keeps_data() -> None:
    assert [event for text in typed(RAW).values() for event in read(text)] == []
    assert sent(RAW, registered(b"1")) == b"data: 1\nid: 7/e1/chat\n\n"


def test_gap_has_the_stream_and_reason() -> None:
    (event,) = read(GET.reject_history("i", [GAP]))
    assert json.loads(event.data)["streams"] == {"chat": {"reason": "trimmed", "epoch": "e1", "oldest": 5, "tip": 9}}


def test_only_a_permanent_disconnect_disables_reconnects() -> None:
    assert b"retry" not in GET.disconnect(closings.SERVER_RESTART)
    assert f"\nretry: {NEVER}\n\n".encode() in GET.disconnect(closings.UNAUTHORIZED)


TIPS = [("chat", Position("e1", 7)), ("new", Position("", 0))]


def test_confirmation_has_the_live_positions_and_the_reference_text(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["confirm_subscription", "confirm_history"]
    for kind in rows:
        with subtests.test(kind=kind):
            text = {"confirm_subscription": GET.confirm_subscription, "confirm_history": GET.confirm_history}[kind]("i", TIPS)
            data = f'{{"type":"{kind}","identifier":"i"}}'
            assert text == f"event: {kind}\ndata: {data}\nid: 7/e1/chat\nid: 0//new\n\n".encode()


def test_gap_has_the_position_of_its_end() -> None:
    assert b"\nid: 4/e1/chat\n" in GET.reject_history("i", [GAP])


def test_client_ahead_of_the_stream_continues_from_the_tip() -> None:
    assert b"\nid: 9/e1/chat\n" in GET.reject_history("i", [Gap("chat", GapReason.AHEAD, "e1", 5, 9)])


@pytest.mark.parametrize("reason", [GapReason.DROPPED, GapReason.TRIMMED, GapReason.EPOCH_CHANGED])
def test_gap_without_an_epoch_moves_no_position(reason: GapReason) -> None:
    assert b"id:" not in GET.reject_history("i", [Gap("chat", reason, "", 1, 0)])


def test_confirmation_has_the_positions_for_clients_that_ask_for_them() -> None:
    codec = SseCodec(unwrap=False, raw=False, positions=True)
    told = codec.confirm_history("i", TIPS)
    assert b'"streams":{"chat":{"epoch":"e1","tip":7},"new":{"epoch":"","tip":0}}' in told
    assert codec.reports_positions
    assert not POST.reports_positions


def test_raw_keeps_ids_and_retry_lines() -> None:
    assert RAW.confirm_subscription("i", TIPS[:1]) == b"id: 7/e1/chat\n\n"
    assert sent(RAW, registered(b"1", broadcast_type="alert")) == b"id: 7/e1/chat\n\n"
    assert RAW.disconnect(closings.UNAUTHORIZED) == f"retry: {NEVER}\n\n".encode()
    assert RAW.disconnect(closings.SERVER_RESTART) == b""


def test_positions_name_their_subscription_if_there_are_several() -> None:
    codec = SseCodec(unwrap=False, raw=False, keyed=True)
    key = subscription_key('{"channel":"C"}')
    (event,) = read(sent(codec, registered(b"1")))
    assert event.id == f"{key}:7/e1/chat"
    assert json.loads(event.data)["identifier"] == '{"channel":"C"}'
    assert f"id: {key}:0//new\n".encode() in codec.confirm_subscription('{"channel":"C"}', TIPS)


# --- arbitrary text ---------------------------------------------------------------------------------------------------


@given(TEXT, TEXT.filter(bool), TEXT)
def test_text_cannot_inject_events_or_lines(text: str, stream: str, kind: str) -> None:
    message = registered(json.dumps(text).encode(), stream, broadcast_type=kind)
    for codec in (GET, POST):
        (event,) = read(sent(codec, message))
        assert event.id is not None
        assert event.id.isascii()
        assert parse_event_id(event.id).positions == {stream: Position("e1", 7)}


@given(TEXT)
def test_string_is_read_back_with_normalized_line_endings(text: str) -> None:
    (event,) = read(sent(GET, registered(json.dumps(text).encode())))
    assert event.data == re.sub(r"\r\n|\r", "\n", text)


def test_last_event_id_is_parsed_back_to_the_stream(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["chat/1/2", ";a;b", "50%", "a%2Fb", "a b", " edge ", "é/ü", "line\nbreak", "tab\t", "nul\0"]
    for stream in rows:
        with subtests.test(stream=stream):
            (event,) = read(sent(GET, registered(b"1", stream)))
            assert event.id is not None
            assert parse_event_id(event.id.strip()).positions == {stream: Position("e1", 7)}


def test_transmission_is_a_typed_event_or_a_plain_message() -> None:
    typed, message, odd = '{"type":"note","x":1}', '{"identifier":"i","message":"hi\\nthere"}', '["no object"]'

    assert read(GET.transmission(typed)) == [Event("note", typed, None)]
    assert read(GET.transmission(message)) == [Event("", "hi\nthere", None)]
    assert read(POST.transmission(message)) == [Event("", message, None)]
    assert read(GET.transmission(odd)) == [Event("", odd, None)]
    assert RAW.transmission(typed) == b""
