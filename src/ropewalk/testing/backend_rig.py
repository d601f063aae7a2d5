"""The ground the backend suites stand on: how a backend is made, how its time passes, and short words for common steps."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from ropewalk.model.messages import Position, Publication, Receipt, Registered
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.ports import Backend, Clock
from ropewalk.testing.clock import ManualClock


class BackendSetup(Struct, frozen=True):
    """What a test asks of the backend it is given."""

    clock: Clock
    default: StreamRules = StreamRules()
    rules: tuple[StreamRule, ...] = ()
    dedup_ttl: float = 60.0
    dedup_limit: int = 1000
    max_members: int = 100


class BackendRig:
    """A suite's hooks and its small vocabulary."""

    clock: ManualClock

    def make(self, setup: BackendSetup) -> Backend:
        """A fresh backend, not started, with nothing in it."""
        raise NotImplementedError

    async def advance(self, seconds: float) -> None:
        """Let time pass for the backend. Fill it where the backend does not go by the clock it was given."""
        self.clock.advance(seconds)

    @asynccontextmanager
    async def running(
        self,
        default: StreamRules = StreamRules(history_limit=5, history_ttl=100.0),  # noqa: B008 - frozen
        rules: Sequence[StreamRule] = (),
        dedup_limit: int = 1000,
        max_members: int = 100,
    ) -> AsyncIterator[Backend]:
        self.clock = ManualClock()
        setup = BackendSetup(self.clock, default, tuple(rules), dedup_limit=dedup_limit, max_members=max_members)
        backend = self.make(setup)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.stop()


async def publish(backend: Backend, stream: str, count: int = 1) -> list[Registered]:
    """Append `count` numbered publications to a stream. Their time is known if the last of them is kept."""
    batch = [Publication(stream, b"%d" % number) for number in range(1, count + 1)]
    receipts = await backend.streams.append(batch)
    page = await backend.streams.page(stream, receipts[-1].offset - 1, 1)
    now = page.messages[0].timestamp if page and page.messages else 0.0
    pairs = zip(batch, receipts, strict=True)
    return [Registered(stream, item.payload, now, receipt.epoch, receipt.offset) for item, receipt in pairs]


def at(message: Receipt | Registered) -> Position:
    return Position(message.epoch, message.offset)


def offsets(messages: Sequence[Registered]) -> list[int]:
    return [message.offset for message in messages]
