"""A feed that reports a loss. The simulation tests how a stream
catches up with its feed."""

from collections.abc import Callable, Sequence

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import Broker
from ropewalk.engine.context import EngineContext
from ropewalk.engine.feed import FeedReader
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.model.rules import StreamRules
from tests.unit.engine.workbench import Workbench, public, settle


class LossyFeed:
    """Implements `ports.Feed` and delivers nothing. Tests call `missed` to report the loss."""

    exact = False
    reports_losses = False

    async def start(self, deliver: object, obey: object, missed: Callable[[], None] = lambda: None) -> None:
        self.missed = missed

    async def stop(self) -> None: ...
    async def listen(self, stream: str) -> None: ...
    def unlisten(self, stream: str) -> None: ...
    def publish(self, messages: Sequence[Registered]) -> None: ...
    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None: ...
    async def disconnect(self, request: RemoteDisconnect) -> int:
        return 0

    def health(self) -> str:
        return ""


class LossyBackend(MemoryBackend):
    """A store whose messages are not delivered."""

    def __init__(self) -> None:
        super().__init__(Rulebook(StreamRules()), lambda: 1_000_000.0)
        self.feed: LossyFeed = LossyFeed()  # type: ignore[assignment]


async def test_missed_messages_are_read_as_soon_as_the_feed_reports_a_loss() -> None:
    backend = LossyBackend()
    async with Workbench(backend=backend) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("a"))
        await bench.publish("a", "1", "2")
        before = client.seen()
        backend.feed.missed()
        for _ in range(20):
            await settle()
        assert (before[-1], client.seen()[len(before) :]) == ("confirm_subscription", [1, 2])


async def test_message_lost_by_the_store_is_not_delivered_after_its_gap() -> None:
    """The store answers a join, then loses its data, then is read again for a listener that lacks a message."""
    backend = LossyBackend()
    context = EngineContext(Limits(), Rulebook(StreamRules()), Stats(), lambda: 0.0, lambda: 0.0)
    broker = Broker(backend.streams, backend.feed, context.stats, lambda: 0.0, lambda: 0.0)
    feed = FeedReader(context, backend.feed, backend.streams, broker)
    hub = feed.hub
    joins = hub.collect("a", 1_000_000)
    await feed.follow(["a"])
    hub.audiences["a"].cursor.move("lost", 25)
    await feed.reach(Gap("a", GapReason.TRIMMED, "lost", 27, 26))
    feed.deliver([Registered("a", b"1", 0.0, "lost", 26)])
    await feed.follow(["a"])
    assert joins.take() == []
