"""The NATS backend while servers are killed, paused or restored from a backup, one server and a cluster of three."""

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest

from ropewalk.adapters.backends.nats import NatsBackend, jets
from ropewalk.adapters.backends.nats.names import NatsOptions
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Position, Publication, Receipt
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionWrite
from ropewalk.ports import NodeName
from ropewalk.testing.backend_rig import at
from ropewalk.testing.clock import ManualClock
from tests.conformance.feed_recorder import FeedRecorder
from tests.conformance.nats_nodes import (
    Proxy,
    health_with,
    healthy,
    history,
    node_of,
    published,
    ready_cluster,
    running,
    unhealthy,
    until,
)
from tests.services import NatsServer, nats_server

pytestmark = pytest.mark.tier("all")

CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "tls_cert.pem"
prefixes = (f"f{number}" for number in count(1))


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[NatsServer]]:
    with ready_cluster() as servers:
        yield servers


async def test_restarted_server_keeps_all_data(server: NatsServer) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        heard = FeedRecorder()
        await two.feed.start(heard.deliver, heard.obey)
        await two.feed.listen("a")
        first = await published(one, "a", b"1", "u")
        await one.presence.join("a", "sid", Member("bo"))
        server.kill()
        assert await until(lambda: unhealthy(one))
        server.start()
        assert await published(two, "a", b"1", "u") == Receipt("a", first.epoch, first.offset, duplicate=True)
        after = await published(one, "a", b"2")
        assert at(after) == Position(first.epoch, first.offset + 1)
        await until(lambda: heard.has(b"1", b"2"))
        page = await until(lambda: two.presence.members("a", "", 10), Unavailable)
        assert [member.id for member in page.members] == ["bo"]
        assert await until(lambda: healthy(one))


async def test_lost_store_starts_new_epochs(server: NatsServer) -> None:
    one = node_of([server.url], "rw", "one")
    async with running(one):
        before = await published(one, "a", b"1", "u")
        server.kill()
        shutil.rmtree(server.home / "store")
        server.start()
        after = await published(one, "a", b"2", "u")
        assert (after.offset, after.duplicate) == (1, False)
        assert after.epoch != before.epoch
        answer = await one.streams.replay("a", at(before))
        assert isinstance(answer, Gap)
        assert answer.reason is GapReason.EPOCH_CHANGED
        await until(lambda: one.presence.join("a", "sid", Member("bo")), Unavailable)


