"""Fields that the server adds to the transmissions of an application."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.protocol.transmissions import around, read, refusals, with_welcome

PLAIN = '{"type":"welcome","sid":"ours"}'
CONFIRM = '{"type":"confirm_subscription","identifier":"i"}'


def test_missing_welcome_is_added_first() -> None:
    assert with_welcome(['{"type":"x"}'], PLAIN, "ours") == [PLAIN, '{"type":"x"}']


def test_welcome_of_the_application_gets_the_sid_and_moves_first() -> None:
    texts = with_welcome(['{"type":"x"}', '{"type":"welcome","sid":"theirs","big":12345678901234567890}'], PLAIN, "ours")

    assert json.loads(texts[0]) == {"type": "welcome", "sid": "ours", "big": 12345678901234567890}
    assert texts[1:] == ['{"type":"x"}']


def test_texts_are_split_around_the_reply_to_their_identifier() -> None:
    other = '{"type":"confirm_subscription","identifier":"other"}'

    assert around("confirm_subscription", "i", ["a", other, CONFIRM, "b"]) == (["a", other], ["b"])
    assert around("confirm_subscription", "i", ["a", "b"]) == (["a", "b"], [])


def test_refusal_disables_reconnects_unless_the_application_allows_them() -> None:
    silent, kind, other = '{"type":"disconnect","reason":"x"}', '{"type":"disconnect","reconnect":true}', '{"reconnect":1}'

    assert refusals([silent, kind, other]) == ['{"type":"disconnect","reason":"x","reconnect":false}', kind, other]


@given(st.text())
def test_any_text_of_an_application_can_be_inspected(text: str) -> None:
    parsed = read(text)

    assert with_welcome([text], PLAIN, "ours")[-1] == text or parsed.type == "welcome"
    assert refusals([text]) == [text] or parsed.type == "disconnect"
