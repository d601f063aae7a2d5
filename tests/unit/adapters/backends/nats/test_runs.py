"""Stored runs of messages in NATS: the format of older versions can be read, and sizes are not underestimated."""

import msgspec

from ropewalk.adapters.backends.nats import runs
from ropewalk.model.messages import LAST_KSUID, MessageFields, Publication


def test_item_of_seven_elements_is_read() -> None:
    stored = msgspec.msgpack.encode(
        ("s", "e", 3, 1, 5.0, "key", "id", [(b"payload", "sid", "kind", LAST_KSUID, "producer", 7, False)])
    )
    (message,) = runs.decode(stored).messages()
    assert (message.offset, message.timestamp, message.payload, message.broadcast_type) == (3, 5.0, b"payload", "kind")
    assert message.fields == MessageFields(LAST_KSUID, 0, "key")


def test_item_is_not_larger_than_its_estimated_size() -> None:
    most = Publication("s", b"x" * 70_000, "s" * 300, "b" * 300, uid="u" * 300, producer="p" * 300, sequence=2**63 - 1)
    timed = msgspec.structs.replace(most, ts_producer=2**64 - 1)
    assert len(msgspec.msgpack.encode(runs.build_item(timed))) <= runs.estimate_size(timed)
