"""All built-in channels: the complete suite."""

import json

from ropewalk.adapters.apps.streams import PubSubChannel, cable_ready, turbo_streams
from ropewalk.core.signatures import sign_stream
from ropewalk.ports import Channels
from ropewalk.testing.auth import ChannelsSuite

SECRET = "s3Krit"
SIGNED = sign_stream("chat", SECRET)


class TestPublicStreams(ChannelsSuite):
    def make(self) -> Channels:
        return PubSubChannel(public=True)

    def welcome_identifier(self) -> str:
        return '{"channel":"$pubsub","stream_name":"chat"}'


class TestSignedStreams(ChannelsSuite):
    def make(self) -> Channels:
        return PubSubChannel(secret=SECRET, whisper=True, presence=True)

    def welcome_identifier(self) -> str:
        return json.dumps({"channel": "$pubsub", "signed_stream_name": SIGNED})


class TestTurboStreams(ChannelsSuite):
    def make(self) -> Channels:
        return turbo_streams(SECRET)

    def welcome_identifier(self) -> str:
        return json.dumps({"channel": "Turbo::StreamsChannel", "signed_stream_name": SIGNED})


class TestCableReady(ChannelsSuite):
    def make(self) -> Channels:
        return cable_ready(SECRET)

    def welcome_identifier(self) -> str:
        return json.dumps({"channel": "CableReady::Stream", "identifier": SIGNED})