async def test_deleted_jetstream_stream_is_made_again_and_its_streams_begin_new_epochs(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    one = node_of([server.url], "rw", "one")
    heard = FeedRecorder()
    async with running(one):
        await one.feed.start(heard.deliver, heard.obey, heard.miss)
        before = await published(one, "a", b"1", "u")
        await one.feed.listen("a")
        missed = heard.missed
        await one.link.api(f"STREAM.DELETE.{one.jet_name('a')}")

        async def made_again() -> None:
            assert await jets.info(one.link, one.jet_name("a")) is not None
            assert one.health() == ""

        await until(made_again)  # although nobody publishes
        assert "JetStream streams were deleted; making them again" in caplog.text
        assert heard.missed > missed
        answer = await one.streams.replay("a", at(before))
        assert isinstance(answer, Gap)
        assert answer.reason is GapReason.EPOCH_CHANGED


def _jet_of(kind: str, node: NatsBackend) -> str:
    return node.jet_name("a") if kind == "shard" else f"RW_{kind.upper()}"


deleted = pytest.mark.parametrize("kind", ["shard", "state", "queue"])


@deleted
async def test_deletion_that_no_advisory_reports_is_noticed_by_the_sweep(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    one = node_of([server.url], "rw", "one")

    async def subscribe(subject: str, *given: Any) -> Any:
        return None if subject.startswith("$JS.EVENT") else await whole(subject, *given)

    whole = one.link.subscribe
    monkeypatch.setattr(one.link, "subscribe", subscribe)
    async with running(one):
        await published(one, "a", b"1", "u")
        assert await one.record_queue.claim(60.0)
        jet = _jet_of(kind, one)
        await one.link.api(f"STREAM.DELETE.{jet}")
        assert await jets.info(one.link, jet) is None
        await one.sweep()
        await until(lambda: exists(one, jet))
        await until(lambda: healthy(one))


async def exists(node: NatsBackend, jet: str) -> None:
    assert await jets.info(node.link, jet) is not None


@deleted
async def test_node_is_unhealthy_until_a_deleted_jetstream_stream_is_made_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    one = node_of([server.url], "rw", "one")
    refused = True

    async def ensure(*given: Any) -> Any:
        if refused:
            raise Unavailable("JetStream refuses: no room")
        return await whole(*given)

    whole = jets.ensure
    async with running(one):
        await published(one, "a", b"1", "u")
        assert await one.record_queue.claim(60.0)
        monkeypatch.setattr(jets, "ensure", ensure)
        await one.link.api(f"STREAM.DELETE.{_jet_of(kind, one)}")
        await until(lambda: health_with(one, "JetStream refuses: no room"))
        refused = False
        await until(lambda: healthy(one))
        await exists(one, _jet_of(kind, one))


async def test_deleted_record_queue_is_made_again_by_its_recorder(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node waits for it, and cannot record meanwhile. Rows of the lost queue are no progress in the new one."""
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))

    async def late() -> None:
        pass

    async def read() -> list[bytes]:
        return [row.value for row in (await one.record_queue.read(100)).rows]

    async with running(one, two):
        monkeypatch.setattr(one, "_restore_deleted", late)
        assert await one.record_queue.claim(60.0)
        await published(one, "a", b"1")
        former = await one.record_queue.read(100)
        assert [row.value for row in former.rows] == [b"1"]
        await one.link.api("STREAM.DELETE.RW_QUEUE")
        await until(lambda: health_with(two, "RW_QUEUE"))
        assert await jets.info(two.link, "RW_QUEUE") is None
        await one.record_queue.restore()
        await until(lambda: healthy(two))
        assert not await two.record_queue.claim(60.0)
        await published(one, "a", b"2")
        assert not await one.record_queue.remove(former)
        assert await until(read, Unavailable) == [b"2"]
        assert await one.record_queue.remove(await one.record_queue.read(100))
        assert await read() == []


async def test_store_restored_from_a_backup_assigns_no_position_twice(server: NatsServer, tmp_path: Path) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        for node in (one, two):
            await node.leases.renew(60.0, ())
        kept = [await published(one, "a", b"%d" % number, f"u{number}") for number in range(3)]
        server.stop()
        shutil.copytree(server.home / "store", tmp_path / "older")
        server.start()
        lost = [await published(two, "a", b"lost %d" % number, f"l{number}") for number in range(3)]
        assert lost[-1].epoch == kept[0].epoch
        server.kill()
        shutil.rmtree(server.home / "store")
        shutil.copytree(tmp_path / "older", server.home / "store")
        server.start()
        # The node that knows nothing of what was lost writes first, if it can.
        after = [await published(node, "a", b"new", f"n{number}") for number, node in enumerate((one, two))]
        assert {receipt.epoch for receipt in after}.isdisjoint({kept[0].epoch})
        assert [receipt.offset for receipt in after] == [1, 2]
        again = [await published(one, "a", b"1", "u1"), await published(two, "a", b"lost 1", "l1")]
        assert [(receipt.duplicate, receipt.epoch == kept[0].epoch) for receipt in again] == [(True, True), (False, False)]


async def test_publication_without_a_uid_is_registered_at_most_once_across_a_crash(server: NatsServer) -> None:
    one, two = (node_of([server.url], "rw", name, timeout=1.0) for name in ("one", "two"))
    async with running(one, two):
        await published(one, "a", b"first")
        server.pause()
        sending = asyncio.ensure_future(one.streams.append([Publication("a", b"2")]))
        await asyncio.wait([sending], timeout=1.5)  # it waits for an answer by now
        server.kill()
        server.start()
        with suppress(Unanswered):
            assert (await sending)[0].offset == 2
        kept = await history(two, "a")
        assert kept in ([b"first"], [b"first", b"2"])
        assert (await published(one, "a", b"3")).offset == len(kept) + 1


async def test_publication_behind_one_that_nats_does_not_answer_fails_with_it_and_is_not_sent(server: NatsServer) -> None:
    rules = Rulebook(StreamRules(history_limit=10, history_ttl=300.0))
    async with Proxy(server.port) as proxy:
        options = NatsOptions(shards=1, timeout=1.0, retry_seconds=0.5)
        one = NatsBackend(NatsAddress((proxy.url,)), NodeName("one", "one"), rules, time.time, options=options)
        await one.start()
        await published(one, "a", b"1")
        proxy.deaf = True
        first = asyncio.ensure_future(one.streams.append([Publication("a", b"2")]))
        for _ in range(10):  # until it is on its way
            await asyncio.sleep(0)
        second = asyncio.ensure_future(one.streams.append([Publication("a", b"3")]))
        with pytest.raises(Unanswered):
            await first
        with pytest.raises(Unavailable) as failure:
            await second
        assert type(failure.value) is Unavailable  # and not Unanswered
        proxy.deaf = False
        await published(one, "a", b"4")
        assert b"3" not in await history(one, "a")
        await one.stop()


async def test_restarted_server_with_an_old_sequence_does_not_start_a_new_epoch(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was paused may report it while the shard has no leader, or while it still considers itself the leader."""
    one = node_of([server.url], "rw", "one")
    async with running(one):
        first, _, _ = [await published(one, "a", payload) for payload in (b"1", b"2", b"3")]
        ask = one.link.api
        behind: list[str] = []

        async def answer(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == f"STREAM.INFO.{one.jet_name('a')}" and not behind:
                behind.append(subject)
                found["state"]["last_seq"] -= 2
            return found

        monkeypatch.setattr(one.link, "api", answer)
        server.kill()
        server.start()
        after = await published(one, "a", b"4")
        assert behind
        assert at(after) == Position(first.epoch, 4)


async def test_sessions_and_members_whose_end_was_lost_expire_after_the_node_has_a_new_lease(server: NatsServer) -> None:
    """The older records have the lease of the node. It registers again what it still has."""
    clock = ManualClock()
    one, two = (node_of([server.url], "rw", name, clock=clock, presence_ttl=2.0) for name in ("one", "two"))

    async def written(sid: str, version: int, live: bool = True, ttl: float = 0.0) -> None:
        write = SessionWrite(sid, SessionSnapshot(sid, {}), version, ttl, live, began=clock.now)
        assert await until(lambda: one.leases.write([write]), Unavailable) == []

    async def joined(sid: str, member: str) -> None:
        await until(lambda: one.presence.join("a", sid, Member(member)), Unavailable)

    async def members() -> list[str]:
        return [member.id for member in (await until(lambda: two.presence.members("a", "", 10), Unavailable)).members]

    async with running(one, two):
        before = await one.leases.renew(6.0, ())
        assert (await one.leases.renew(6.0, ())).lease == before.lease
        for number, sid in enumerate(("ended", "live")):
            await written(sid, number + 1)
            await joined(sid, f"member {sid}")
        server.kill()
        shutil.copytree(server.home / "store", server.home / "older")
        server.start()
        assert [event.type for event in await until(lambda: one.presence.leave("a", "ended"), Unavailable)] == ["leave"]
        await written("ended", 3, live=False)
        for _ in range(20):
            await joined("live", "member live")
        assert await members() == ["member live"]
        server.kill()
        shutil.rmtree(server.home / "store")
        (server.home / "older").rename(server.home / "store")
        server.start()
        assert (await until(lambda: one.leases.renew(6.0, ()), Unavailable)).lease != before.lease
        assert await members() == ["member ended", "member live"]
        assert await two.sessions.peek("live") is None  # it cannot be resumed
        await joined("live", "member live")
        await written("live", 4)
        for seconds in (5, 3):
            clock.advance(seconds)
            await until(lambda: one.leases.renew(6.0, ()), Unavailable)
            await until(two.sweep, Unavailable)
        assert [event.member.id for event in await two.presence.expire()] == ["member ended"]
        assert await members() == ["member live"]
        assert [sid for sid, _ in await two.sessions.take_expired(10)] == ["ended"]


async def test_node_that_reconnects_late_notices_lost_records(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node has written more records meanwhile than were lost."""
    one, late = (node_of([server.url], "rw", name) for name in ("one", "late"))
    async with running(one, late):
        before = await late.leases.renew(6.0, ())
        server.kill()
        shutil.copytree(server.home / "store", server.home / "older")
        server.start()
        for number in range(5):
            await until(lambda number=number: late.presence.join("a", f"sid {number}", Member(f"lost {number}")), Unavailable)  # type: ignore[misc]
        assert (await one.presence.members("a", "", 10)).total == 5
        ask, reconnects = late.link.api, asyncio.Event()

        async def ask_late(subject: str, question: object = None) -> Any:
            await reconnects.wait()
            return await ask(subject, question)

        monkeypatch.setattr(late.link, "api", ask_late)
        server.kill()
        shutil.rmtree(server.home / "store")
        (server.home / "older").rename(server.home / "store")
        server.start()
        for number in range(10):
            await until(lambda number=number: one.presence.join("a", f"sid {number}", Member(f"new {number}")), Unavailable)  # type: ignore[misc]
        reconnects.set()
        await until(lambda: _has_total(late, 10), Unavailable)
        assert (await until(lambda: late.leases.renew(6.0, ()), Unavailable)).lease != before.lease


async def _has_total(node: NatsBackend, total: int) -> None:
    assert (await node.presence.members("a", "", 20)).total == total


async def test_node_started_before_nats_serves_once_nats_is_up(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    one = node_of([server.url], "rw", "one")
    starting = asyncio.ensure_future(one.start())
    try:
        assert (await until(lambda: unhealthy(one))).startswith("NATS")
        with pytest.raises(Unavailable):
            await one.streams.append([Publication("a", b"1")])
        with pytest.raises(Unavailable):
            await one.sessions.peek("sid")
        await asyncio.to_thread(server.start)
        assert (await published(one, "a", b"1")).offset == 1
        await until(lambda: healthy(one))
    finally:
        await starting
        await one.stop()
        server.stop()


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_credentials_and_tls_of_the_url_are_used(tmp_path: Path, scheme: str) -> None:
    server = NatsServer(tmp_path)
    settings = msgspec.json.decode((tmp_path / "nats.conf").read_bytes())
    settings["authorization"] = {"user": "us", "password": "a secret"}
    settings["tls"] = {"cert_file": str(CERTIFICATE), "key_file": str(CERTIFICATE.with_name("tls_key.pem"))}
    (tmp_path / "nats.conf").write_bytes(msgspec.json.encode(settings))
    server.start()
    rules = Rulebook(StreamRules())
    at = f"{scheme}://us:a%20secret@127.0.0.1:{server.port}"
    try:
        options = NatsOptions(shards=2)
        address = NatsAddress((at,), tls_ca=str(CERTIFICATE))
        trusted = NatsBackend(address, NodeName("one", "one"), rules, time.time, options=options)
        async with running(trusted):
            assert (await published(trusted, "a", b"1")).offset == 1
        guessed = NatsAddress((at.replace("secret", "guess"),), tls_ca=str(CERTIFICATE))
        strange = NatsBackend(guessed, NodeName("two", "two"), rules, time.time)
        starting = asyncio.ensure_future(strange.start())
        assert "uthorization" in await until(lambda: health_with(strange, "uthorization"))
        await strange.stop()
        await starting
        assert "secret" not in strange.health()
    finally:
        server.stop()


@pytest.mark.parametrize("offered", [False, True], ids=["none offered", "left to the clients"])
async def test_tls_url_sends_nothing_in_plain_text(tmp_path: Path, offered: bool) -> None:
    server = NatsServer(tmp_path)
    settings = msgspec.json.decode((tmp_path / "nats.conf").read_bytes())
    settings["authorization"] = {"user": "us", "password": "secret"}
    if offered:
        settings["tls"] = {"cert_file": str(CERTIFICATE), "key_file": str(CERTIFICATE.with_name("tls_key.pem"))}
        settings["allow_non_tls"] = True
    (tmp_path / "nats.conf").write_bytes(msgspec.json.encode(settings))
    server.start()
    try:
        async with Proxy(server.port) as proxy:
            address = NatsAddress((f"tls://us:secret@127.0.0.1:{proxy.port}",), tls_ca=str(CERTIFICATE))
            node = NatsBackend(
                address, NodeName("one", "one"), Rulebook(StreamRules()), time.time, options=NatsOptions(shards=2)
            )
            starting = asyncio.ensure_future(node.start())
            if offered:
                assert (await published(node, "a", b"1")).offset == 1
                assert proxy.sent
            else:
                await until(lambda: health_with(node, "TLS is required"))
                assert proxy.sent == b""
            await node.stop()
            await starting
            assert b"secret" not in proxy.sent
    finally:
        server.stop()


async def leader_name(servers: Sequence[NatsServer], jet: str) -> str:
    client = await nats.connect([server.url for server in servers])
    try:
        answer = msgspec.json.decode((await client.request(f"$JS.API.STREAM.INFO.{jet}", b"", 5)).data)
    finally:
        await client.close()
    assert answer["cluster"].get("leader"), answer
    return str(answer["cluster"]["leader"])


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_failover_loses_and_repeats_nothing(cluster: list[NatsServer], how: str) -> None:
    prefix = next(prefixes)
    urls = [server.url for server in cluster]
    one, two = (node_of(urls, prefix, name, replicas=3, timeout=1.0) for name in ("one", "two"))
    async with running(one, two):
        await published(one, "a", b"0", "u0")
        jet = one.jet_name("a")
        former = await leader_name(cluster, jet)
        leader = cluster[int(former.removeprefix("s"))]
        others = [server for server in cluster if server is not leader]

        async def led_by_another() -> None:
            assert await leader_name(others, jet) != former

        moved = asyncio.Event()
        sending = asyncio.ensure_future(_publish_until(moved, one, two))
        getattr(leader, how)()
        await until(led_by_another, Exception)
        moved.set()
        receipts = await sending
        (leader.start if how == "kill" else leader.resume)()
        assert sorted(receipt.offset for receipt in receipts) == list(range(2, 2 + len(receipts)))
        assert len({receipt.epoch for receipt in receipts}) == 1
        kept = await history(two, "a")
        assert sorted(kept) == sorted([b"0", *(b"%d" % number for number in range(1, len(receipts) + 1))])


async def _publish_until(moved: asyncio.Event, *nodes: NatsBackend) -> list[Receipt]:
    """Publishes by turns until the leader has moved, and 20 messages more."""
    receipts: list[Receipt] = []
    after = 0
    for number in count(1):
        after += moved.is_set()
        receipts.append(await published(nodes[number % len(nodes)], "a", b"%d" % number, f"u{number}"))
        if after == 20:
            break
    return receipts


async def test_node_is_unhealthy_without_a_quorum(cluster: list[NatsServer]) -> None:
    survivor, *others = cluster
    node = node_of([survivor.url], next(prefixes), "one", replicas=3, timeout=1.0)
    async with running(node):
        await published(node, "a", b"0")
        for server in others:
            server.kill()
        for _ in range(10):
            await _renewal_fails(node)
            assert node.health()
        for server in others:
            server.start()
        await published(node, "a", b"1", "its uid")  # sent again where it got no answer
        assert await history(node, "a") == [b"0", b"1"]
        await until(lambda: node.leases.renew(6.0, ()), Unavailable)  # as upkeep does
        await until(lambda: healthy(node))


async def test_publication_without_a_quorum_fails_in_time(cluster: list[NatsServer]) -> None:
    """docs/topics/clusters.md promises 10 seconds. A busy machine may take longer."""
    survivor, *others = cluster
    node = node_of([survivor.url], next(prefixes), "one", replicas=3, timeout=NatsOptions().timeout)
    async with running(node):
        receipt = await published(node, "a", b"0")
        await published(node, "b", b"0")
        for server in others:
            server.kill()
        began = time.monotonic()
        calls = [[Publication("a", b"1")], [Publication("a", b"2"), Publication("b", b"2")], [Publication("new", b"3")]]
        answers = await asyncio.gather(*map(node.streams.append, calls), return_exceptions=True)
        assert time.monotonic() - began < 30
        assert [isinstance(answer, Unavailable) for answer in answers] == [True] * 3
        for server in others:
            server.start()
        after = await published(node, "a", b"4")
        assert (after.epoch, after.offset > receipt.offset) == (receipt.epoch, True)


async def _renewal_fails(node: NatsBackend) -> None:
    """As upkeep does: JetStream is asked, and cannot do it."""
    with pytest.raises(Unavailable):
        await node.leases.renew(6.0, ())
