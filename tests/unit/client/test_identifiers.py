"""Identifiers of subscriptions."""

from ropewalk.client import identifiers


def test_public_stream() -> None:
    assert identifiers.public("chat/1") == '{"channel":"$pubsub","stream_name":"chat/1"}'


def test_signed_stream() -> None:
    assert identifiers.signed("abc--def") == '{"channel":"$pubsub","signed_stream_name":"abc--def"}'


def test_channel_with_parameters() -> None:
    assert identifiers.channel("ChatChannel", {"id": 42}) == '{"channel":"ChatChannel","id":42}'
