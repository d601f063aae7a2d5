"""Publications that the server makes by itself."""

import pytest

from ropewalk.core.server_publications import presence_publication, whisper_publication
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member, PresenceEvent

MEMBER = Member("1", b'{"n": 1}')


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        (PresenceEvent("join", "s", MEMBER), b'{"type":"join","info":{"n": 1},"id":"1"}'),
        (PresenceEvent("join", "s", Member("1")), b'{"type":"join","id":"1"}'),
        (PresenceEvent("leave", "s", MEMBER), b'{"type":"leave","id":"1"}'),
    ],
)
def test_a_presence_event_is_a_transient_message_of_its_own_type(event: PresenceEvent, payload: bytes) -> None:
    assert presence_publication(event) == Publication("s", payload, broadcast_type="presence", transient=True)


def test_a_whisper_goes_to_the_others_as_it_was_said() -> None:
    assert whisper_publication("s", b'{"a": 1}', "me", "") == Publication("s", b'{"a": 1}', exclude_socket="me", transient=True)


@pytest.mark.parametrize(("sender", "told"), [('{"id":7}', b'{"id":7}'), ("no json", b'"no json"')])
def test_a_whisper_of_somebody_known_is_marked(sender: str, told: bytes) -> None:
    marked = b'{"$whisper":{"a": 1},"from":%b}' % told
    expected = Publication("s", marked, exclude_socket="me", broadcast_type="whisper", transient=True)
    assert whisper_publication("s", b'{"a": 1}', "me", sender) == expected
