"""Messages in protobuf. Applications in other languages rely on these field numbers and bytes."""

import pytest

from ropewalk.adapters.apps.rpc.grpc import decode_protobuf, encode_protobuf
from ropewalk.adapters.apps.rpc.messages import CommandMessage, CommandResponse, ConnectionRequest, Env
from ropewalk.model.errors import ApplicationError
from tests.unit.adapters.apps.rpc.sample_messages import SAMPLES, field


def test_connection_request_has_these_bytes() -> None:
    request = ConnectionRequest(Env("http://x/", {"cookie": "a=1"}))
    assert encode_protobuf(request).hex(" ") == (
        "1a 1a "  # field 3, env: 26 bytes
        "0a 09 68 74 74 70 3a 2f 2f 78 2f "  # field 1, url: http://x/
        "12 0d "  # field 2, an entry of headers: 13 bytes
        "0a 06 63 6f 6f 6b 69 65 "  # key: cookie
        "12 03 61 3d 31"  # value: a=1
    )


def test_every_field_has_its_number(subtests: pytest.Subtests) -> None:
    for name in SAMPLES:
        with subtests.test(name=name):
            message, expected = SAMPLES[name]
            assert encode_protobuf(message) == expected
            assert decode_protobuf(expected, type(message)) == message


def test_invalid_protobuf_is_an_application_error(subtests: pytest.Subtests) -> None:
    for data in [b"\xff\xff\xff", field(4, b"\xff"), b"\x08\x07"]:
        with subtests.test(data=data), pytest.raises(ApplicationError, match="cannot be read"):
            decode_protobuf(data, CommandResponse)


def test_invalid_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ApplicationError, match="not Unicode"):
        encode_protobuf(CommandMessage("message", "\ud800"))
