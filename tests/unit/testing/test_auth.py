"""The conformance suites for authenticators and channels detect faulty ones."""

from pathlib import Path

import pytest

from ropewalk.adapters.apps.authenticators import NoAuth
from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, Rejected, Subscribed
from ropewalk.ports import Authenticator, Channels
from ropewalk.testing.auth import AuthenticatorSuite, ChannelsSuite, request_with
from tests.unit.testing.suites import Suite, failed_tests


class Auth(AuthenticatorSuite):
    kind: type[Authenticator] = NoAuth

    def make(self) -> Authenticator:
        return self.kind()

    def welcome_request(self) -> ConnectRequest:
        return request_with("")


class Raising(Auth):
    class kind(NoAuth):
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
            request.token.encode("ascii")
            return await super().authenticate(request, sid)


class RejectingForAnUnknownReason(Auth):
    class kind:
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            return Refused("unknown reason") if request.token else Accepted("me")


class KeepingState(Auth):
    class kind:
        seen = 0

        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            self.seen += 1
            return Accepted(f"guest {self.seen}")


class Channel(ChannelsSuite):
    kind: type[Channels]

    def make(self) -> Channels:
        return self.kind()

    def welcome_identifier(self) -> str:
        return '{"channel":"$pubsub","stream_name":"chat"}'


class SubscribingToNothing(Channel):
    class kind:
        async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None:
            return Subscribed(())


class RejectingWithoutAReason(Channel):
    class kind(PubSubChannel):
        def __init__(self) -> None:
            super().__init__(public=True)

        async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None:
            answer = await super().subscribe(ids, identifier)
            return answer if isinstance(answer, Subscribed) else Rejected("")


FAULTY = {
    Raising: "test_hostile_token_is_answered_without_an_exception",
    RejectingForAnUnknownReason: "test_hostile_token_is_answered_without_an_exception",
    KeepingState: "test_hostile_requests_do_not_affect_the_next_one",
    SubscribingToNothing: "test_hostile_identifier_is_answered_without_an_exception",
    RejectingWithoutAReason: "test_hostile_identifier_is_answered_without_an_exception",
}


@pytest.mark.parametrize(("suite", "test"), FAULTY.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_faulty_authenticator_or_channel_fails_its_test(suite: Suite, test: str, tmp_path: Path) -> None:
    assert await failed_tests(suite, tmp_path, test) == {test}


async def test_correct_authenticator_passes_all_tests(tmp_path: Path) -> None:
    assert await failed_tests(Auth, tmp_path) == set()
