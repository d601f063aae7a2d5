"""Server messages as decoded by the client."""

import pytest

from ropewalk.model.closing import TOO_SLOW
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Registered
from ropewalk.model.presence import Member, PresencePage
from ropewalk.protocol import cable_json
from ropewalk.protocol.server_messages import (
    Data,
    Goodbye,
    HistoryConfirmed,
    HistoryRejected,
    PresenceChanged,
    PresenceFailed,
    PresenceListed,
    ServerMessage,
    ServerPing,
    ServerPong,
    StreamGap,
    SubscriptionConfirmed,
    SubscriptionRefused,
    UnknownMessage,
    Welcome,
    decode,
)


def test_message_of_our_server_is_decoded(subtests: pytest.Subtests) -> None:
    rows: list[tuple[bytes, ServerMessage]] = [
        (cable_json.welcome_json("s1", None), Welcome("s1")),
        (cable_json.welcome_json("s1", []), Welcome("s1", True)),
        (cable_json.welcome_json("s1", ["i"]), Welcome("s1", True, ("i",))),
        (cable_json.disconnect_json(TOO_SLOW), Goodbye("too_slow", True)),
        (cable_json.ping_json(1694041735), ServerPing(1694041735.0)),
        (cable_json.ping_json(1694041735250), ServerPing(1694041735.25)),
        (cable_json.pong_json(), ServerPong()),
        (cable_json.about_json("confirm_subscription", "i"), SubscriptionConfirmed("i")),
        (cable_json.about_json("reject_subscription", "i"), SubscriptionRefused("i")),
        (cable_json.about_json("confirm_history", "i"), HistoryConfirmed("i")),
        (cable_json.presence_json("i", None, True), PresenceFailed("i")),
        (
            cable_json.presence_json("i", PresencePage("s", 2, (Member("a", b'{"n":1}'), Member("b"))), True),
            PresenceListed("i", 2, (Member("a", b'{"n":1}'), Member("b"))),
        ),
        (
            cable_json.reject_history_json("i", [Gap("s", GapReason.TRIMMED, "e", 5, 9)]),
            HistoryRejected("i", "trimmed", {"s": StreamGap("trimmed", "e", 5, 9)}),
        ),
        (
            cable_json.message_json(cable_json.message_head("i"), Registered("s", b'{"a":1}', 1.0, "e", 3)),
            Data("i", b'{"a":1}', "s", "e", 3),
        ),
        (
            cable_json.message_json(cable_json.message_head("i"), Registered("s", b"1", 1.0, broadcast_type="note")),
            Data("i", b"1", type="note"),
        ),
    ]
    for frame, message in rows:
        with subtests.test(frame=frame, message=message):
            assert decode(frame) == message


def test_messages_of_other_servers_with_missing_or_extra_fields_are_decoded(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, ServerMessage]] = [
        ('{"type":"welcome"}', Welcome()),
        ('{"type":"reject_history","identifier":"i"}', HistoryRejected("i")),
        ('{"type":"disconnect","reason":"unauthorized","reconnect":false}', Goodbye("unauthorized", False)),
        ('{"type":"ping"}', ServerPing()),
        (
            '{"type":"presence","identifier":"i","message":{"type":"join","info":{"n":1},"id":"42"}}',
            PresenceChanged("i", True, Member("42", b'{"n":1}')),
        ),
        (
            '{"type":"presence","identifier":"i","message":{"type":"leave","id":"42"}}',
            PresenceChanged("i", False, Member("42")),
        ),
        ('{"identifier":"i","message":null}', Data("i", b"null")),
        ('{"type":"presence","identifier":"i","message":{"type":"typing"}}', UnknownMessage("presence")),
        ('{"type":"news"}', UnknownMessage("news")),
        ('{"type":"news","identifier":"i"}', UnknownMessage("news")),
    ]
    for frame, message in rows:
        with subtests.test(frame=frame, message=message):
            assert decode(frame) == message


def test_payload_is_not_reformatted() -> None:
    message = decode('{"identifier":"i","message":{"big":12345678901234567890,"price":1.10}}')
    assert message == Data("i", b'{"big":12345678901234567890,"price":1.10}')


def test_invalid_message_is_malformed(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b"", b"[]", b"nonsense", b'{"type":7}', b'{"type":"welcome","sid":{}}', b"\xff"]
    for frame in rows:
        with subtests.test(frame=frame), pytest.raises(MalformedFrame):
            decode(frame)
