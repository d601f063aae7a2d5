"""Routed channels: identifiers, their streams, and whether they allow whispers and presence."""

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.adapters.apps.streams import (
    MAX_CACHED_IDENTIFIER_LENGTH,
    MAX_STREAM_NAME_BYTES,
    PubSubChannel,
    SignedNameChannel,
    cable_ready,
    turbo_streams,
)
from ropewalk.core.signatures import sign_stream
from ropewalk.model.sessions import Rejected, Subscribed
from ropewalk.ports import Channels

SECRET = "s3Krit"
SIGNED = "ImNoYXQ6MjAyMSI=--f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1315628"
NAME = "chat:2021"
SIGNED_WITH_EMPTY_SECRET = "ImNoYXQi--" + hmac.new(b"", b"ImNoYXQi", hashlib.sha256).hexdigest()


async def ask(channels: Channels, channel: object, **fields: object) -> Subscribed | Rejected | None:
    return await channels.subscribe('{"user":1}', json.dumps({"channel": channel, **fields}))


async def reason(channels: Channels, channel: object, **fields: object) -> str:
    answer = await ask(channels, channel, **fields)
    assert isinstance(answer, Rejected)
    return answer.reason


# --- $pubsub ---------------------------------------------------------------------------------------------------------


async def test_public_stream_allows_whispers_and_presence() -> None:
    channel = PubSubChannel(public=True, secret="", whisper=False, presence=False)
    assert await ask(channel, "$pubsub", stream_name=NAME) == Subscribed((NAME,), NAME, NAME)


async def test_equal_subscriptions_share_one_result() -> None:
    channel = PubSubChannel(public=True, secret=SECRET)
    assert await ask(channel, "$pubsub", stream_name=NAME) is await ask(channel, "$pubsub", stream_name=NAME)
    assert await ask(channel, "$pubsub", signed_stream_name=SIGNED) is await ask(channel, "$pubsub", signed_stream_name=SIGNED)
    assert await ask(channel, "$pubsub", stream_name="other") == Subscribed(("other",), "other", "other")


async def test_results_for_long_identifiers_are_not_cached() -> None:
    channel = PubSubChannel(public=True)
    padding = "x" * MAX_CACHED_IDENTIFIER_LENGTH
    first, second = [await ask(channel, "$pubsub", stream_name=NAME, padding=padding) for _ in range(2)]
    assert first == second == Subscribed((NAME,), NAME, NAME)
    assert first is not second


async def test_plain_name_is_rejected_unless_streams_are_public() -> None:
    assert "--public_streams" in await reason(PubSubChannel(secret=SECRET), "$pubsub", stream_name=NAME)


async def test_signed_stream_allows_neither_whispers_nor_presence_by_default(subtests: pytest.Subtests) -> None:
    for public in [False, True]:
        with subtests.test(public=public):
            channel = PubSubChannel(public=public, secret=SECRET)
            assert await ask(channel, "$pubsub", signed_stream_name=SIGNED) == Subscribed((NAME,))


async def test_signed_stream_allows_whispers_if_enabled() -> None:
    channel = PubSubChannel(secret=SECRET, whisper=True)
    assert await ask(channel, "$pubsub", signed_stream_name=SIGNED) == Subscribed((NAME,), whisper=NAME)


async def test_signed_stream_allows_presence_if_enabled() -> None:
    channel = PubSubChannel(secret=SECRET, presence=True)
    assert await ask(channel, "$pubsub", signed_stream_name=SIGNED) == Subscribed((NAME,), presence=NAME)


async def test_signed_name_takes_precedence_over_a_plain_one() -> None:
    channel = PubSubChannel(public=True, secret=SECRET)
    assert await ask(channel, "$pubsub", stream_name="other", signed_stream_name=SIGNED) == Subscribed((NAME,))


async def test_invalid_signed_name_is_rejected_despite_a_public_one(subtests: pytest.Subtests) -> None:
    for signed in ["", "forged", SIGNED[:-1] + "9", 1, [SIGNED]]:
        with subtests.test(signed=signed):
            channel = PubSubChannel(public=True, secret=SECRET)
            assert "not signed" in await reason(channel, "$pubsub", stream_name=NAME, signed_stream_name=signed)


async def test_subscription_without_a_name_is_rejected() -> None:
    channel = PubSubChannel(public=True, secret=SECRET)
    assert "neither" in await reason(channel, "$pubsub")
    assert "neither" in await reason(channel, "$pubsub", stream_name=None, signed_stream_name=None)


