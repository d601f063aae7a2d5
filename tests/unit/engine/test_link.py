"""Slow connections: an outbox stands in, keeps the order, and does what the stream's rule says when it is full."""

from ropewalk.model.limits import Limits
from ropewalk.model.rules import SlowPolicy, StreamRule
from tests.unit.engine.workbench import Client, Workbench, public, settle

SMALL = Limits(ping_interval=0, max_pending=2000)
DROP = StreamRule("ticker", slow_consumer=SlowPolicy.DROP)


async def test_a_paused_link_gets_everything_in_order_once_it_resumes() -> None:
    async with Workbench(SMALL) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.writing_paused()
        await bench.publish("s", "1")
        await client.send(command="ping")
        await bench.publish("s", "2")
        assert client.seen() == ["welcome", "confirm_subscription"]
        client.session.writing_resumed()
        await bench.publish("s", "3")
        assert client.seen() == ["welcome", "confirm_subscription", 1, "pong", 2, 3]


async def test_a_full_outbox_disconnects_and_the_session_can_be_resumed_without_loss() -> None:
    async with Workbench(SMALL) as bench:
        client, neighbour = await bench.connect(), await bench.connect()
        for each in (client, neighbour):
            await each.send(command="subscribe", identifier=public("s"))
        (receipt,) = await bench.publish("s", "1")
        client.session.writing_paused()
        for _ in range(50):
            await bench.publish("s", '"filler"')
        assert client.connection.replies()[-1] == {"type": "disconnect", "reason": "too_slow", "reconnect": True}
        assert client.connection.closed == (1000, "Too slow")
        assert bench.stats.slow_disconnects == 1
        assert neighbour.seen()[2:] == list(range(1, 52))
        back = await bench.connect(client.sid)
        position = {"epoch": receipt.epoch, "offset": 1}
        await back.send(command="history", identifier=public("s"), history={"streams": {"s": position}})
        assert back.seen() == ["welcome", *range(2, 52), "confirm_history"]


async def test_a_stream_that_may_skip_goes_on_with_its_newest_and_says_the_gap() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        (receipt,) = await bench.publish("ticker", "1")
        client.session.writing_paused()
        for _ in range(49):
            await bench.publish("ticker", '"filler"')
        assert client.connection.closed is None
        client.session.writing_resumed()
        seen = client.seen()
        assert seen[:3] == ["welcome", "confirm_subscription", 1]
        assert "reject_history" in seen
        assert seen[-1] == 50
        gap = seen.index("reject_history")
        assert client.connection.replies()[gap]["reason"] == "dropped"
        kept = [item for item in seen if isinstance(item, int)]
        assert kept == sorted(set(kept))
        assert bench.stats.outbox_drops > 0
        # What was skipped is still history, and may be asked for.
        position = {"epoch": receipt.epoch, "offset": 1}
        await client.send(command="history", identifier=public("ticker"), history={"streams": {"ticker": position}})
        missed = client.seen()[len(seen) : -1]
        assert sorted([*kept, *missed]) == list(range(1, 51))


async def test_what_was_dropped_for_a_connection_that_never_caught_up_is_counted_too() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        client.session.writing_paused()
        for _ in range(50):
            await bench.publish("ticker", '"filler"')
        client.session.lost()

        assert bench.stats.outbox_drops > 0


async def test_a_link_that_pauses_again_while_it_drains_keeps_the_rest_in_order() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=1 << 20)) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.writing_paused()
        for _ in range(20):
            await bench.publish("s", '"%s"' % ("x" * 10_000))
        write = client.connection.write

        def full_after_one(data: bytes) -> None:
            write(data)
            client.session.writing_paused()

        client.connection.write = full_after_one  # type: ignore[method-assign]
        client.session.writing_resumed()
        some = len(client.seen())
        assert some < 22
        client.connection.write = write  # type: ignore[method-assign]
        client.session.writing_resumed()
        await bench.publish("s", "1")
        await settle()
        assert client.seen()[2:] == list(range(1, 22))


class SlowReader:
    """Makes a client's connection say "pause" at each write, and "resume" when asked."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._write = client.connection.write
        client.connection.write = self._take  # type: ignore[method-assign]

    def _take(self, data: bytes) -> None:
        self._write(data)
        self._client.session.writing_paused()

    async def read(self) -> None:
        self._client.session.writing_resumed()
        await settle()


async def test_a_long_history_is_written_piece_by_piece_as_a_slow_client_takes_it() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=300_000)) as bench:
        payload = '"%s"' % ("x" * 20_000)
        await bench.publish("s", *[payload] * 50)
        client = await bench.connect()
        reader = SlowReader(client)
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        assert sum(map(len, client.connection.written)) < 200_000
        await bench.publish("s", payload)  # while the history is still on its way
        for _ in range(60):
            await reader.read()
        await bench.publish("s", "1")
        await reader.read()
        assert client.seen() == ["welcome", "confirm_subscription", *range(1, 51), "confirm_history", 51, 52]
        assert max(map(len, client.connection.written)) < 200_000


async def test_a_client_too_slow_to_ever_finish_its_history_is_disconnected() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=100_000)) as bench:
        payload = '"%s"' % ("x" * 20_000)
        await bench.publish("s", *[payload] * 50)
        client = await bench.connect()
        reader = SlowReader(client)
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        for _ in range(60):
            await bench.publish("s", payload)
            await reader.read()
        assert client.connection.closed == (1000, "Too slow")
        seen = [item for item in client.seen() if isinstance(item, int)]
        assert seen == list(range(1, len(seen) + 1))
        assert bench.node.gauges()["streams_listened"] == 0
