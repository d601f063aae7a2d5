"""Credit: deliveries wait for it in order, replies do not, and who grants none is closed by the write timeout."""

from ropewalk.engine.timeouts import TICK
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.model.rules import SlowPolicy, StreamRule
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.codec import BrokyCodec
from ropewalk.protocol.broky.credit import CreditMeter
from ropewalk.protocol.broky.frames import Body, Gap, Ping, Pong, Reason, Refused, Run, Subscribe, Subscribed, Unsubscribe
from ropewalk.protocol.broky.runs import decode, encode_run
from ropewalk.protocol.broky.splitter import FrameSplitter
from ropewalk.protocol.broky.tables import encode
from tests.unit.engine.workbench import Client, Workbench, settle

SMALL = Limits(ping_interval=0, max_pending=3000, write_timeout=2.0)
DROP = StreamRule("ticker", slow_consumer=SlowPolicy.DROP)


class Subscriber:
    """A session over Broky that has some credit."""

    def __init__(self, bench: Workbench, credit: int) -> None:
        self.meter = CreditMeter(credit)
        bench.codec = BrokyCodec(frames.Welcome(), None, self.meter)
        self.client: Client = bench.open_connection()
        self.session = self.client.session

    async def send(self, *bodies: Body) -> None:
        for body in bodies:
            self.session.receive(encode(body))
        await settle()

    async def grant(self, more: int) -> None:
        self.meter.grant(more)
        self.session.credit_granted()
        await settle()

    def got(self) -> list[Body]:
        """After the welcome."""
        splitter = FrameSplitter()
        return [decode(frame) for data in self.client.connection.written for frame in splitter.feed(data)][1:]

    def seen(self) -> list[int | type]:
        return [body.offset if isinstance(body, Run) else type(body) for body in self.got()]

    def runs(self) -> list[Run]:
        return [body for body in self.got() if isinstance(body, Run)]


async def subscriber(bench: Workbench, credit: int) -> Subscriber:
    opened = Subscriber(bench, credit)
    await opened.session.wait_opened()
    return opened


def size(run: Run) -> int:
    return len(encode_run(run))


async def test_deliveries_stop_without_credit_and_continue_when_granted() -> None:
    async with Workbench() as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        for number in range(1, 6):
            await bench.publish("s", str(number))
        assert client.seen() == [Subscribed, 1]
        one = size(client.runs()[0])
        await client.grant(one - 1)  # the first run exceeded the credit, which is now negative
        assert client.seen() == [Subscribed, 1]
        await client.grant(1)
        assert client.seen() == [Subscribed, 1, 2]
        await client.grant(one + 1)
        assert client.seen() == [Subscribed, 1, 2, 3]
        await client.grant(100 * one)
        await bench.publish("s", "6")
        assert client.seen() == [Subscribed, 1, 2, 3, 4, 5, 6]
        assert client.meter.left == 1 + one - 1 + 1 + one + 1 + 100 * one - sum(map(size, client.runs()))


async def test_half_closed_client_gets_its_replies_but_nothing_that_needs_more_credit() -> None:
    async with Workbench() as bench:
        client = await subscriber(bench, 1)
        await bench.publish("long", *["x" * 1000] * 100)
        await client.send(Subscribe(1, b"s"))
        await bench.publish("s", "1")
        await bench.publish("s", "2")
        await client.send(Subscribe(2, b"long", history=True), Ping(3))
        before = client.seen()
        assert Pong not in before  # it is queued behind a history that waits for credit
        rest = client.session.finish()
        assert rest is not None
        await rest
        assert client.seen() == [*before, Pong]
        await bench.publish("s", "3")
        assert client.seen() == [*before, Pong]
        assert client.session.finish() is None


async def test_only_as_many_runs_of_a_tick_are_sent_as_credit_allows() -> None:
    async with Workbench() as bench:
        client = await subscriber(bench, 500)
        await client.send(Subscribe(1, b"s"))
        await bench.publish("s", *['"%s"' % ("x" * 100)] * 20)
        runs = client.runs()
        assert sum(map(size, runs[:-1])) < 500
        await client.grant(100_000)
        assert [run.offset for run in client.runs()][-1] + client.runs()[-1].count - 1 == 20


async def test_replies_do_not_wait_for_credit() -> None:
    async with Workbench() as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        await bench.publish("s", "1")
        await bench.publish("s", "2")
        await client.send(Ping(7), Subscribe(2, b"t"), Subscribe(3, b""))
        assert client.seen() == [Subscribed, 1, Pong, Subscribed, Refused]
        await client.grant(10_000)
        assert client.seen()[5:] == [2]


async def test_unsubscribed_key_gets_no_messages_and_a_new_subscription_no_duplicates() -> None:
    async with Workbench() as bench:
        for number in "123":
            bench.clock.now += 1  # messages with the same time may be one run
            (receipt,) = await bench.publish("s", number)
        bench.clock.now += 1
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s", epoch=receipt.epoch.encode(), offset=0), Subscribe(2, b"t"))
        await bench.publish("s", "4")
        await bench.publish("t", '"kept"')
        before = client.seen()
        await client.send(Unsubscribe(3, b"s"), Ping(4))
        assert client.seen()[len(before) :] == [Pong]
        await client.send(Subscribe(5, b"s", epoch=receipt.epoch.encode(), offset=2))
        await client.grant(100_000)
        tail = client.got()[len(before) + 1 :]
        assert isinstance(tail[0], Subscribed)
        assert [(body.key, body.offset) for body in tail[1:] if isinstance(body, Run)] == [(b"t", 1), (b"s", 3), (b"s", 4)]


