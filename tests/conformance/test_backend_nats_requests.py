"""The NATS backend on one running server: limits of NATS, lost responses, cut connections, and nodes that are behind.

All cases share the server; each has a prefix of its own.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.nats import streams as nats_streams
from ropewalk.adapters.backends.nats.names import NatsOptions
from ropewalk.adapters.backends.nats.presence import EXPIRED_AT_ONCE
from ropewalk.connections import nats as connections
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import TooLarge, Unanswered, Unavailable
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication, RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import EndRequest, SessionSnapshot
from ropewalk.ports import NodeName
from ropewalk.testing.backend_rig import at
from ropewalk.testing.clock import ManualClock
from tests.conformance.feed_recorder import FeedRecorder
from tests.conformance.nats_nodes import (
    Proxy,
    healthy,
    history,
    node_of,
    published,
    running,
    unhealthy,
    until,
)
from tests.services import NatsServer, nats_server

pytestmark = pytest.mark.tier("standard")

MESSAGE = 1024 * 1024
"""Bytes of a message, by the default of NATS."""

numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


@pytest.fixture
def prefix() -> str:
    return f"r{next(numbers)}"


async def test_session_limit_expires_the_oldest_sessions(server: NatsServer, prefix: str) -> None:
    rules, snapshot = Rulebook(StreamRules()), SessionSnapshot("ids", {}, names=("x" * 1000,))
    for part, limit, size in (("a", 3, 1_000_000), ("b", 100, 3500)):
        address = NatsAddress((server.url,))
        limits = StoreLimits(sessions_limit=limit, max_sessions_size=size)
        one = NatsBackend(address, NodeName("one", "one"), rules, time.time, limits, NatsOptions(prefix + part, shards=1))
        async with running(one):
            for sid in range(5):
                await one.sessions.save(str(sid), snapshot, 100.0 + sid)
            assert {sid for sid, _ in await one.sessions.take_expired(10)} == {"0", "1"}
            assert await one.sessions.take_expired(10) == []
            assert one.gauges()["sessions_kept"] == 3
            assert await one.sessions.peek("2") == snapshot
            assert await one.sessions.peek("1") is None


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not-stored"])
async def test_expired_sessions_are_reported_once_if_a_removal_is_unanswered(
    server: NatsServer, prefix: str, stored: bool
) -> None:
    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    async with running(one, two):
        for sid in "abcde":
            await one.sessions.save(sid, SessionSnapshot(sid, {}), 0.0)
        write, calls = one._table.write, count(1)

        async def unanswered(changes: Any) -> int:
            if next(calls) != 3:
                return await write(changes)
            if stored:
                await write(changes)
            raise Unanswered("no answer")

        one._table.write = unanswered  # type: ignore[method-assign]
        given = await one.sessions.take_expired(10)
        assert len(given) == 2
        given += await two.sessions.take_expired(1)
        for _ in range(3):
            given += [*await one.sessions.take_expired(10), *await two.sessions.take_expired(10)]
        assert sorted(sid for sid, _ in given) == list("abcde")


async def test_session_taken_after_an_unanswered_removal_is_not_reported(server: NatsServer, prefix: str) -> None:
    rules = Rulebook(StreamRules())
    limits, options = StoreLimits(sessions_limit=1), NatsOptions(prefix, shards=1)
    one = NatsBackend(NatsAddress((server.url,)), NodeName("one", "one"), rules, time.time, limits, options)
    async with running(one):
        for sid in "ab":
            await one.sessions.save(sid, SessionSnapshot(sid, {}), 100.0)
        write = one._table.write

        async def unanswered(changes: Any) -> int:
            raise Unanswered("no answer")

        one._table.write = unanswered  # type: ignore[method-assign]
        with pytest.raises(Unanswered):  # one too many is kept
            await one.sessions.take_expired(10)
        one._table.write = write  # type: ignore[method-assign]
        assert await one.sessions.take("a", "c")
        assert await one.sessions.take("b")
        assert await one.sessions.take_expired(10) == []


async def test_interrupted_revoke_reports_all_removed_sessions_later(server: NatsServer, prefix: str) -> None:
    one = node_of([server.url], prefix, "one")
    async with running(one):
        for sid in "abc":
            await one.sessions.save(sid, SessionSnapshot("ids", {}), 100.0)
        write, calls = one._table.write, count(1)

        async def unanswered(changes: Any) -> int:
            if next(calls) == 3:  # the order itself is the first
                raise Unanswered("no answer")
            return await write(changes)

        one._table.write = unanswered  # type: ignore[method-assign]
        with pytest.raises(Unanswered):
            await one.sessions.revoke("ids", True)
        again = await one.sessions.revoke("ids", True)
        given = [*again, *await one.sessions.take_expired(10), *await one.sessions.take_expired(10)]
        assert sorted(sid for sid, _ in given) == list("abc")


async def test_concurrent_write_of_another_node_does_not_count_as_lost_records(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    async with running(one, two):
        ask = one.link.api

        async def answer(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == f"STREAM.INFO.{prefix.upper()}_STATE":
                await two.sessions.save("sid", SessionSnapshot("ids", {}), 100.0)
                await one._table.wait_for(found["state"]["last_seq"] + 1)
            return found

        monkeypatch.setattr(one.link, "api", answer)
        assert await one.sessions.peek("sid") == SessionSnapshot("ids", {})
        assert not one._table.trouble


async def test_any_string_is_a_valid_stream_name(server: NatsServer, prefix: str) -> None:
    names = ["", " ", "a.b", "*", ">", "a b\r\nc", "$JS.API.x", "ü/☃", "x" * 180, "x" * 181, "x" * 5000, "=", "A", "a"]
    one = node_of([server.url], prefix, "one")
    async with running(one):
        heard = FeedRecorder()
        await one.feed.start(heard.deliver, heard.obey)
        for name in names:
            await one.feed.listen(name)
        for number, name in enumerate(names):
            [receipt] = await one.streams.append([Publication(name, b"%d" % number, uid=name or "u")])
            assert receipt.offset == 1
        await until(lambda: heard.has(*(b"%d" % number for number in range(len(names)))))
        assert [message.stream for message in sorted(heard.messages, key=lambda each: int(each.payload))] == names
        assert [summary.stream for summary in await one.streams.summaries("", 100)] == sorted(set(names) - {""})
        for number, name in enumerate(names):
            assert await history(one, name) == [b"%d" % number]
            await one.presence.join(name, "sid", Member(name or "x"))
            assert (await one.presence.members(name, "", 10)).total == 1


async def test_concurrent_nodes_assign_each_position_once(server: NatsServer, prefix: str) -> None:
    nodes = [node_of([server.url], prefix, f"n{number}") for number in range(3)]
    async with running(*nodes):
        receipts = await asyncio.gather(
            *(published(nodes[number % 3], "a", b"%d" % number, f"u{number // 2}") for number in range(120))
        )
        assert sorted(receipt.offset for receipt in receipts if not receipt.duplicate) == list(range(1, 61))
        assert len({receipt.epoch for receipt in receipts}) == 1
        for number in range(0, 120, 2):
            assert at(receipts[number]) == at(receipts[number + 1])
        assert len(await history(nodes[0], "a")) == 60


async def test_producer_sequence_is_deduplicated_across_nodes(server: NatsServer, prefix: str) -> None:
    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    async with running(one, two):
        batch = [Publication("a", b"%d" % number, producer="p", sequence=number) for number in range(100)]
        first = await one.streams.append(batch)
        assert [receipt.offset for receipt in first] == list(range(1, 101))
        again = await two.streams.append([batch[-1], batch[0], Publication("a", b"new", producer="p", sequence=100)])
        assert [(receipt.duplicate, receipt.offset) for receipt in again] == [(True, 100), (True, 0), (False, 101)]
        assert [receipt.duplicate for receipt in await one.streams.append(batch[-2:])] == [True, True]


async def test_batch_above_the_limits_of_nats_is_split_in_order(server: NatsServer, prefix: str) -> None:
    one = node_of([server.url], prefix, "one")
    async with running(one):
        for batch in (
            [Publication("keys", b"%d" % number, uid=f"u{number}") for number in range(1500)],
            [Publication("long", b"%d" % number * 100_000) for number in range(10, 30)],
            [Publication(f"wide {number}", b"1") for number in range(1500)],
        ):
            receipts = await one.streams.append(batch)
            assert len(receipts) == len(batch)
            if batch[0].stream == batch[-1].stream:
                assert [receipt.offset for receipt in receipts] == list(range(1, len(batch) + 1))
                epoch, found = receipts[0].epoch, list[bytes]()
                while len(found) < 5:
                    answer = await one.streams.replay(batch[0].stream, Position(epoch, len(batch) - 5 + len(found)))
                    assert answer.messages
                    found += [message.payload for message in answer.messages]
                assert found == [item.payload for item in batch[-5:]]


async def test_health_reports_more_replicas_than_servers(server: NatsServer, prefix: str) -> None:
    one = node_of([server.url], prefix, "one", replicas=3)
    starting = asyncio.ensure_future(one.start())
    try:
        await until(lambda: _health_mentions(one, "replicas"))
    finally:
        await one.stop()
        await starting


async def _health_mentions(node: NatsBackend, word: str) -> None:
    assert word in node.health()


async def test_gauges_use_the_counts_of_nats_above_the_listing_limit(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_streams, "MAX_LISTED", 10)
    one = node_of([server.url], prefix, "one")
    async with running(one):
        await one.streams.append([Publication(f"stream {number}", b"1", uid="u") for number in range(20)])
        await one.sweep()
        gauges = one.gauges()
        assert (gauges["streams"], gauges["history_messages"]) == (40, 40)  # keys are subjects and messages too
        assert (await one.streams.append([Publication("stream 7", b"1", uid="u")]))[0].duplicate


async def test_append_with_a_lost_response_is_registered_once(server: NatsServer, prefix: str) -> None:
    async with Proxy(server.port) as proxy:
        one, two = node_of([proxy.url], prefix, "one", timeout=1.0), node_of([server.url], prefix, "two")
        async with running(one, two):
            await published(one, "a", b"1")
            proxy.deaf = True
            sending = asyncio.ensure_future(one.streams.append([Publication("a", b"2")]))
            await until(lambda: _tip(two, "a", 2))
            proxy.deaf = False
            assert at((await sending)[0]).offset == 2  # it was found once the connection was back
            await published(one, "a", b"3")
            assert await history(two, "a") == [b"1", b"2", b"3"]


async def _tip(backend: NatsBackend, stream: str, offset: int) -> None:
    assert (await backend.streams.tip(stream)).offset == offset


async def test_disconnected_node_receives_missed_requests_and_presence(server: NatsServer, prefix: str) -> None:
    async with Proxy(server.port) as proxy:
        one, two = node_of([proxy.url], prefix, "one"), node_of([server.url], prefix, "two")
        async with running(one, two):
            heard = FeedRecorder()
            await one.feed.start(heard.deliver, heard.obey, heard.miss)
            await one.feed.listen("a")
            await published(two, "a", b"1")
            await until(lambda: heard.has(b"1"))
            before = heard.missed
            proxy.cut = True
            proxy.cut_links()
            await until(lambda: unhealthy(one))
            await published(two, "a", b"2")
            await two.presence.join("a", "sid", Member("bo"))
            assert await two.feed.disconnect(RemoteDisconnect("user 1")) == 0
            proxy.cut = False
            await until(lambda: heard.has(b'{"type":"join","id":"bo"}'))
            await until(lambda: _has_requests(heard, RemoteDisconnect("user 1")))
            await until(lambda: _has_missed(heard, before))
            assert await history(one, "a") == [b"1", b"2"]


async def test_connection_closed_after_a_protocol_error_is_reopened(server: NatsServer, prefix: str) -> None:
    async with Proxy(server.port) as proxy:
        one, two = node_of([proxy.url], prefix, "one"), node_of([server.url], prefix, "two")
        async with running(one, two):
            heard = FeedRecorder()
            await one.feed.start(heard.deliver, heard.obey, heard.miss)
            await one.feed.listen("a")
            for number in range(1, 4):
                before = heard.missed
                proxy.send_garbage()
                await until(lambda before=before: _missed(heard, before))  # type: ignore[misc]
                payload = b"%d" % number
                await published(two, "a", payload)
                await until(lambda payload=payload: heard.has(payload))  # type: ignore[misc]
                await two.presence.join("a", f"sid {number}", Member(f"bo {number}"))
                await until(lambda number=number: heard.has(b'{"type":"join","id":"bo %d"}' % number))  # type: ignore[misc]
                await published(one, "b", payload)
                await until(lambda: healthy(one))
    assert server.log().lower().count("parse") >= 3, server.log()


async def test_connection_to_a_silent_server_is_closed(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server that is paused accepts connections and never greets."""
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 1)

    async def abandoned() -> None:
        assert proxy.abandoned

    async with Proxy(server.port) as proxy:
        one = node_of([proxy.url], prefix, "one")
        async with running(one):
            await published(one, "a", b"1")
            proxy.silent = True
            proxy.cut_links()
            await until(abandoned)
            proxy.silent = False
            assert (await published(one, "a", b"2", "u")).offset == 2


