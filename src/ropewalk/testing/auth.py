"""Conformance suites for `ports.Authenticator` and `ports.Channels`.

Subclass a suite in a test module, fill in what it asks for, and run it with pytest-asyncio in auto mode.
"""

import base64
import math
from collections.abc import Iterator

from ropewalk.model.closing import REFUSALS
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, Rejected, Subscribed
from ropewalk.ports import Authenticator, Channels

_DEEP = "[" * 50_000
_HALF_PAIR = "\ud800"


def _token(header: str, payload: str = "{}", signature: str = "AA") -> str:
    segments = (base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in (header, payload))
    return ".".join((*segments, signature))


# Each is named by its key, which a failure prints.
HOSTILE_TOKENS = {
    "a letter": "a",
    "dots": "...",
    "empty segments": "..",
    "not base64": "!.!.!",
    "header is not JSON": _token("{"),
    "header is a list": _token("[]"),
    "header has no alg": _token("{}"),
    "header is deep": _token("[" * 5_000),
    "alg is a list": _token('{"alg":["HS256"]}'),
    "alg is an object": _token('{"alg":{}}'),
    "alg none": _token('{"alg":"none"}', '{"ext":"root"}', ""),
    "alg none with a signature": _token('{"alg":"none"}', '{"ext":"root"}'),
    "detached payload": _token('{"alg":"HS256","b64":false,"crit":["b64"]}', ""),
    "huge": "a" * 1_000_000,
    "NUL": "\0",
    "not ASCII": "жетон.жетон.жетон",
    "half a surrogate pair": _HALF_PAIR,
    "white space": " \r\n\t",
}

HOSTILE_IDENTIFIERS = {
    "empty": "",
    "not JSON": "chat",
    "cut JSON": '{"channel":',
    "null": "null",
    "a number": "1",
    "a list": '["$pubsub"]',
    "no channel": "{}",
    "channel is null": '{"channel":null}',
    "channel is a list": '{"channel":["$pubsub"]}',
    "channel is empty": '{"channel":""}',
    "unknown channel": '{"channel":"NobodyKnowsThisChannel"}',
    "deep": _DEEP,
    "deep inside": '{"channel":"$pubsub","stream_name":' + _DEEP,
    "huge number": '{"channel":"$pubsub","stream_name":' + "9" * 5_000 + "}",
    "half a surrogate pair": _HALF_PAIR,
    "half a pair escaped": '{"channel":"$pubsub","stream_name":"\\ud800"}',
    "NUL": '{"channel":"$pubsub","stream_name":"\\u0000"}',
    "huge name": '{"channel":"$pubsub","stream_name":"' + "a" * 1_000_000 + '"}',
    "separators only": '{"channel":"$pubsub","signed_stream_name":"------"}',
}

_FIELDS = ("stream_name", "signed_stream_name", "identifier")
_CHANNELS = ("$pubsub", "Turbo::StreamsChannel", "CableReady::Stream")
_VALUES = ("null", "0", "true", "[]", "{}", '""', '"--"', '"IngiCg==--00"', '"ж--ж"')


def _identifiers() -> Iterator[tuple[str, str]]:
    yield from HOSTILE_IDENTIFIERS.items()
    for channel in _CHANNELS:
        for field in _FIELDS:
            for value in _VALUES:
                text = f'{{"channel":"{channel}","{field}":{value}}}'
                yield text, text


def request_with(token: str) -> ConnectRequest:
    return ConnectRequest("ws://localhost/cable", "/cable", {}, {}, "127.0.0.1", token)


class AuthenticatorSuite:
    """The contract between the engine and an authenticator."""

    def make(self) -> Authenticator:
        raise NotImplementedError("return a fresh authenticator to test")

    def welcome_request(self) -> ConnectRequest:
        raise NotImplementedError("return a request that `make()`'s authenticator accepts")

    async def test_hostile_token_is_answered_without_an_exception(self) -> None:
        authenticator = self.make()
        _check_authentication("empty request", await authenticator.authenticate(ConnectRequest("", "", {}, {}), "sid"))
        for case, token in HOSTILE_TOKENS.items():
            _check_authentication(case, await authenticator.authenticate(request_with(token), "sid"))

    async def test_hostile_requests_do_not_affect_the_next_one(self) -> None:
        authenticator = self.make()
        before = await authenticator.authenticate(self.welcome_request(), "sid")
        assert isinstance(before, Accepted), f"the welcome request was answered {before!r}"
        for token in HOSTILE_TOKENS.values():
            await authenticator.authenticate(request_with(token), "other")
        assert await authenticator.authenticate(self.welcome_request(), "sid") == before


def _check_authentication(case: str, answer: object) -> None:
    match answer:
        case None:
            pass
        case Refused(reason):
            assert reason in REFUSALS, f"{case}: {reason!r} is not a known reason"
        case Accepted(ids, expires_at):
            assert ids.encode(), f"{case}: accepted without an identity"
            assert expires_at is None or math.isfinite(expires_at), f"{case}: expires at {expires_at}"
        case _:
            raise AssertionError(f"{case}: answered {answer!r}")


class ChannelsSuite:
    """The contract between the engine and channels."""

    def make(self) -> Channels:
        raise NotImplementedError("return fresh channels to test")

    def welcome_identifier(self) -> str:
        raise NotImplementedError("return an identifier that `make()`'s channels subscribe")

    async def test_hostile_identifier_is_answered_without_an_exception(self) -> None:
        channels = self.make()
        for case, identifier in _identifiers():
            _check_subscription(case, await channels.subscribe("ids", identifier))

    async def test_hostile_identifiers_do_not_affect_the_next_one(self) -> None:
        channels = self.make()
        before = await channels.subscribe("ids", self.welcome_identifier())
        assert isinstance(before, Subscribed), f"the welcome identifier was answered {before!r}"
        for _, identifier in _identifiers():
            await channels.subscribe("other", identifier)
        assert await channels.subscribe("ids", self.welcome_identifier()) == before


def _check_subscription(case: str, answer: object) -> None:
    match answer:
        case None:
            pass
        case Rejected(reason):
            assert reason, f"{case}: rejected without a reason for the log"
        case Subscribed(streams, whisper, presence):
            assert streams, f"{case}: subscribed to nothing"
            assert all(name.encode() for name in streams), f"{case}: a stream without a name"
            assert all(isinstance(name, str) for name in (whisper, presence)), f"{case}: {answer!r}"
        case _:
            raise AssertionError(f"{case}: answered {answer!r}")
