"""Texts that are no JSON, and what is said of them."""

import msgspec
import pytest

from ropewalk.adapters.endpoints.http_guard import decoded
from ropewalk.model.errors import BadRequest, MalformedFrame
from ropewalk.protocol import cable_json
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.broky.texts import text_of
from ropewalk.protocol.json_errors import why_no_json


def said_of(text: bytes) -> str:
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(text)
    return why_no_json(text, refused.value)


@pytest.mark.parametrize(
    "text", [rb'"\ud800"', rb'["\uDBFF"]', rb'{"a":"\\\ud83dab"}', rb'"\ud83d\n"', rb'["\ud800", 1, 2, 3]']
)
def test_half_a_surrogate_pair_is_named_wherever_it_stands(text: bytes) -> None:
    assert "surrogate pair" in said_of(text)


@pytest.mark.parametrize("text", [b'"abc', rb'"\ud83d', rb'"\ud83d\u', rb'"\ud83d\ude0', rb'["\\ud83d"', b'{"a":1', b""])
def test_a_text_that_ends_too_early_is_called_truncated(text: bytes) -> None:
    assert said_of(text) == "Input data was truncated"


def test_every_reader_of_json_says_so() -> None:
    with pytest.raises(MalformedFrame, match=r"frame is not JSON: .*surrogate pair"):
        cable_json.decode(rb'{"command":"\ud800"}')
    with pytest.raises(ValueError, match=r"the payload is not JSON: .*surrogate pair"):
        text_of(rb'["\ud800"]', Format.JSON)
    with pytest.raises(BadRequest, match=r"the offset cannot be read: .*surrogate pair"):
        decoded(rb'{"a":"\ud800"}', dict[str, str], "the offset")


def test_a_body_that_is_not_utf8_is_the_mistake_of_its_sender() -> None:
    with pytest.raises(BadRequest, match="the offset cannot be read: it is not UTF-8"):
        decoded(b'{"a":"\xff"}', dict[str, str], "the offset")