async def test_failed_disconnect_request_is_logged_without_a_traceback(
    server: NatsServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(order: EndRequest) -> int:
        raise Unavailable("not now")

    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    async with running(one, two):
        heard = FeedRecorder()
        await one.feed.start(heard.deliver, heard.obey)
        await two.feed.start(heard.deliver, fail)
        await one.feed.disconnect(RemoteDisconnect("user 1"))
        await until(lambda: _is_logged(caplog, "an order was not carried out"))
    assert "Traceback" not in caplog.text


async def _is_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    assert words in caplog.text


async def _missed(heard: FeedRecorder, before: int) -> None:
    assert heard.missed > before


async def _has_missed(heard: FeedRecorder, before: int) -> None:
    assert heard.missed > before


async def _has_requests(heard: FeedRecorder, order: RemoteDisconnect) -> None:
    assert heard.orders == [order]


async def test_records_are_not_lost_if_a_server_reports_an_old_sequence(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = node_of([server.url], prefix, "one")
    async with running(one):
        await one.presence.join("a", "sid", Member("bo"))
        ask = one.link.api
        behind: list[str] = []

        async def answer(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == f"STREAM.INFO.{prefix.upper()}_STATE" and len(behind) < 2:
                behind.append(subject)
                found["state"]["last_seq"] = 0
            return found

        monkeypatch.setattr(one.link, "api", answer)
        page = await until(lambda: one.presence.members("a", "", 10), Unavailable)
        assert [member.id for member in page.members] == ["bo"]
        assert len(behind) == 2
    assert "lost" not in caplog.text


async def test_failure_of_a_cancelled_request_is_not_logged(server: NatsServer, prefix: str) -> None:
    one = node_of([server.url], prefix, "one")
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with running(one):
        asked, fails = asyncio.Event(), asyncio.Event()

        async def fail(subject: str, question: object = None) -> Any:
            asked.set()
            await fails.wait()
            raise Unanswered("no answer")

        one.link.api = fail  # type: ignore[method-assign]
        asking = asyncio.ensure_future(one.presence.members("a", "", 1))
        await asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        fails.set()
        for _ in range(10):
            await asyncio.sleep(0)
        one._table._tip_request = None  # Python complains when it is forgotten
        gc.collect()
    assert complaints == []


async def test_node_with_a_new_lease_keeps_its_members_if_the_old_one_expired(
    server: NatsServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two expires the lease of one and then its members, and receives the new lease and the new join of one too late."""
    ahead = [0.0]
    one = node_of([server.url], prefix, "one")
    two = node_of([server.url], prefix, "two", clock=lambda: time.time() + ahead[0], presence_ttl=0.1)
    receives, ended, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    receives.set()
    subscribe, write, node_died = two.link.subscribe, one.link.publish, two.presence.node_died
    sweeping: list[asyncio.Task[None]] = []

    async def subscribe_late(subject: str, callback: Callable[[Any], Awaitable[None]]) -> Any:
        async def receive(message: Any) -> None:
            await receives.wait()
            await callback(message)

        return await subscribe(subject, receive)

    async def node_died_late(node: str, lives: Callable[[], bool]) -> None:
        if node == "one":
            receives.clear()
            ended.set()
            await go_on.wait()
        await node_died(node, lives)

    async def write_late(subject: str, data: bytes, headers: dict[str, str]) -> int:
        if not sweeping:  # the lease ends between the decision to renew it and the write
            sweeping.append(asyncio.ensure_future(two.leases.sweep()))
            await ended.wait()
        return await write(subject, data, headers)

    monkeypatch.setattr(two.link, "subscribe", subscribe_late)
    monkeypatch.setattr(two.presence, "node_died", node_died_late)
    async with running(one, two):
        before = await one.leases.renew(6.0, ())
        await one.presence.join("a", "sid", Member("bo"))
        await two.presence.members("a", "", 1)
        ahead[0] = 7.0
        monkeypatch.setattr(one.link, "publish", write_late)
        assert (await one.leases.renew(6.0, ())).lease != before.lease
        await one.presence.join("a", "sid", Member("bo"))
        go_on.set()
        asyncio.get_running_loop().call_later(0.3, receives.set)
        await sweeping[0]
        ahead[0] = 8.0
        await two.presence.members("a", "", 1)
        await two.presence.expire()
        assert [member.id for member in (await two.presence.members("a", "", 10)).members] == ["bo"]


@pytest.mark.parametrize("uid", ["", "u" * 200])
async def test_message_above_the_limit_of_nats_is_rejected_alone(server: NatsServer, prefix: str, uid: str) -> None:
    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    async with running(one, two):
        heard = FeedRecorder()
        await two.feed.start(heard.deliver, heard.obey, heard.miss)
        await two.feed.listen("a")
        await published(one, "a", b"first")
        missed, largest, refused = heard.missed, 0, 0
        for size in range(MESSAGE - 2048, MESSAGE + 64, 64):
            try:
                await one.streams.append([Publication("a", bytes(size), uid=uid and f"{uid} {size}")])
                largest = size
            except TooLarge:
                refused += 1
        assert refused
        assert MESSAGE - 2048 <= largest < MESSAGE
        with pytest.raises(TooLarge):
            await one.streams.append([Publication("a", bytes(MESSAGE), transient=True)])
        assert (await one.streams.append([Publication("a", b"last")]))[0].offset == 2 + len(
            range(MESSAGE - 2048, largest + 1, 64)
        )
        await until(lambda: heard.has(b"first", bytes(largest), b"last"))
        assert (one.health(), two.health(), heard.missed) == ("", "", missed)
    assert "maximum payload" not in server.log().lower()


async def test_batch_with_an_oversized_message_is_rejected_completely(server: NatsServer, prefix: str) -> None:
    one = node_of([server.url], prefix, "one")
    async with running(one):
        for number in range(4):  # on any shard
            small, large = Publication(f"small {number}", b"1"), Publication(f"large {number}", bytes(3 * MESSAGE // 2))
            with pytest.raises(TooLarge):
                await one.streams.append([small, large])
            assert (await one.streams.tip(small.stream)).offset == 0


async def test_batch_with_long_text_fields_is_registered(server: NatsServer, prefix: str) -> None:
    one = node_of([server.url], prefix, "one")
    async with running(one):
        batch = [Publication("a", b"%d" % number, broadcast_type="t" * 5000) for number in range(500)]
        assert [receipt.offset for receipt in await one.streams.append(batch)] == list(range(1, 501))


async def test_transient_messages_above_the_limit_are_split(server: NatsServer, prefix: str) -> None:
    one, two = (node_of([server.url], prefix, name) for name in ("one", "two"))
    async with running(one, two):
        heard = FeedRecorder()
        await two.feed.start(heard.deliver, heard.obey)
        await two.feed.listen("a")
        payloads = [bytes([number]) * (MESSAGE // 5) for number in range(20)]
        for payload in payloads:
            one.feed.pass_on([Publication("a", payload, transient=True)])
        await until(lambda: heard.has(*payloads))
        assert [message.payload for message in heard.messages] == payloads


async def test_all_members_of_lost_sessions_expire(server: NatsServer, prefix: str) -> None:
    """Seats with another sid expire without an event, and before the others."""
    clock, total = ManualClock(), 2 * EXPIRED_AT_ONCE + 1
    node = node_of([server.url], prefix, "one", clock=clock)
    async with running(node):
        await node.leases.renew(60.0, ())

        async def lose(sid: str, member: str, ttl: float) -> None:
            await until(lambda: node.presence.join("a", sid, Member(member)), Unavailable)
            await node.presence.detach(sid, ttl)

        async def share(number: int) -> None:
            await lose(f"first {number}", f"shared {number}", 1.0)
            await node.presence.join("a", f"second {number}", Member(f"shared {number}"))

        await asyncio.gather(*map(share, range(EXPIRED_AT_ONCE)))
        await asyncio.gather(*(lose(f"sid {number}", f"member {number}", 2.0) for number in range(total)))
        clock.advance(3)
        found: list[str] = []
        while events := await node.presence.expire():
            found += [event.member.id for event in events]
        assert sorted(found) == sorted(f"member {number}" for number in range(total))
        assert (await node.presence.members("a", "", 1)).total == EXPIRED_AT_ONCE


async def test_members_of_a_dead_node_leave_in_one_sweep(server: NatsServer, prefix: str) -> None:
    clock, total = ManualClock(), 2 * EXPIRED_AT_ONCE + 1
    dead, alive = (node_of([server.url], prefix, name, clock=clock) for name in ("dead", "alive"))
    async with running(dead, alive):
        for node in (dead, alive):
            await until(lambda node=node: node.leases.renew(6.0, ()), Unavailable)  # type: ignore[misc]
        await asyncio.gather(*(dead.presence.join("a", f"sid {n}", Member(f"member {n}")) for n in range(total)))
        clock.advance(7)
        await until(alive.sweep, Unavailable)
        clock.advance(16)
        while await alive.presence.expire():
            pass
        assert (await alive.presence.members("a", "", 1)).total == 0
