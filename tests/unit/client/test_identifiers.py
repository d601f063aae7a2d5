"""Subscriptions as they are named on the wire."""

from ropewalk.client import identifiers


def test_a_public_stream() -> None:
    assert identifiers.public("chat/1") == '{"channel":"$pubsub","stream_name":"chat/1"}'


def test_a_signed_stream() -> None:
    assert identifiers.signed("abc--def") == '{"channel":"$pubsub","signed_stream_name":"abc--def"}'


def test_a_channel_with_parameters() -> None:
    assert identifiers.channel("ChatChannel", {"id": 42}) == '{"channel":"ChatChannel","id":42}'
