"""Publications made by the server."""

import pytest

from ropewalk.core.server_publications import presence_publication, whisper_publication
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member, PresenceEvent

MEMBER = Member("1", b'{"n": 1}')


def test_presence_event_is_a_transient_publication(subtests: pytest.Subtests) -> None:
    rows: list[tuple[PresenceEvent, bytes]] = [
        (PresenceEvent("join", "s", MEMBER), b'{"type":"join","info":{"n": 1},"id":"1"}'),
        (PresenceEvent("join", "s", Member("1")), b'{"type":"join","id":"1"}'),
        (PresenceEvent("leave", "s", MEMBER), b'{"type":"leave","id":"1"}'),
    ]
    for event, payload in rows:
        with subtests.test(event=event, payload=payload):
            assert presence_publication(event) == Publication("s", payload, broadcast_type="presence", transient=True)


def test_whisper_without_a_sender_is_published_unchanged() -> None:
    assert whisper_publication("s", b'{"a": 1}', "me", "") == Publication("s", b'{"a": 1}', exclude_socket="me", transient=True)


def test_whisper_with_a_sender_is_wrapped(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bytes]] = [('{"id":7}', b'{"id":7}'), ("no json", b'"no json"')]
    for sender, encoded in rows:
        with subtests.test(sender=sender, encoded=encoded):
            marked = b'{"$whisper":{"a": 1},"from":%b}' % encoded
            expected = Publication("s", marked, exclude_socket="me", broadcast_type="whisper", transient=True)
            assert whisper_publication("s", b'{"a": 1}', "me", sender) == expected