async def test_history_waits_for_credit_and_live_messages_follow_it() -> None:
    async with Workbench() as bench:
        payload = '"%s"' % ("x" * 20_000)
        (receipt, *_) = await bench.publish("s", *[payload] * 20)
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s", epoch=receipt.epoch.encode()))
        await bench.publish("s", '"live"')
        assert client.seen() == [Subscribed, 1]
        for _ in range(200):
            await client.grant(10_000)
        assert client.seen() == [Subscribed, *range(1, 22)]


async def test_client_without_credit_is_closed_by_the_outbox_limit() -> None:
    async with Workbench(SMALL) as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        for _ in range(52):
            await bench.publish("s", '"filler"')
        assert client.client.connection.closed == (1000, "Too slow")
        assert client.seen() == [Subscribed, 1, frames.Error]


async def test_client_that_grants_nothing_while_messages_wait_is_closed_by_the_timeout() -> None:
    async with Workbench(SMALL) as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        await bench.publish("s", "1")
        bench.pass_time(100)  # its credit is used up, and nothing waits
        assert client.client.connection.closed is None
        await bench.publish("s", "2")
        bench.pass_time(SMALL.write_timeout - TICK)
        await client.send(Ping(2))
        assert client.client.connection.closed is None
        bench.pass_time(3 * TICK)
        assert client.client.connection.closed == (1000, "Too slow")
        assert bench.stats.refusals == {Refusal.WRITE_TIMEOUT: 1}


async def test_history_that_waits_for_credit_ends_with_the_write_timeout() -> None:
    """Credit that is less than what the last run took too much brings nothing, and so it is no progress."""
    async with Workbench(Limits(ping_interval=0, write_timeout=2.0)) as bench:
        (receipt, *_) = await bench.publish("s", *['"%s"' % ("x" * 1000)] * 500)
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s", epoch=receipt.epoch.encode()))
        for _ in range(8):
            bench.pass_time(TICK)
            await client.grant(1)
        assert client.client.connection.closed is None
        assert bench.node.waiting_history.bytes > 0
        bench.pass_time(2 * TICK)
        assert client.client.connection.closed == (1000, "Too slow")
        await settle()
        assert bench.node.waiting_history.bytes == 0


async def test_history_of_large_messages_that_waits_for_credit_ends_with_the_write_timeout() -> None:
    """Each write is one run: what was written is sent, and the rest of the answer waits."""
    async with Workbench(Limits(ping_interval=0, write_timeout=2.0)) as bench:
        (receipt, *_) = await bench.publish("s", *['"%s"' % ("x" * 100_000)] * 5)
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s", epoch=receipt.epoch.encode()))
        assert client.seen() == [Subscribed, 1]
        assert bench.node.waiting_history.bytes > 0
        bench.pass_time(SMALL.write_timeout + 2 * TICK)
        assert client.client.connection.closed == (1000, "Too slow")
        await settle()
        assert bench.node.waiting_history.bytes == 0


async def test_client_that_grants_some_credit_in_time_is_not_closed() -> None:
    async with Workbench(SMALL) as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        for number in range(10):
            bench.clock.now += 1
            await bench.publish("s", str(number))
        for _ in range(8):
            bench.pass_time(SMALL.write_timeout)
            await client.grant(size(client.runs()[0]))
        assert client.client.connection.closed is None
        assert len(client.runs()) == 9


async def test_client_without_credit_that_does_not_read_is_closed_by_the_timeout() -> None:
    async with Workbench(SMALL) as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        await bench.publish("s", "1")
        client.session.pause_writing()
        bench.pass_time(100 * TICK)
        assert client.client.connection.closed == (1000, "Too slow")


async def test_droppable_stream_skips_and_its_gaps_cover_exactly_the_missing_messages() -> None:
    async with Workbench(SMALL, [DROP]) as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"ticker"))
        for _ in range(20):
            await bench.publish("ticker", *['"filler"'] * 7)
        await client.grant(1_000_000)
        expected = 1
        for body in client.got()[1:]:
            if isinstance(body, Gap):
                assert (body.reason, body.last >= expected) == (Reason.SLOW, True)
                expected = body.last + 1
            else:
                assert isinstance(body, Run)
                assert body.offset == expected
                expected += body.count
        assert expected == 141
        assert bench.stats.gaps
        await bench.publish("ticker", "141")
        assert client.seen()[-1] == 141


async def test_delivery_needs_both_a_writable_transport_and_credit() -> None:
    async with Workbench() as bench:
        client = await subscriber(bench, 1)
        await client.send(Subscribe(1, b"s"))
        for number in range(1, 4):
            await bench.publish("s", str(number))
        client.session.pause_writing()
        await client.grant(10_000)
        assert client.seen() == [Subscribed, 1]
        client.session.resume_writing()
        assert client.seen() == [Subscribed, 1, 2, 3]
        client.session.pause_writing()
        await bench.publish("s", "4")
        client.meter.left = 1
        client.session.resume_writing()
        await bench.publish("s", "5")
        assert client.seen() == [Subscribed, 1, 2, 3, 4]
        await client.grant(10_000)
        assert client.seen() == [Subscribed, 1, 2, 3, 4, 5]
