"""What every `ports.Application` must do, as suites of tests: whatever it asks is the obedient application.

Invariant: they know the port and the orders, and nothing of how the application is reached.
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
    """For applications that can be away, because they run elsewhere. Fill `away` too."""

    def away(self) -> AbstractAsyncContextManager[None]:
        """While it is entered, the application that is being served cannot be reached; afterwards it is where it was."""
        raise NotImplementedError("take the application away, and bring it back")

    async def test_while_it_is_away_calls_are_unavailable_and_it_is_unhealthy_until_it_is_back(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            await until_answered(ApplicationSession(application, "s-1"))
            async with self.away():
                await assert_unavailable(ApplicationSession(application, "s-2"))
                assert application.health()
            assert (await until_answered(ApplicationSession(application, "s-3"))).accepted
            assert application.health() == ""
            assert record.kinds("s-2") == []

    async def test_a_call_that_it_does_not_live_to_answer_comes_to_an_end(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await until(lambda: hanging.done() or bool(record.of("s-1")), "the application hears of the subscribe")
            async with self.away():
                assert isinstance(await failure_of(hanging), Unavailable)
