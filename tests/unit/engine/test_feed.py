"""What waits while a stream is out of step with its feed, and a feed that says it lost something. How a stream comes back into
step is for the simulation to show."""

from collections.abc import Callable, Sequence

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.feed import FeedReader
from ropewalk.engine.hub import MESSAGE_BYTES, Backlog, Hub
from ropewalk.engine.prefixes import Prefixes
from ropewalk.engine.tasks import Tasks
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Registered, RemoteDisconnect, TransientRun
from ropewalk.model.rules import StreamRules
from tests.unit.engine.workbench import Workbench, public, settle


async def test_a_backlog_is_bounded_however_small_its_messages_are() -> None:
    backlog = Backlog(100 * MESSAGE_BYTES)
    most = 0
    for offset in range(1, 1_000):
        backlog.add(Registered("a", b"1", 0.0, "e", offset))
        most = max(most, len(backlog.messages))
    assert backlog.overflowed
    assert 90 < most < 100


async def test_there_is_room_again_for_what_comes_after_it_was_taken() -> None:
    backlog = Backlog(2 * MESSAGE_BYTES)
    backlog.add(Registered("a", b"1", 0.0, "e", 1))
    assert [message.offset for message in backlog.take()] == [1]
    backlog.add(Registered("a", b"1", 0.0, "e", 2))
    assert ([message.offset for message in backlog.take()], backlog.overflowed) == ([2], False)


class LossyFeed:
    """Implements `ports.Feed` and brings nothing; it says so when it is asked to."""

    exact = False
    tells_losses = False

    async def start(self, deliver: object, obey: object, missed: Callable[[], None] = lambda: None) -> None:
        self.missed = missed

    async def stop(self) -> None: ...
    async def listen(self, stream: str) -> None: ...
    def unlisten(self, stream: str) -> None: ...
    def publish(self, messages: Sequence[Registered]) -> None: ...
    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None: ...
    async def command(self, order: RemoteDisconnect) -> int:
        return 0

    def health(self) -> str:
        return ""


class LossyBackend(MemoryBackend):
    """A store whose messages come to nobody."""

    def __init__(self) -> None:
        super().__init__(Rulebook(StreamRules()), lambda: 1_000_000.0)
        self.feed: LossyFeed = LossyFeed()  # type: ignore[assignment]


async def test_what_a_feed_missed_is_read_as_soon_as_it_says_so() -> None:
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


async def test_who_was_told_of_a_message_that_the_store_then_lost_does_not_get_it_late() -> None:
    """The store answers a join, loses its data, and is asked again for those who lack a message of that answer."""
    backend, stats, tasks = LossyBackend(), Stats(), Tasks()
    hub = Hub(stats, lambda: 0.0)
    prefixes = Prefixes(backend.feed, hub, str.encode, lambda heard: None)
    feed = FeedReader(backend.feed, hub, backend.streams, tasks, stats, lambda: 0.0, lambda: 0.0, prefixes)
    joins = hub.collect("a", 1_000_000)
    await feed.follow(["a"])
    hub.audiences["a"].cursor.move("lost", 25)
    await feed.reach(Gap("a", GapReason.TRIMMED, "lost", 27, 26))
    feed.deliver([Registered("a", b"1", 0.0, "lost", 26)])
    await feed.follow(["a"])
    assert joins.take() == []
