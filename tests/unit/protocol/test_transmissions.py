"""What the server adds to the words of an application, and what it leaves as it is."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.protocol.transmissions import around, read, refusals, with_welcome

PLAIN = '{"type":"welcome","sid":"ours"}'
CONFIRM = '{"type":"confirm_subscription","identifier":"i"}'


def test_a_welcome_that_is_missing_comes_first() -> None:
    assert with_welcome(['{"type":"x"}'], PLAIN, "ours") == [PLAIN, '{"type":"x"}']


def test_the_applications_own_welcome_keeps_its_fields_gets_the_sid_and_comes_first() -> None:
    texts = with_welcome(['{"type":"x"}', '{"type":"welcome","sid":"theirs","big":12345678901234567890}'], PLAIN, "ours")

    assert json.loads(texts[0]) == {"type": "welcome", "sid": "ours", "big": 12345678901234567890}
    assert texts[1:] == ['{"type":"x"}']


def test_texts_stand_around_the_reply_to_their_own_identifier() -> None:
    other = '{"type":"confirm_subscription","identifier":"other"}'

    assert around("confirm_subscription", "i", ["a", other, CONFIRM, "b"]) == (["a", other], ["b"])
    assert around("confirm_subscription", "i", ["a", "b"]) == (["a", "b"], [])


def test_who_is_refused_is_told_not_to_come_back_unless_the_application_wants_it() -> None:
    silent, kind, other = '{"type":"disconnect","reason":"x"}', '{"type":"disconnect","reconnect":true}', '{"reconnect":1}'

    assert refusals([silent, kind, other]) == ['{"type":"disconnect","reason":"x","reconnect":false}', kind, other]


@given(st.text())
def test_whatever_an_application_writes_can_be_looked_at(text: str) -> None:
    said = read(text)

    assert with_welcome([text], PLAIN, "ours")[-1] == text or said.type == "welcome"
    assert refusals([text]) == [text] or said.type == "disconnect"