async def test_public_name_must_be_a_string(subtests: pytest.Subtests) -> None:
    for name in ["", 0, 1, True, ["chat"], {"chat": 1}]:
        with subtests.test(name=name):
            assert "must be a string" in await reason(PubSubChannel(public=True), "$pubsub", stream_name=name)


# --- Turbo and CableReady --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "channel", "key"),
    [
        (turbo_streams(SECRET), "Turbo::StreamsChannel", "signed_stream_name"),
        (cable_ready(SECRET), "CableReady::Stream", "identifier"),
    ],
)
class TestNamesSignedByOtherLibraries:
    async def test_signed_stream_is_subscribed_without_whispers_and_presence(
        self, channels: SignedNameChannel, channel: str, key: str
    ) -> None:
        assert await ask(channels, channel, **{key: SIGNED}) == Subscribed((NAME,))

    async def test_forged_or_missing_name_is_rejected(self, channels: SignedNameChannel, channel: str, key: str) -> None:
        assert isinstance(await ask(channels, channel, **{key: "forged--00"}), Rejected)
        assert isinstance(await ask(channels, channel), Rejected)

    async def test_plain_name_is_rejected(self, channels: SignedNameChannel, channel: str, key: str) -> None:
        assert isinstance(await ask(channels, channel, stream_name=NAME), Rejected)

    async def test_other_channels_are_ignored(self, channels: SignedNameChannel, channel: str, key: str) -> None:
        assert await ask(channels, "$pubsub", **{key: SIGNED}) is None


# --- All channels ----------------------------------------------------------------------------------------------------

ALL = [
    (PubSubChannel(secret=SECRET), PubSubChannel(), "$pubsub", "signed_stream_name", "--streams_secret"),
    (turbo_streams(SECRET), turbo_streams(""), "Turbo::StreamsChannel", "signed_stream_name", "--turbo_streams_secret"),
    (cable_ready(SECRET), cable_ready(""), "CableReady::Stream", "identifier", "--cable_ready_secret"),
]


@pytest.mark.parametrize(("channels", "without_secret", "channel", "key", "setting"), ALL)
async def test_signed_name_without_a_secret_is_rejected_with_the_setting(
    channels: Channels, without_secret: Channels, channel: str, key: str, setting: str
) -> None:
    for signed in (SIGNED, SIGNED_WITH_EMPTY_SECRET):
        assert setting in await reason(without_secret, channel, **{key: signed})


@pytest.mark.parametrize(("channels", "without_secret", "channel", "key", "setting"), ALL)
async def test_signed_name_is_limited_in_length(
    channels: Channels, without_secret: Channels, channel: str, key: str, setting: str
) -> None:
    longest = "n" * MAX_STREAM_NAME_BYTES
    assert await ask(channels, channel, **{key: sign_stream(longest, SECRET)}) == Subscribed((longest,))
    assert "longer" in await reason(channels, channel, **{key: sign_stream(longest + "n", SECRET)})
    assert "must be a string" in await reason(channels, channel, **{key: sign_stream("", SECRET)})


async def test_maximum_name_length_is_a_setting() -> None:
    channel = PubSubChannel(public=True, max_stream_name=3)
    assert await ask(channel, "$pubsub", stream_name="abc") == Subscribed(("abc",), "abc", "abc")
    assert "longer than 3 bytes" in await reason(channel, "$pubsub", stream_name="abcd")
    assert "longer than 3 bytes" in await reason(channel, "$pubsub", stream_name="жж")


async def test_identifiers_without_a_channel_are_ignored(subtests: pytest.Subtests) -> None:
    for identifier in ["", "chat", "{", "null", "1", '["$pubsub"]', '"$pubsub"', "{}", "\ud800", "[" * 100_000]:
        with subtests.test(identifier=identifier):
            for channels in (PubSubChannel(public=True), turbo_streams(SECRET), cable_ready(SECRET)):
                assert await channels.subscribe("", identifier) is None


async def test_unknown_channels_are_ignored(subtests: pytest.Subtests) -> None:
    for channel in ["ChatChannel", "", "$Pubsub", None, 1, ["$pubsub"]]:
        with subtests.test(channel=channel):
            assert await ask(PubSubChannel(public=True), channel, stream_name=NAME) is None


@given(st.text(min_size=1, max_size=MAX_STREAM_NAME_BYTES // 4))
async def test_any_name_is_subscribed_unchanged(name: str) -> None:
    channel = PubSubChannel(public=True, secret=SECRET)
    assert await ask(channel, "$pubsub", stream_name=name) == Subscribed((name,), name, name)
    assert await ask(channel, "$pubsub", signed_stream_name=sign_stream(name, SECRET)) == Subscribed((name,))
