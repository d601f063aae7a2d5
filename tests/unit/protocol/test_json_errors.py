"""Error texts for invalid JSON."""

import msgspec
import pytest

from ropewalk.adapters.endpoints.http_guard import decoded
from ropewalk.model.errors import BadRequest, MalformedFrame
from ropewalk.protocol import cable_json
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.broky.texts import encode_text
from ropewalk.protocol.json_errors import why_no_json


def error_of(text: bytes) -> str:
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(text)
    return why_no_json(text, refused.value)


def test_lone_surrogate_is_reported(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [rb'"\ud800"', rb'["\uDBFF"]', rb'{"a":"\\\ud83dab"}', rb'"\ud83d\n"', rb'["\ud800", 1, 2, 3]']
    for text in rows:
        with subtests.test(text=text):
            assert "surrogate pair" in error_of(text)


def test_truncated_text_is_reported(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b'"abc', rb'"\ud83d', rb'"\ud83d\u', rb'"\ud83d\ude0', rb'["\\ud83d"', b'{"a":1', b""]
    for text in rows:
        with subtests.test(text=text):
            assert error_of(text) == "Input data was truncated"


def test_all_json_decoders_report_a_lone_surrogate() -> None:
    with pytest.raises(MalformedFrame, match=r"frame is not JSON: .*surrogate pair"):
        cable_json.decode(rb'{"command":"\ud800"}')
    with pytest.raises(ValueError, match=r"the payload is not JSON: .*surrogate pair"):
        encode_text(rb'["\ud800"]', Format.JSON)
    with pytest.raises(BadRequest, match=r"the offset cannot be read: .*surrogate pair"):
        decoded(rb'{"a":"\ud800"}', dict[str, str], "the offset")


def test_body_that_is_not_utf8_is_a_client_error() -> None:
    with pytest.raises(BadRequest, match="the offset cannot be read: it is not UTF-8"):
        decoded(b'{"a":"\xff"}', dict[str, str], "the offset")
