"""JSON payloads become Python values; numbers that are too large become infinite."""

import math

import pytest

from ropewalk.client.messages import decode_payload


def test_number_out_of_range_is_infinite() -> None:
    assert decode_payload(b"1e400") == math.inf
    assert decode_payload(b'{"a": [-1e400, 1.5, 12345678901234567890123]}') == {"a": [-math.inf, 1.5, 12345678901234567890123]}
    assert decode_payload(b"1e-400") == 0.0


def test_integer_that_python_refuses_to_read_is_infinite() -> None:
    assert decode_payload(b"[" + b"9" * 5000 + b", 2]") == [math.inf, 2]


@pytest.mark.parametrize("payload", [b"{", b"", b"[1e400", b"NaN", b"[" * 200 + b"]" * 200])
def test_invalid_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # any kind of it
        decode_payload(payload)
