import msgspec
import pytest

from ropewalk.model.messages import LAST_KSUID, MessageFields, Publication, Registered, message_fields

KSUID = "0ujtsYcgvSTl8PAuAdqWYSMnLOv"


def test_uid_that_is_not_a_ksuid_is_left_out(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "",
        "order-1",
        KSUID[:-1],
        KSUID + "0",
        KSUID[:-1] + "-",
        KSUID[:-1] + "é",
        LAST_KSUID[:-1] + "W",
        "z" * 27,
        "٣" * 27,
    ]
    for uid in rows:
        with subtests.test(uid=uid):
            assert message_fields(uid, 0, "") is None
            assert message_fields(uid, 5, "") == MessageFields("", 5, "")


def test_ksuid_is_kept(subtests: pytest.Subtests) -> None:
    rows: list[str] = [KSUID, LAST_KSUID, "0" * 27]
    for uid in rows:
        with subtests.test(uid=uid):
            assert message_fields(uid, 0, "") == MessageFields(uid)


def test_each_field_is_kept_independently() -> None:
    assert message_fields("", 5, "") == MessageFields("", 5)
    assert message_fields("", 0, "key") == MessageFields("", 0, "key")


def test_missing_fields_take_no_bytes_on_the_bus() -> None:
    message = Registered("s", b"1", 1.0, "e", 1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message)).keys() == {
        "stream",
        "payload",
        "timestamp",
        "epoch",
        "offset",
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Publication("s", b"1"))).keys() == {"stream", "payload"}


def test_fields_survive_encoding() -> None:
    message = Registered("s", b"1", 1.0, "e", 1, fields=MessageFields(KSUID, 2**64 - 1, "key"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Registered) == message
