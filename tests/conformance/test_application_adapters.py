"""The adapters of `ports.Application` in front of the obedient application: the complete suite over each wire.

The servers of gRPC and HTTP run in this process. Behind a real server, see applications/.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.apps.python.application import PythonApplication
from ropewalk.adapters.apps.rpc.calls import Calls
from ropewalk.adapters.apps.rpc.grpc import GrpcApplication
from ropewalk.adapters.apps.rpc.http import HttpApplication
from ropewalk.core.stats import Stats
from ropewalk.model.limits import AppLimits
from ropewalk.ports import Application
from ropewalk.testing import application_events as events
from ropewalk.testing.application import ApplicationConformance, RemoteApplicationConformance
from ropewalk.testing.application_rig import ApplicationSetup
from tests.conformance.applications import obedient_channels
from tests.conformance.applications.obedient_rpc import ObedientBackend
from tests.rpc_servers import GrpcServer, HttpServer


class TestPythonChannels(ApplicationConformance):
    @asynccontextmanager
    async def serving(self, setup: ApplicationSetup) -> AsyncIterator[Application]:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(obedient_channels.LOG, str(setup.log))
            limits = AppLimits(threads=setup.concurrency, timeout=setup.timeout)
            yield PythonApplication(lambda: obedient_channels.app, Stats(), limits)

    def told(self, log: Path) -> list[events.ApplicationEvent]:
        return events.folded(events.read(log))


def calls(setup: ApplicationSetup) -> Calls:
    """Without retries: `chance` makes every pause too long. Many failed attempts would stop all calls for some seconds."""
    return Calls(Stats(), AppLimits(concurrency=setup.concurrency, command_timeout=setup.timeout), chance=lambda: 1e9)


class Rpc(RemoteApplicationConformance):
    server: GrpcServer | HttpServer

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        await self.server.stop()
        yield
        await self.server.start()


@pytest.mark.tier("standard")
class TestGrpc(Rpc):
    @asynccontextmanager
    async def serving(self, setup: ApplicationSetup) -> AsyncIterator[Application]:
        async with GrpcServer(ObedientBackend(setup.log)) as self.server:
            yield GrpcApplication(self.server.host, calls(setup), restore=True)


@pytest.mark.tier("standard")
class TestHttp(Rpc):
    @asynccontextmanager
    async def serving(self, setup: ApplicationSetup) -> AsyncIterator[Application]:
        async with HttpServer(ObedientBackend(setup.log)) as self.server:
            yield HttpApplication(self.server.url, "", calls(setup), restore=True)
