"""Every kind of application behind a real server, through one suite: what clients see and what the application is told.

Each kind runs the same obedient application, see `orders`.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.applications.actions import Acting
from tests.conformance.applications.connects import Connecting
from tests.conformance.applications.crashes import Crashing
from tests.conformance.applications.disconnects import Leaving
from tests.conformance.applications.restores import Resuming
from tests.conformance.applications.rpc_wire import RpcWire
from tests.conformance.applications.sse import Sse
from tests.conformance.applications.stage import GRPC, HTTP, PYTHON, RESTORE, Stage, staged
from tests.conformance.applications.subscriptions import Subscribing

HISTORY = ("--history_limit", "5", "--resume_patience", "60s", "--sse", "--streams_whisper")
SEEN = ("--headers", "cookie,x-tenant", "--proxy_cookies", "user,theme")


@pytest.fixture(scope="class")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """One for all tests of a kind that need no settings of their own."""
    with staged(request.cls.kind, *HISTORY, *SEEN, RESTORE) as stage:
        yield stage


class ApplicationSuite(Connecting, Subscribing, Acting, Resuming, Leaving, Crashing, Sse):
    """Inherit it and name the kind."""


class TestGrpc(ApplicationSuite, RpcWire):
    kind = GRPC


class TestHttp(ApplicationSuite, RpcWire):
    kind = HTTP


class TestPythonChannels(ApplicationSuite):
    kind = PYTHON
