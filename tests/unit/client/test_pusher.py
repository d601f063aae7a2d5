"""What a push puts on the wire, and what it refuses before."""

from typing import Any

import pytest

from ropewalk.client.pusher import new_uid, push_frame
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import ksuid_of
from ropewalk.protocol.broky.runs import decode

UID = b"u" * 20


def pushed(**arguments: Any) -> Run:
    """Two messages."""
    wanted = {"format": Format.BYTES, "key_partition": b"", "uids": (), "ts_producer": (), **arguments}
    run = decode(push_frame(1, "s", [b"x", b"y"], **wanted))
    assert isinstance(run, Run)
    return run


def test_uids_are_taken_as_bytes_and_as_text() -> None:
    text = new_uid()
    assert pushed(uids=[UID, text]).uid == UID + ksuid_of(text)
    assert pushed(uids=(text, text)).uid == ksuid_of(text) * 2


def test_uids_are_made_up_or_left_out() -> None:
    made_up = pushed(uids=None).uid
    assert len(made_up) == 40
    assert made_up[:20] != made_up[20:]
    assert pushed().uid == b""


def test_times_are_for_each_message() -> None:
    assert pushed(ts_producer=[5, 2**64 - 1]).ts_producer == (5, 2**64 - 1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("uids", UID * 2),
        ("uids", "3MCCZ30KVw2iwVkHFJuelE7PFIu"),
        ("uids", 5),
        ("uids", [UID]),
        ("uids", [UID, UID, UID]),
        ("uids", [UID[:10], UID + UID[:10]]),
        ("uids", [UID, "order-7"]),
        ("uids", [UID, "z" * 27]),
        ("uids", [UID, 7]),
        ("ts_producer", 5),
        ("ts_producer", b"xy"),
        ("ts_producer", [1]),
        ("ts_producer", [1, 2.5]),
        ("ts_producer", [1, "2"]),
        ("ts_producer", [1, -1]),
        ("ts_producer", [1, 2**64]),
        ("format", "json"),
        ("format", None),
        ("format", 7),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_argument(argument: str, value: object) -> None:
    with pytest.raises(UserMistake, match=argument):
        pushed(**{argument: value})


@pytest.mark.parametrize("key", ["~b64:!!", "~b64:YQ", "\ud800", 5, None])
def test_what_no_key_is_called_is_refused(key: Any) -> None:
    with pytest.raises(UserMistake, match="stream"):
        push_frame(1, key, b"x", Format.BYTES, b"", (), ())
    with pytest.raises(UserMistake, match="stream"):
        push_frame(1, "s", b"x", Format.BYTES, key, (), ())
