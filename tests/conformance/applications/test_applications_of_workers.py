"""The suite of applications behind a server of several processes: whichever of them has a session, and whichever it comes back
to, an application is told the same."""

from collections.abc import Iterator

import pytest

from tests.conformance.applications.connects import Connecting
from tests.conformance.applications.crashes import Crashing
from tests.conformance.applications.disconnects import Leaving
from tests.conformance.applications.restores import Resuming
from tests.conformance.applications.stage import GRPC, HTTP, PYTHON, RESTORE, Stage, staged
from tests.conformance.applications.test_applications import HISTORY, SEEN, ApplicationSuite

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture(scope="class")
def stage(request: pytest.FixtureRequest, workers: None) -> Iterator[Stage]:
    with staged(request.cls.kind, *HISTORY, *SEEN, RESTORE) as stage:
        yield stage


class TestPythonChannels(ApplicationSuite):
    kind = PYTHON


class TestGrpc(Connecting, Resuming, Leaving, Crashing):
    kind = GRPC


class TestHttp(Resuming, Leaving, Crashing):
    kind = HTTP
