"""Slow connections: the outbox keeps the order and applies the stream's policy when it is full."""

import json

from ropewalk.model.limits import Limits
from ropewalk.model.messages import Publication
from ropewalk.model.rules import SlowPolicy, StreamRule
from tests.unit.engine.workbench import Client, RecordingConnection, SlowReader, Workbench, public, settle

SMALL = Limits(ping_interval=0, max_pending=2000)
DROP = StreamRule("ticker", slow_consumer=SlowPolicy.DROP)


async def test_paused_link_sends_everything_in_order_once_resumed() -> None:
    async with Workbench(SMALL) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        await bench.publish("s", "1")
        await client.send(command="ping")
        await bench.publish("s", "2")
        assert client.seen() == ["welcome", "confirm_subscription"]
        client.session.resume_writing()
        await bench.publish("s", "3")
        assert client.seen() == ["welcome", "confirm_subscription", 1, "pong", 2, 3]


class Socket:
    """Implements `DirectWrites` for a connection that records."""

    def __init__(self, connection: RecordingConnection) -> None:
        self._connection = connection
        self.sent = 0
        self.ended = False

    def send(self, data: bytes) -> int:
        assert not self.ended
        self.sent += 1
        self._connection.write(data)
        return len(data)

    def end(self) -> None:
        self.ended = True


async def test_deliveries_use_the_socket_directly_while_there_is_one_stream() -> None:
    async with Workbench(SMALL) as bench:
        connection = RecordingConnection()
        connection.direct = socket = Socket(connection)
        client = await bench.connect(connection=connection)
        await client.send(command="subscribe", identifier=public("s"))
        await bench.publish("s", "1")
        client.session.pause_writing()
        await bench.publish("s", "2")
        assert socket.sent == 1
        client.session.resume_writing()
        await bench.publish("s", "3")
        assert (socket.sent, socket.ended) == (2, False)
        await client.send(command="subscribe", identifier=public("other"))
        assert socket.ended
        await bench.publish("s", "4")
        await bench.publish("other", "1")
        assert client.seen() == ["welcome", "confirm_subscription", 1, 2, 3, "confirm_subscription", 4, 1]


async def test_full_outbox_disconnects_and_the_session_resumes_without_loss() -> None:
    async with Workbench(SMALL) as bench:
        client, neighbour = await bench.connect(), await bench.connect()
        for each in (client, neighbour):
            await each.send(command="subscribe", identifier=public("s"))
        (receipt,) = await bench.publish("s", "1")
        client.session.pause_writing()
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


async def test_droppable_stream_skips_to_its_newest_message_and_reports_the_gap() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        (receipt,) = await bench.publish("ticker", "1")
        client.session.pause_writing()
        for _ in range(49):
            await bench.publish("ticker", '"filler"')
        assert client.connection.closed is None
        client.session.resume_writing()
        seen = client.seen()
        assert seen[:3] == ["welcome", "confirm_subscription", 1]
        assert "reject_history" in seen
        assert seen[-1] == 50
        gap = seen.index("reject_history")
        assert client.connection.replies()[gap]["reason"] == "dropped"
        kept = [item for item in seen if isinstance(item, int)]
        assert kept == sorted(set(kept))
        assert bench.stats.outbox_drops > 0
        # Skipped messages are still in history and can be requested.
        position = {"epoch": receipt.epoch, "offset": 1}
        await client.send(command="history", identifier=public("ticker"), history={"streams": {"ticker": position}})
        missed = client.seen()[len(seen) : -1]
        assert sorted([*kept, *missed]) == list(range(1, 51))


async def test_drops_of_a_connection_that_never_resumed_are_counted() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        client.session.pause_writing()
        for _ in range(50):
            await bench.publish("ticker", '"filler"')
        client.session.connection_lost()

        assert bench.stats.outbox_drops > 0


