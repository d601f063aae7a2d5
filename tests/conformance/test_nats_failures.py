"""What the NATS backend does while NATS is killed, paused, cut off, or comes back with less than it had."""

import asyncio
import gc
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import nats
import pytest

from ropewalk.adapters.backends.nats import NatsBackend, census
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Deliverable, Position, Publication, Receipt, Registered, RemoteDisconnect, one_by_one
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWanted, SessionWrite
from ropewalk.testing.backend_rig import at
from ropewalk.testing.clock import ManualClock
from tests.services import NatsServer, free_port, nats_cluster, nats_server

T = TypeVar("T")
SECONDS = 40.0
CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "tls_cert.pem"
prefixes = (f"f{number}" for number in count(1))


async def until(ask: Callable[[], Awaitable[T]], failure: type[Exception] = AssertionError) -> T:
    """The answer, as soon as there is one."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await ask()
        except (AssertionError, failure):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


class Heard:
    """What came to one node."""

    def __init__(self) -> None:
        self.messages: list[Registered] = []
        self.orders: list[RemoteDisconnect | SessionTaken | SessionWanted] = []
        self.missed = 0

    def miss(self) -> None:
        self.missed += 1

    def deliver(self, messages: Sequence[Deliverable]) -> None:
        self.messages += one_by_one(messages)

    async def obey(self, order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        self.orders.append(order)
        return 0

    async def has(self, *payloads: bytes) -> None:
        assert set(payloads) <= {message.payload for message in self.messages}


def node_of(
    servers: Sequence[str],
    prefix: str,
    name: str,
    replicas: int = 1,
    timeout: float = 1.0,
    clock: Callable[[], float] = time.time,
    presence_ttl: float = 15.0,
) -> NatsBackend:
    rules = Rulebook(StreamRules(history_limit=1000, history_ttl=300.0))
    return NatsBackend(
        NatsAddress(tuple(servers)),
        name,
        rules,
        clock,
        prefix=prefix,
        shards=2,
        replicas=replicas,
        presence_ttl=presence_ttl,
        timeout=timeout,
    )


@asynccontextmanager
async def running(*backends: NatsBackend) -> AsyncIterator[None]:
    for backend in backends:
        await backend.start()
    try:
        yield
    finally:
        for backend in backends:
            await backend.stop()


async def published(backend: NatsBackend, stream: str, payload: bytes, uid: str = "") -> Receipt:
    """Sent again until it is registered, as a publisher would."""
    return (await until(lambda: backend.streams.append([Publication(stream, payload, uid=uid)]), Unavailable))[0]


async def history(backend: NatsBackend, stream: str) -> list[bytes]:
    answer = await until(lambda: backend.streams.replay(stream, Position("", 0)), Unavailable)
    assert isinstance(answer, Replay)
    assert [message.offset for message in answer.messages] == list(range(1, len(answer.messages) + 1))
    return [message.payload for message in answer.messages]


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


async def test_a_killed_server_that_comes_back_has_everything_and_everything_goes_on(server: NatsServer) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        heard = Heard()
        await two.feed.start(heard.deliver, heard.obey)
        await two.feed.listen("a")
        first = await published(one, "a", b"1", "u")
        await one.presence.join("a", "sid", Member("bo"))
        server.kill()
        assert await until(lambda: _unhealthy(one))
        server.start()
        assert await published(two, "a", b"1", "u") == Receipt("a", first.epoch, first.offset, duplicate=True)
        after = await published(one, "a", b"2")
        assert at(after) == Position(first.epoch, first.offset + 1)
        await until(lambda: heard.has(b"1", b"2"))
        page = await until(lambda: two.presence.page("a", "", 10), Unavailable)
        assert [member.id for member in page.members] == ["bo"]
        assert await until(lambda: _healthy(one))


async def _unhealthy(backend: NatsBackend) -> str:
    assert backend.health()
    return backend.health()


async def _healthy(backend: NatsBackend) -> bool:
    assert backend.health() == ""
    return True


async def test_a_store_that_is_lost_begins_new_epochs(server: NatsServer) -> None:
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


async def test_an_older_store_gives_no_position_twice(server: NatsServer, tmp_path: Path) -> None:
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


async def test_the_oldest_sessions_end_before_their_time_where_too_many_are_kept(server: NatsServer) -> None:
    rules, snapshot = Rulebook(StreamRules()), SessionSnapshot("ids", {}, names=("x" * 1000,))
    for prefix, limit, size in (("b1", 3, 1_000_000), ("b2", 100, 3500)):
        address = NatsAddress((server.url,))
        one = NatsBackend(
            address, "one", rules, time.time, prefix=prefix, shards=1, sessions_limit=limit, max_sessions_size=size
        )
        async with running(one):
            for sid in range(5):
                await one.sessions.save(str(sid), snapshot, 100.0 + sid)
            assert {sid for sid, _ in await one.sessions.expired(10)} == {"0", "1"}
            assert await one.sessions.expired(10) == []
            assert one.gauges()["sessions_kept"] == 3
            assert await one.sessions.peek("2") == snapshot
            assert await one.sessions.peek("1") is None


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not-stored"])
async def test_every_session_that_is_over_is_given_out_once_though_nats_does_not_answer_in_between(
    server: NatsServer, stored: bool
) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
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
        given = await one.sessions.expired(10)
        assert len(given) == 2
        given += await two.sessions.expired(1)
        for _ in range(3):
            given += [*await one.sessions.expired(10), *await two.sessions.expired(10)]
        assert sorted(sid for sid, _ in given) == list("abcde")


async def test_a_session_that_is_taken_after_a_removal_that_was_not_answered_is_not_given_out(server: NatsServer) -> None:
    rules = Rulebook(StreamRules())
    one = NatsBackend(NatsAddress((server.url,)), "one", rules, time.time, prefix="rw", shards=1, sessions_limit=1)
    async with running(one):
        for sid in "ab":
            await one.sessions.save(sid, SessionSnapshot(sid, {}), 100.0)
        write = one._table.write

        async def unanswered(changes: Any) -> int:
            raise Unanswered("no answer")

        one._table.write = unanswered  # type: ignore[method-assign]
        with pytest.raises(Unanswered):  # one too many is kept
            await one.sessions.expired(10)
        one._table.write = write  # type: ignore[method-assign]
        assert await one.sessions.take("a", "c")
        assert await one.sessions.take("b")
        assert await one.sessions.expired(10) == []


async def test_what_an_order_removed_before_nats_failed_is_given_out_later(server: NatsServer) -> None:
    one = node_of([server.url], "rw", "one")
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
            await one.sessions.revoke("ids")
        again = await one.sessions.revoke("ids")
        given = [*again, *await one.sessions.expired(10), *await one.sessions.expired(10)]
        assert sorted(sid for sid, _ in given) == list("abc")


async def test_what_others_write_while_the_end_of_the_records_is_asked_for_is_no_loss(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        ask = one.link.api

        async def answer(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == "STREAM.INFO.RW_STATE":
                await two.sessions.save("sid", SessionSnapshot("ids", {}), 100.0)
                await one._table.wait_for(found["state"]["last_seq"] + 1)
            return found

        monkeypatch.setattr(one.link, "api", answer)
        assert await one.sessions.peek("sid") == SessionSnapshot("ids", {})
        assert not one._table.trouble


async def test_any_name_is_a_stream(server: NatsServer) -> None:
    names = ["", " ", "a.b", "*", ">", "a b\r\nc", "$JS.API.x", "ü/☃", "x" * 180, "x" * 181, "x" * 5000, "=", "A", "a"]
    one = node_of([server.url], "rw", "one")
    async with running(one):
        heard = Heard()
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
            assert (await one.presence.page(name, "", 10)).total == 1


async def test_a_publication_without_a_uid_is_registered_once_while_the_server_is_killed(server: NatsServer) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
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


async def test_several_nodes_on_one_stream_give_each_position_once(server: NatsServer) -> None:
    nodes = [node_of([server.url], "rw", f"n{number}") for number in range(3)]
    async with running(*nodes):
        receipts = await asyncio.gather(
            *(published(nodes[number % 3], "a", b"%d" % number, f"u{number // 2}") for number in range(120))
        )
        assert sorted(receipt.offset for receipt in receipts if not receipt.duplicate) == list(range(1, 61))
        assert len({receipt.epoch for receipt in receipts}) == 1
        for number in range(0, 120, 2):
            assert at(receipts[number]) == at(receipts[number + 1])
        assert len(await history(nodes[0], "a")) == 60


async def test_a_producer_is_registered_once_and_in_order_on_all_nodes(server: NatsServer) -> None:
    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        batch = [Publication("a", b"%d" % number, producer="p", sequence=number) for number in range(100)]
        first = await one.streams.append(batch)
        assert [receipt.offset for receipt in first] == list(range(1, 101))
        again = await two.streams.append([batch[-1], batch[0], Publication("a", b"new", producer="p", sequence=100)])
        assert [(receipt.duplicate, receipt.offset) for receipt in again] == [(True, 100), (True, 0), (False, 101)]
        assert [receipt.duplicate for receipt in await one.streams.append(batch[-2:])] == [True, True]


async def test_a_batch_that_nats_would_not_take_at_once_is_registered_in_order(server: NatsServer) -> None:
    one = node_of([server.url], "rw", "one")
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
                answer = await one.streams.replay(batch[0].stream, Position(receipts[0].epoch, len(batch) - 5))
                assert [message.payload for message in answer.messages] == [item.payload for item in batch[-5:]]


async def test_a_node_starts_while_nats_is_down_and_serves_once_it_is_there(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    one = node_of([server.url], "rw", "one")
    starting = asyncio.ensure_future(one.start())
    try:
        assert (await until(lambda: _unhealthy(one))).startswith("NATS")
        with pytest.raises(Unavailable):
            await one.streams.append([Publication("a", b"1")])
        with pytest.raises(Unavailable):
            await one.sessions.peek("sid")
        await asyncio.to_thread(server.start)
        assert (await published(one, "a", b"1")).offset == 1
        await until(lambda: _healthy(one))
    finally:
        await starting
        await one.stop()
        server.stop()


async def test_more_replicas_than_servers_are_told_by_the_health(server: NatsServer) -> None:
    one = node_of([server.url], next(prefixes), "one", replicas=3)
    starting = asyncio.ensure_future(one.start())
    try:
        await until(lambda: _says(one, "replicas"))
    finally:
        await one.stop()
        await starting


async def _says(node: NatsBackend, word: str) -> None:
    assert word in node.health()


async def test_too_many_streams_to_look_at_are_counted_by_nats_itself(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "LISTED", 10)
    one = node_of([server.url], "rw", "one")
    async with running(one):
        await one.streams.append([Publication(f"stream {number}", b"1", uid="u") for number in range(20)])
        await one.sweep()
        gauges = one.gauges()
        assert (gauges["streams"], gauges["history_messages"]) == (40, 40)  # keys are subjects and messages too
        assert (await one.streams.append([Publication("stream 7", b"1", uid="u")]))[0].duplicate


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_credentials_and_tls_are_used_where_they_are_asked_for(tmp_path: Path, scheme: str) -> None:
    server = NatsServer(tmp_path)
    settings = msgspec.json.decode((tmp_path / "nats.conf").read_bytes())
    settings["authorization"] = {"user": "us", "password": "a secret"}
    settings["tls"] = {"cert_file": str(CERTIFICATE), "key_file": str(CERTIFICATE.with_name("tls_key.pem"))}
    (tmp_path / "nats.conf").write_bytes(msgspec.json.encode(settings))
    server.start()
    rules = Rulebook(StreamRules())
    at = f"{scheme}://us:a%20secret@127.0.0.1:{server.port}"
    try:
        trusted = NatsBackend(NatsAddress((at,), tls_ca=str(CERTIFICATE)), "one", rules, time.time, shards=2)
        async with running(trusted):
            assert (await published(trusted, "a", b"1")).offset == 1
        strange = NatsBackend(NatsAddress((at.replace("secret", "guess"),), tls_ca=str(CERTIFICATE)), "two", rules, time.time)
        starting = asyncio.ensure_future(strange.start())
        assert "uthorization" in await until(lambda: _problem(strange, "uthorization"))
        await strange.stop()
        await starting
        assert "secret" not in strange.health()
    finally:
        server.stop()


async def _problem(backend: NatsBackend, part: str) -> str:
    assert part in backend.health(), backend.health()
    return backend.health()


@pytest.mark.parametrize("offered", [False, True], ids=["none offered", "left to the clients"])
async def test_a_node_that_asks_for_tls_says_nothing_without_it(tmp_path: Path, offered: bool) -> None:
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
            node = NatsBackend(address, "one", Rulebook(StreamRules()), time.time, shards=2)
            starting = asyncio.ensure_future(node.start())
            if offered:
                assert (await published(node, "a", b"1")).offset == 1
                assert proxy.said
            else:
                await until(lambda: _problem(node, "offers no TLS"))
                assert proxy.said == b""
            await node.stop()
            await starting
            assert b"secret" not in proxy.said
    finally:
        server.stop()


# --- links -----------------------------------------------------------------------------------------------------------


class Proxy:
    """Between a node and NATS. `deaf`: what the server says is lost. `cut`: nobody gets through. `said`: what the node says."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = free_port()
        self.deaf = self.cut = False
        self.said = b""
        self._links: set[asyncio.StreamWriter] = set()
        self._to_nats: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut_links()
        for task in list(self._tasks):
            task.cancel()

    def cut_links(self) -> None:
        for link in self._links:
            link.close()
        self._links.clear()

    def babble(self) -> None:
        """NATS says what it thinks of that, and ends the connections."""
        for link in self._to_nats:
            link.write(b"\r\nBABBLE\r\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut or self.deaf:
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._links |= {writer, back}
        self._to_nats.add(back)
        for source, target, answers in ((reader, back, False), (there, writer, True)):
            task = asyncio.ensure_future(self._pass(source, target, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if not answers:
                    self.said += data
                if not (answers and self.deaf):
                    target.write(data)
        target.close()


async def test_an_append_whose_answer_is_lost_is_registered_once(server: NatsServer) -> None:
    async with Proxy(server.port) as proxy:
        one, two = node_of([proxy.url], "rw", "one"), node_of([server.url], "rw", "two")
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


async def test_a_node_that_was_cut_off_hears_what_it_missed(server: NatsServer) -> None:
    async with Proxy(server.port) as proxy:
        one, two = node_of([proxy.url], "rw", "one"), node_of([server.url], "rw", "two")
        async with running(one, two):
            heard = Heard()
            await one.feed.start(heard.deliver, heard.obey, heard.miss)
            await one.feed.listen("a")
            await published(two, "a", b"1")
            await until(lambda: heard.has(b"1"))
            before = heard.missed
            proxy.cut = True
            proxy.cut_links()
            await until(lambda: _unhealthy(one))
            await published(two, "a", b"2")
            await two.presence.join("a", "sid", Member("bo"))
            assert await two.feed.command(RemoteDisconnect("user 1")) == 0
            proxy.cut = False
            await until(lambda: heard.has(b'{"type":"join","id":"bo"}'))
            await until(lambda: _obeyed(heard, RemoteDisconnect("user 1")))
            assert heard.missed > before
            assert await history(one, "a") == [b"1", b"2"]


async def test_a_connection_that_nats_ends_with_an_error_comes_back(server: NatsServer) -> None:
    async with Proxy(server.port) as proxy:
        one, two = node_of([proxy.url], "rw", "one"), node_of([server.url], "rw", "two")
        async with running(one, two):
            heard = Heard()
            await one.feed.start(heard.deliver, heard.obey, heard.miss)
            await one.feed.listen("a")
            for number in range(1, 4):
                before = heard.missed
                proxy.babble()
                await until(lambda before=before: _missed(heard, before))  # type: ignore[misc]
                payload = b"%d" % number
                await published(two, "a", payload)
                await until(lambda payload=payload: heard.has(payload))  # type: ignore[misc]
                await two.presence.join("a", f"sid {number}", Member(f"bo {number}"))
                await until(lambda number=number: heard.has(b'{"type":"join","id":"bo %d"}' % number))  # type: ignore[misc]
                await published(one, "b", payload)
                await until(lambda: _healthy(one))
    assert server.log().lower().count("parse") >= 3, server.log()


async def test_an_order_that_cannot_be_carried_out_is_said_in_words(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        raise Unavailable("not now")

    one, two = (node_of([server.url], "rw", name) for name in ("one", "two"))
    async with running(one, two):
        heard = Heard()
        await one.feed.start(heard.deliver, heard.obey)
        await two.feed.start(heard.deliver, fail)
        await one.feed.command(RemoteDisconnect("user 1"))
        await until(lambda: _said(caplog, "an order was not carried out"))
    assert "Traceback" not in caplog.text


async def _said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    assert words in caplog.text


async def _missed(heard: Heard, before: int) -> None:
    assert heard.missed > before


async def _obeyed(heard: Heard, order: RemoteDisconnect) -> None:
    assert heard.orders == [order]


async def test_an_answer_of_a_server_that_is_behind_is_no_loss(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of several servers gives it that was paused, while nobody leads the shard or it believes that it does itself."""
    one = node_of([server.url], "rw", "one")
    async with running(one):
        first, _, _ = [await published(one, "a", payload) for payload in (b"1", b"2", b"3")]
        ask = one.link.api
        behind: list[str] = []

        async def answer(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == f"STREAM.INFO.{one.jet_of('a')}" and not behind:
                behind.append(subject)
                found["state"]["last_seq"] -= 2
            return found

        monkeypatch.setattr(one.link, "api", answer)
        server.kill()
        server.start()
        after = await published(one, "a", b"4")
        assert behind
        assert at(after) == Position(first.epoch, 4)


async def test_records_of_the_cluster_are_not_lost_because_a_server_is_behind(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = node_of([server.url], "rw", "one")
    async with running(one):
        await one.presence.join("a", "sid", Member("bo"))
        ask = one.link.api
        behind: list[str] = []

        async def answer(subject: str, question: object = None) -> Any:
            found = await ask(subject, question)
            if subject == "STREAM.INFO.RW_STATE" and len(behind) < 2:
                behind.append(subject)
                found["state"]["last_seq"] = 0
            return found

        monkeypatch.setattr(one.link, "api", answer)
        page = await until(lambda: one.presence.page("a", "", 10), Unavailable)
        assert [member.id for member in page.members] == ["bo"]
        assert len(behind) == 2
    assert "lost" not in caplog.text


async def test_a_question_that_nobody_waits_for_any_more_fails_in_silence(server: NatsServer) -> None:
    one = node_of([server.url], "rw", "one")
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with running(one):
        asked, fails = asyncio.Event(), asyncio.Event()

        async def fail(subject: str, question: object = None) -> Any:
            asked.set()
            await fails.wait()
            raise Unanswered("no answer")

        one.link.api = fail  # type: ignore[method-assign]
        asking = asyncio.ensure_future(one.presence.page("a", "", 1))
        await asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        fails.set()
        for _ in range(10):
            await asyncio.sleep(0)
        one._table._asking = None  # Python complains when it is forgotten
        gc.collect()
    assert complaints == []


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
        return [member.id for member in (await until(lambda: two.presence.page("a", "", 10), Unavailable)).members]

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
        assert [sid for sid, _ in await two.sessions.expired(10)] == ["ended"]


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
        assert (await one.presence.page("a", "", 10)).total == 5
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
    assert (await node.presence.page("a", "", 20)).total == total


async def test_a_node_that_is_taken_for_dead_and_has_a_new_lease_keeps_its_members(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ends the lease of one and then what one holds, and hears too late that one has a new lease and has joined again."""
    ahead = [0.0]
    one = node_of([server.url], "rw", "one")
    two = node_of([server.url], "rw", "two", clock=lambda: time.time() + ahead[0], presence_ttl=0.1)
    hears, ended, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    hears.set()
    subscribe, write, node_died = two.link.subscribe, one.link.publish, two.presence.node_died
    sweeping: list[asyncio.Task[None]] = []

    async def subscribe_late(subject: str, callback: Callable[[Any], Awaitable[None]]) -> Any:
        async def hear(message: Any) -> None:
            await hears.wait()
            await callback(message)

        return await subscribe(subject, hear)

    async def node_died_late(node: str, lives: Callable[[], bool]) -> None:
        if node == "one":
            hears.clear()
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
        await two.presence.page("a", "", 1)
        ahead[0] = 7.0
        monkeypatch.setattr(one.link, "publish", write_late)
        assert (await one.leases.renew(6.0, ())).lease != before.lease
        await one.presence.join("a", "sid", Member("bo"))
        go_on.set()
        asyncio.get_running_loop().call_later(0.3, hears.set)
        await sweeping[0]
        ahead[0] = 8.0
        await two.presence.page("a", "", 1)
        await two.presence.expire()
        assert [member.id for member in (await two.presence.page("a", "", 10)).members] == ["bo"]


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[NatsServer]]:
    with nats_cluster() as servers:
        yield servers


async def leader_of(servers: Sequence[NatsServer], jet: str) -> NatsServer:
    client = await nats.connect([server.url for server in servers])
    answer = msgspec.json.decode((await client.request(f"$JS.API.STREAM.INFO.{jet}", b"", 5)).data)
    await client.close()
    return next(server for number, server in enumerate(servers) if f"s{number}" == answer["cluster"]["leader"])


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_leader_that_dies_or_stalls_costs_a_pause_and_nothing_else(cluster: list[NatsServer], how: str) -> None:
    prefix = next(prefixes)
    urls = [server.url for server in cluster]
    one, two = (node_of(urls, prefix, name, replicas=3) for name in ("one", "two"))
    async with running(one, two):
        await published(one, "a", b"0", "u0")
        leader = await leader_of(cluster, one.jet_of("a"))
        sending = asyncio.ensure_future(_keep_publishing(one, two))
        getattr(leader, how)()
        receipts = await sending
        (leader.start if how == "kill" else leader.resume)()
        assert sorted(receipt.offset for receipt in receipts) == list(range(2, 2 + len(receipts)))
        assert len({receipt.epoch for receipt in receipts}) == 1
        kept = await history(two, "a")
        assert sorted(kept) == sorted([b"0", *(b"%d" % number for number in range(1, len(receipts) + 1))])


async def test_a_node_is_unhealthy_all_the_time_while_most_servers_are_gone(cluster: list[NatsServer]) -> None:
    survivor, *others = cluster
    node = node_of([survivor.url], next(prefixes), "one", replicas=3)
    async with running(node):
        await published(node, "a", b"0")
        for server in others:
            server.kill()
        for _ in range(10):
            await _fails(node)
            assert node.health()
        for server in others:
            server.start()
        await published(node, "a", b"1", "its uid")  # sent again where it got no answer
        assert await history(node, "a") == [b"0", b"1"]
        await until(lambda: node.leases.renew(6.0, ()), Unavailable)  # as upkeep does
        await until(lambda: _healthy(node))


async def _fails(node: NatsBackend) -> None:
    """As upkeep does: JetStream is asked, and cannot do it."""
    with pytest.raises(Unavailable):
        await node.leases.renew(6.0, ())


async def _keep_publishing(*nodes: NatsBackend) -> list[Receipt]:
    """For as long as a leader is missing, and some more."""
    receipts: list[Receipt] = []
    slowest = 0.0
    for number in range(1, 10_000):
        begun = time.monotonic()
        receipts.append(await published(nodes[number % len(nodes)], "a", b"%d" % number, f"u{number}"))
        slowest = max(slowest, time.monotonic() - begun)
        if slowest > 0.5 and time.monotonic() - begun < slowest / 10 and number > 20:
            break
    return receipts
