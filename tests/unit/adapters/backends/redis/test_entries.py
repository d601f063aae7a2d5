"""What Redis and NATS keep of a message: what an older version wrote can be read, and what is missing takes no room."""

import msgspec
import pytest

from ropewalk.adapters.backends.nats import runs
from ropewalk.adapters.backends.redis.entries import body_of, elements_of, messages_of
from ropewalk.model.messages import LAST_KSUID, MessageFields, Publication

OLD = ("payload", "sid", "kind", LAST_KSUID, "producer", 7)


def test_an_entry_of_nine_elements_in_redis_is_read() -> None:
    entry = msgspec.msgpack.encode((3, 5000, 7, b"payload", *OLD[1:]))
    (message,) = messages_of("s", "e", [entry])
    assert (message.offset, message.timestamp, message.payload, message.broadcast_type) == (3, 5.0, b"payload", "kind")
    assert message.fields == MessageFields(LAST_KSUID)


@pytest.mark.parametrize(("time", "elements"), [(0, 9), (5, 10)])
def test_an_entry_in_redis_is_longer_only_for_a_time(time: int, elements: int) -> None:
    publication = Publication("s", b"1", ts_producer=time)
    assert elements_of(publication) == elements
    whole = bytes([0x90 + elements]) + msgspec.msgpack.encode(1) * 3 + body_of(publication)
    assert len(msgspec.msgpack.decode(whole)) == elements


def test_an_item_of_seven_elements_in_nats_is_read() -> None:
    stored = msgspec.msgpack.encode(("s", "e", 3, 1, 5.0, "key", "id", [(b"payload", *OLD[1:], False)]))
    (message,) = runs.decode(stored).messages()
    assert (message.offset, message.timestamp, message.payload, message.broadcast_type) == (3, 5.0, b"payload", "kind")
    assert message.fields == MessageFields(LAST_KSUID, 0, "key")


def test_an_item_in_nats_takes_no_more_than_it_is_counted_with() -> None:
    most = Publication("s", b"x" * 70_000, "s" * 300, "b" * 300, uid="u" * 300, producer="p" * 300, sequence=2**63 - 1)
    timed = msgspec.structs.replace(most, ts_producer=2**64 - 1)
    assert len(msgspec.msgpack.encode(runs.item_of(timed))) <= runs.size_of(timed)
