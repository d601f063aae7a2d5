"""The frame of a push, and the validation of its arguments."""

from typing import Any

import pytest

from ropewalk.client.pusher import new_uid, push_frame
from ropewalk.model.errors import UserMistake
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import parse_ksuid
from ropewalk.protocol.broky.runs import decode

UID = b"u" * 20


def push_run(**arguments: Any) -> Run:
    """Returns the run for a push of two messages."""
    complete = {"format": Format.BYTES, "key_partition": b"", "uids": (), "ts_producer": (), **arguments}
    run = decode(push_frame(1, "s", [b"x", b"y"], **complete))
    assert isinstance(run, Run)
    return run


def test_uids_can_be_bytes_or_text() -> None:
    text = new_uid()
    assert push_run(uids=[UID, text]).uid == UID + parse_ksuid(text)
    assert push_run(uids=(text, text)).uid == parse_ksuid(text) * 2


def test_uids_are_generated_or_omitted() -> None:
    generated = push_run(uids=None).uid
    assert len(generated) == 40
    assert generated[:20] != generated[20:]
    assert push_run().uid == b""


def test_each_message_has_its_time() -> None:
    assert push_run(ts_producer=[5, 2**64 - 1]).ts_producer == (5, 2**64 - 1)


def test_invalid_push_argument_is_named_in_the_error(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, object]] = [
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
    ]
    for argument, value in cases:
        with subtests.test(argument=argument, value=value), pytest.raises(UserMistake, match=argument):
            push_run(**{argument: value})


def test_invalid_key_is_rejected(subtests: pytest.Subtests) -> None:
    keys: list[Any] = ["~b64:!!", "~b64:YQ", "\ud800", 5, None]
    for key in keys:
        with subtests.test(key=key):
            with pytest.raises(UserMistake, match="stream"):
                push_frame(1, key, b"x", Format.BYTES, b"", (), ())
            with pytest.raises(UserMistake, match="stream"):
                push_frame(1, "s", b"x", Format.BYTES, key, (), ())
