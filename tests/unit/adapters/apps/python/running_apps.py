"""Apps that run in the process of the test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ropewalk.adapters.apps.python.application import PythonApplication
from ropewalk.channels import App
from ropewalk.core.stats import Stats
from ropewalk.model.application import Action, CallContext, CommandCall
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect

BO = CallContext("s-1", ids='{"name":"Bo"}')


ROOM = '{"channel":"Room"}'


class FakePublisher:
    """A publisher that records publications, or is down."""

    def __init__(self, down: bool = False) -> None:
        self.published: list[Publication] = []
        self._down = down

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        if self._down:
            raise Unavailable("publisher is down")
        self.published += publications
        return [Receipt(each.stream, "e", 1) for each in publications]

    async def disconnect(self, order: RemoteDisconnect) -> int:
        return 0


@asynccontextmanager
async def running(
    app: App, stats: Stats | None = None, publisher: FakePublisher | None = None, **settings: Any
) -> AsyncIterator[PythonApplication]:
    application = PythonApplication(lambda: app, stats or Stats(), **settings)
    await application.start(publisher or FakePublisher())
    try:
        yield application
    finally:
        await application.stop()


def perform(name: str) -> CommandCall:
    return CommandCall(BO, Action.PERFORM, ROOM, data=f'{{"action":"{name}"}}')
