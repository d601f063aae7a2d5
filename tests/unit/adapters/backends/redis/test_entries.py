"""Stored entries in Redis: the format of older versions can be read, and absent fields take no space."""

import msgspec
import pytest

from ropewalk.adapters.backends.redis.entries import count_elements, decode_messages, encode_body
from ropewalk.model.messages import LAST_KSUID, MessageFields, Publication


def test_entry_of_nine_elements_is_read() -> None:
    entry = msgspec.msgpack.encode((3, 5000, 7, b"payload", "sid", "kind", LAST_KSUID, "producer", 7))
    (message,) = decode_messages("s", "e", [entry])
    assert (message.offset, message.timestamp, message.payload, message.broadcast_type) == (3, 5.0, b"payload", "kind")
    assert message.fields == MessageFields(LAST_KSUID)


def test_entry_has_a_tenth_element_only_with_a_producer_time(subtests: pytest.Subtests) -> None:
    for time, elements in [(0, 9), (5, 10)]:
        with subtests.test(time=time, elements=elements):
            publication = Publication("s", b"1", ts_producer=time)
            assert count_elements(publication) == elements
            whole = bytes([0x90 + elements]) + msgspec.msgpack.encode(1) * 3 + encode_body(publication)
            assert len(msgspec.msgpack.decode(whole)) == elements
