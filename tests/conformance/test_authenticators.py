"""All authenticators: the complete suite."""

from ropewalk.adapters.apps.authenticators import JwtAuthenticator, NoAuth, SharedSecret, TokenRules, issue_token
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Authenticator
from ropewalk.testing.auth import AuthenticatorSuite, request_with

SECRET = "a secret that is long enough for the hash"


class TestNoAuth(AuthenticatorSuite):
    def make(self) -> Authenticator:
        return NoAuth()

    def welcome_request(self) -> ConnectRequest:
        return request_with("")


class TestJwt(AuthenticatorSuite):
    def make(self) -> Authenticator:
        return JwtAuthenticator([SharedSecret(SECRET)], clock=lambda: 1000.0)

    def welcome_request(self) -> ConnectRequest:
        return request_with(issue_token(SECRET, "me", 2000))


class TestEnforcedJwt(TestJwt):
    def make(self) -> Authenticator:
        return JwtAuthenticator([SharedSecret(SECRET)], TokenRules(enforce=True), lambda: 1000.0)
