import msgspec
import pytest

from ropewalk.model.journal import publication_detail, ts_producer_of
from ropewalk.model.messages import LAST_KSUID, MessageFields, Publication, Registered, fields_of

KSUID = "0ujtsYcgvSTl8PAuAdqWYSMnLOv"


@pytest.mark.parametrize(
    "uid",
    ["", "order-1", KSUID[:-1], KSUID + "0", KSUID[:-1] + "-", KSUID[:-1] + "é", LAST_KSUID[:-1] + "W", "z" * 27, "٣" * 27],
)
def test_a_uid_that_is_no_ksuid_is_not_told(uid: str) -> None:
    assert fields_of(uid, 0, "") is None
    assert fields_of(uid, 5, "") == MessageFields("", 5, "")


@pytest.mark.parametrize("uid", [KSUID, LAST_KSUID, "0" * 27])
def test_a_ksuid_is_told(uid: str) -> None:
    assert fields_of(uid, 0, "") == MessageFields(uid)


def test_each_field_is_told_by_itself() -> None:
    assert fields_of("", 5, "") == MessageFields("", 5)
    assert fields_of("", 0, "key") == MessageFields("", 0, "key")


def test_fields_that_are_missing_take_no_bytes_on_the_bus() -> None:
    message = Registered("s", b"1", 1.0, "e", 1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message)).keys() == {
        "stream",
        "payload",
        "timestamp",
        "epoch",
        "offset",
    }
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Publication("s", b"1"))).keys() == {"stream", "payload"}


def test_fields_come_back_from_the_bus() -> None:
    message = Registered("s", b"1", 1.0, "e", 1, fields=MessageFields(KSUID, 2**64 - 1, "key"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Registered) == message


@pytest.mark.parametrize("time", [1, 2**64 - 1])
def test_a_time_comes_back_from_a_row(time: int) -> None:
    assert ts_producer_of(publication_detail(time)) == time


def test_a_row_without_a_time_has_no_detail() -> None:
    assert publication_detail(0) == ""
    assert ts_producer_of("") == 0