async def drop(bench: Workbench, client: Client, count: int) -> list[int]:
    """Publish while the client is slow. Returns the offsets that were dropped."""
    before = len(client.seen())
    client.session.pause_writing()
    for _ in range(count):
        await bench.publish("ticker", '"filler"')
    client.session.resume_writing()
    came = [item for item in client.seen()[before:] if isinstance(item, int)]
    assert "reject_history" in client.seen()[before:]
    return [offset for offset in range(came[-1] - count + 1, came[-1]) if offset not in came]


async def test_history_after_several_drops_has_exactly_the_dropped_messages() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        (receipt, *_) = await bench.publish("ticker", "1", "2")
        dropped = await drop(bench, client, 30)
        await bench.publish("ticker", "0", "0")
        dropped += await drop(bench, client, 30)
        await bench.publish("ticker", "0")
        seen = client.seen()
        for position in (40, 1):
            history = {"streams": {"ticker": {"epoch": receipt.epoch, "offset": position}}}
            await client.send(command="history", identifier=public("ticker"), history=history)
        answers = client.seen()[len(seen) :]
        first = answers.index("confirm_history")
        assert answers[:first] == [offset for offset in dropped if offset > 40]
        assert answers[first + 1 : -1] == [offset for offset in dropped if offset <= 40]
        tip = (await bench.publish("ticker", "0"))[0].offset
        assert sorted(item for item in client.seen() if isinstance(item, int)) == list(range(1, tip + 1))


async def test_write_larger_than_the_outbox_is_dropped_and_reported() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        (receipt,) = await bench.publish("ticker", "1")
        client.session.pause_writing()
        await bench.publish("ticker", "2")
        await bench.publish("ticker", *['"filler"'] * 40)  # joined into one write
        assert client.connection.closed is None
        client.session.resume_writing()
        assert client.seen()[2:] == [1, 2, "reject_history"]
        assert client.connection.replies()[-1]["streams"] == {
            "ticker": {"reason": "dropped", "epoch": receipt.epoch, "oldest": 43, "tip": 42}
        }
        await bench.publish("ticker", "43")
        position = {"epoch": receipt.epoch, "offset": 1}
        await client.send(command="history", identifier=public("ticker"), history={"streams": {"ticker": position}})
        assert client.seen()[5:] == [43, *range(3, 43), "confirm_history"]
        assert bench.stats.slow_disconnects == 0


async def test_drop_of_an_unsubscribed_stream_is_ignored() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("ticker"))
        client.session.pause_writing()
        for _ in range(50):
            await bench.publish("ticker", '"filler"')
        subscription = client.session.subscriptions[public("ticker")]
        bench.node.joiner.cut(client.session.link, subscription, ["ticker"])
        client.session.resume_writing()
        assert client.connection.closed is None


async def test_link_paused_again_while_draining_keeps_the_order() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=1 << 20)) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        for _ in range(20):
            await bench.publish("s", '"%s"' % ("x" * 10_000))
        write = client.connection.write

        def full_after_one(data: bytes) -> None:
            write(data)
            client.session.pause_writing()

        client.connection.write = full_after_one  # type: ignore[method-assign]
        client.session.resume_writing()
        some = len(client.seen())
        assert some < 22
        client.connection.write = write  # type: ignore[method-assign]
        client.session.resume_writing()
        await bench.publish("s", "1")
        await settle()
        assert client.seen()[2:] == list(range(1, 22))


async def test_long_history_is_written_in_chunks_to_a_slow_client() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=300_000)) as bench:
        payload = '"%s"' % ("x" * 20_000)
        await bench.publish("s", *[payload] * 50)
        client = await bench.connect()
        reader = SlowReader(client)
        await client.send(command="subscribe", identifier=public("s"), history={"since": 1})
        assert sum(map(len, client.connection.written)) < 200_000
        await bench.publish("s", payload)  # while the history is still being sent
        for _ in range(60):
            await reader.read()
        await bench.publish("s", "1")
        await reader.read()
        assert client.seen() == ["welcome", "confirm_subscription", *range(1, 51), "confirm_history", 51, 52]
        assert max(map(len, client.connection.written)) < 200_000


