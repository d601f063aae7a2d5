"""The cable's JSON: decoded commands, and the exact bytes of replies."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model import commands
from ropewalk.model.closing import SERVER_RESTART
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.history import Gap, GapReason, HistoryRequest
from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import Member, PresencePage
from ropewalk.protocol import cable_json as wire

COMMANDS: list[tuple[str, commands.Command]] = [
    ('{"command":"subscribe","identifier":"i"}', commands.Subscribe("i")),
    (
        '{"command":"subscribe","identifier":"i","history":{"since":5,"streams":{"s":{"epoch":"e","offset":3}}},'
        '"presence":{"id":"42","info":{"n":1}}}',
        commands.Subscribe("i", HistoryRequest(5, {"s": Position("e", 3)}), Member("42", b'{"n":1}')),
    ),
    ('{"command":"subscribe","identifier":"i","history":{},"presence":null}', commands.Subscribe("i")),
    ('{"command":"subscribe","identifier":"i","history":{"since":0}}', commands.Subscribe("i")),
    ('{"command":"unsubscribe","identifier":"i"}', commands.Unsubscribe("i")),
    ('{"command":"message","identifier":"i","data":"{\\"a\\":1}"}', commands.Perform("i", '{"a":1}')),
    ('{"command":"history","identifier":"i","history":{"streams":{}}}', commands.History("i", HistoryRequest())),
    ('{"type":"history","identifier":"i","history":{"since":9}}', commands.History("i", HistoryRequest(9))),
    ('{"command":"whisper","identifier":"i","data":{"x": 1}}', commands.Whisper("i", b'{"x": 1}')),
    ('{"command":"presence","identifier":"i"}', commands.Presence("i")),
    ('{"command":"presence","identifier":"i","data":{"return_records":false}}', commands.Presence("i", False)),
    ('{"command":"presence","identifier":"i","data":{"after":"bo"}}', commands.Presence("i", True, "bo")),
    ('{"command":"presence","identifier":"i","data":null}', commands.Presence("i")),
    ('{"command":"join","identifier":"i","presence":{"id":"1"}}', commands.Join("i", Member("1"))),
    ('{"command":"leave","identifier":"i","presence":{"id":"1"}}', commands.Leave("i")),
    ('{"command":"ping"}', commands.Ping()),
    ('{"command":"pong","extra":[1,2]}', commands.Pong()),
]


def test_frame_is_decoded_to_its_command(subtests: pytest.Subtests) -> None:
    for frame, command in COMMANDS:
        with subtests.test(frame=frame, command=command):
            assert wire.decode(frame.encode()) == command


def test_well_formed_frame_without_a_valid_command_is_unusable(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        '{"command":"fly"}',
        "{}",
        '{"command":"message","identifier":"i","data":{"a":1}}',
        '{"command":"message","identifier":"i"}',
        '{"command":"join","identifier":"i"}',
        '{"command":"join","identifier":"i","presence":{"id":""}}',
        '{"command":"presence","identifier":"i","data":[1]}',
    ]
    for frame in rows:
        with subtests.test(frame=frame):
            assert isinstance(wire.decode(frame.encode()), commands.Unusable)


def test_malformed_frame_has_the_close_code_of_its_error(subtests: pytest.Subtests) -> None:
    rows: list[tuple[bytes, int]] = [
        (b"", 1007),
        (b"{", 1007),
        (b"\xff\xfe", 1007),
        (b'{"command":"whisper","data":"\xff"}', 1007),
        (b"[" * 5000 + b"]" * 5000, 1007),
        (b'{"command":"whisper","identifier":"i","data":' + b"[" * 5000 + b"]" * 5000 + b"}", 1007),
        (b"[]", 1003),
        (b'"subscribe"', 1003),
        (b'{"command":1}', 1003),
        (b'{"command":"subscribe","identifier":{"channel":"x"}}', 1003),
        (b'{"command":"subscribe","identifier":"i","history":{"streams":{"s":{"epoch":"e","offset":-1}}}}', 1003),
        (b'{"command":"subscribe","identifier":"i","history":{"since":"now"}}', 1003),
        (b'{"command":"join","identifier":"i","presence":{"id":42}}', 1003),
    ]
    for frame, code in rows:
        with subtests.test(frame=frame, code=code):
            with pytest.raises(MalformedFrame) as caught:
                wire.decode(frame)
            assert caught.value.code == code


@given(
    st.one_of(st.binary(max_size=200), st.recursive(st.none() | st.text(), st.lists).map(lambda it: json.dumps(it).encode()))
)
def test_any_input_is_a_command_or_a_malformed_frame(frame: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        wire.decode(frame)


def test_message_payload_is_not_reformatted() -> None:
    payload = b'{"big": 123456789012345678901234567890, "f": 1.10}'
    message = Registered("chat/1", payload, 0.0, "ep", 32)
    assert wire.message_json(wire.message_head('{"channel":"C"}'), message) == (
        b'{"identifier":"{\\"channel\\":\\"C\\"}","message":' + payload + b',"stream_id":"chat/1","epoch":"ep","offset":32}'
    )


def test_transient_message_has_no_position_and_typed_message_starts_with_its_type() -> None:
    assert wire.message_json(wire.message_head("i"), Registered("s", b"1", 0.0)) == b'{"identifier":"i","message":1}'
    typed = Registered("s", b"1", 0.0, broadcast_type="note")
    assert wire.message_json(wire.message_head("i"), typed) == b'{"type":"note","identifier":"i","message":1}'


def test_restored_welcome_always_lists_identifiers() -> None:
    assert wire.welcome_json("a", None) == b'{"type":"welcome","sid":"a"}'
    assert wire.welcome_json("a", []) == b'{"type":"welcome","sid":"a","restored":true,"restored_ids":[]}'


def test_rejected_history_has_the_reason_of_each_stream() -> None:
    gap = Gap("s", GapReason.TRIMMED, "e", 5, 9)
    assert json.loads(wire.reject_history_json("i", [gap])) == {
        "type": "reject_history",
        "identifier": "i",
        "reason": "trimmed",
        "streams": {"s": {"reason": "trimmed", "epoch": "e", "oldest": 5, "tip": 9}},
    }
    assert wire.reject_history_json("i", []) == b'{"type":"reject_history","identifier":"i"}'


def test_trimmed_history_by_time_is_confirmed_with_a_reason() -> None:
    gap = Gap("s", GapReason.TRIMMED, "e", 5, 9)
    assert wire.confirm_trimmed_json("i", [gap]) == (
        b'{"type":"confirm_history","identifier":"i","reason":"trimmed",'
        b'"streams":{"s":{"reason":"trimmed","epoch":"e","oldest":5,"tip":9}}}'
    )


def test_confirmation_has_type_and_identifier_and_optional_positions() -> None:
    assert wire.about_json("confirm_subscription", "i") == b'{"type":"confirm_subscription","identifier":"i"}'
    assert wire.about_json("confirm_history", "i") == b'{"type":"confirm_history","identifier":"i"}'
    assert wire.about_json("confirm_subscription", "i", [("s", Position("e", 3))]) == (
        b'{"type":"confirm_subscription","identifier":"i","streams":{"s":{"epoch":"e","tip":3}}}'
    )


def test_presence_replies_have_the_wire_format() -> None:
    page = PresencePage("s", 2, (Member("1", b'{"n": 1}'), Member("2")))
    assert wire.presence_json("i", page, True) == (
        b'{"type":"presence","identifier":"i","message":{"type":"info","total":2,'
        b'"records":[{"info":{"n": 1},"id":"1"},{"id":"2"}]}}'
    )
    partial = PresencePage("s", 9, (Member("1"),), next_id="1")
    assert wire.presence_json("i", partial, True) == (
        b'{"type":"presence","identifier":"i","message":{"type":"info","total":9,"records":[{"id":"1"}],"next":"1"}}'
    )
    assert wire.presence_json("i", None, True) == b'{"type":"presence","identifier":"i","message":{"type":"error","total":0}}'


@given(st.lists(st.builds(Member, st.text(min_size=1), st.sampled_from([b"", b'{"n":1}'])), max_size=30), st.integers(0, 600))
def test_page_cut_to_fit_has_a_cursor_to_the_rest(members: list[Member], room: int) -> None:
    page = PresencePage("s", len(members), tuple(members))
    cut = wire.fitting(page, room)
    assert cut.members == page.members[: len(cut.members)]
    assert len(cut.members) >= min(1, len(members))
    complete = len(cut.members) == len(members)
    assert cut.next_id == (None if complete else cut.members[-1].id)
    if len(cut.members) > 1:
        empty = len(wire.presence_json("i", PresencePage("s", len(members)), True)) + len(',"records":[]')
        assert len(wire.presence_json("i", PresencePage("s", len(members), cut.members), True)) - empty <= room


def test_ping_and_disconnect_have_the_wire_format() -> None:
    assert wire.ping_json(1694041735) == b'{"type":"ping","message":1694041735}'
    assert wire.disconnect_json(SERVER_RESTART) == b'{"type":"disconnect","reason":"server_restart","reconnect":true}'
