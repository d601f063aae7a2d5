"""Conformance suites for `ports.Application`, with the obedient application behind the adapter.

Invariant: they use the port and the orders only and do not depend on how the application is reached.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from ropewalk.model.errors import Unavailable
from ropewalk.testing.application_calls import CommandCalls, SessionCalls
from ropewalk.testing.application_failures import ApplicationUpkeep, CallFailures, assert_unavailable
from ropewalk.testing.application_orders import Order
from ropewalk.testing.application_rig import ApplicationSession, failure_of, until, until_answered

__all__ = ["ApplicationConformance", "RemoteApplicationConformance"]


class ApplicationConformance(SessionCalls, CommandCalls, CallFailures, ApplicationUpkeep):
    """Inherit it as `TestMyApplication` and fill `serving`. See `application_rig` and `application_orders`."""


class RemoteApplicationConformance(ApplicationConformance):
    """For applications in other processes, which can be unreachable. Fill `away` too."""

    def away(self) -> AbstractAsyncContextManager[None]:
        """Make the served application unreachable while entered; afterwards it is reachable at the same address."""
        raise NotImplementedError("stop the application, and start it again")

    async def test_unreachable_application_is_unavailable_until_it_returns(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            await until_answered(ApplicationSession(application, "s-1"))
            async with self.away():
                await assert_unavailable(ApplicationSession(application, "s-2"))
                assert application.health()
            assert (await until_answered(ApplicationSession(application, "s-3"))).accepted
            assert application.health() == ""
            assert record.kinds("s-2") == []

    async def test_pending_call_ends_if_the_application_stops(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await until(lambda: hanging.done() or bool(record.of("s-1")), "the application receives the subscribe")
            async with self.away():
                assert isinstance(await failure_of(hanging), Unavailable)