async def test_client_too_slow_for_its_history_is_disconnected() -> None:
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
        assert bench.report().streams_listened == 0


async def test_client_too_slow_for_its_history_skips_on_a_droppable_stream() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=100_000), [DROP]) as bench:
        payload = '"%s"' % ("x" * 20_000)
        (receipt, *_) = await bench.publish("ticker", *[payload] * 50)
        client = await bench.connect()
        reader = SlowReader(client)
        await client.send(command="subscribe", identifier=public("ticker"), history={"since": 1})
        for _ in range(20):
            await bench.publish("ticker", payload)
            await reader.read()
        for _ in range(60):
            await reader.read()
        assert client.connection.closed is None
        assert "dropped" in [reply.get("reason") for reply in client.connection.replies()]
        (last,) = await bench.publish("ticker", "1")
        await reader.read()
        seen = [item for item in client.seen() if isinstance(item, int)]
        assert seen == sorted(set(seen))
        assert seen[-1] == last.offset
        # Skipped messages are still in history and are sent once.
        position = {"epoch": receipt.epoch, "offset": 0}
        await client.send(command="history", identifier=public("ticker"), history={"streams": {"ticker": position}})
        for _ in range(60):
            await reader.read()
        assert sorted(item for item in client.seen() if isinstance(item, int)) == list(range(1, last.offset + 1))


async def test_messages_without_a_position_never_close_a_slow_connection() -> None:
    async with Workbench(SMALL) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        await bench.publish("s", "1")
        for _ in range(50):
            await bench.publish("s", '"typing"', transient=True)
            await bench.publish("s", '"cursor"', transient=True, exclude_socket="another")
        await bench.publish("s", "2")
        assert client.connection.closed is None
        assert bench.stats.slow_disconnects == 0
        assert bench.stats.outbox_drops > 0
        client.session.resume_writing()
        assert [each for each in client.seen()[2:] if each] == [1, 2]


async def test_messages_with_positions_take_the_room_of_messages_without() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending=1000)) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        await bench.publish("s", json.dumps("x" * 800), transient=True)
        for number in range(4):
            await bench.publish("s", str(number))
        assert client.connection.closed is None
        client.session.resume_writing()
        assert client.seen()[2:] == [1, 2, 3, 4]


async def test_mixed_messages_of_one_tick_are_dropped_apart_from_each_other() -> None:
    async with Workbench(SMALL) as bench:
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        for number in range(1, 9):
            large = Publication("s", json.dumps("x" * 1000).encode(), transient=True)
            await bench.node.broker.publish([large, Publication("s", str(number).encode()), large])
            await settle()
        assert client.connection.closed is None
        client.session.resume_writing()
        assert [each for each in client.seen()[2:] if each] == list(range(1, 9))


async def test_dropped_messages_without_a_position_are_reported_to_clients_that_follow_positions() -> None:
    async with Workbench(SMALL) as bench:
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        for _ in range(50):
            await bench.publish("s", '"typing"', transient=True)
        client.session.resume_writing()
        notice = next(each for each in client.connection.replies() if each.get("type") == "reject_history")
        assert notice["streams"] == {"s": {"reason": "dropped", "epoch": "", "oldest": 1, "tip": 0}}
        assert bench.stats.gaps["dropped"] == 1


async def test_presence_events_are_not_dropped_for_a_slow_connection() -> None:
    async with Workbench(SMALL) as bench:
        client, other = await bench.connect(), await bench.connect()
        for each in (client, other):
            await each.send(command="subscribe", identifier=public("s"))
        client.session.pause_writing()
        for number in range(50):
            await other.send(command="join", identifier=public("s"), presence={"id": str(number)})
        assert client.connection.closed == (1000, "Too slow")
