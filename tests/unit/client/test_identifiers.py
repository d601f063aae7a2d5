"""Identifiers of subscriptions."""

from ropewalk.client import identifiers


def test_public_stream_is_identified_by_its_name() -> None:
    assert identifiers.public("chat/1") == '{"channel":"$pubsub","stream_name":"chat/1"}'


def test_signed_stream_is_identified_by_its_signed_name() -> None:
    assert identifiers.signed("abc--def") == '{"channel":"$pubsub","signed_stream_name":"abc--def"}'


def test_channel_is_identified_by_its_name_and_parameters() -> None:
    assert identifiers.channel("ChatChannel", {"id": 42}) == '{"channel":"ChatChannel","id":42}'
