"""Ephemeral streams over Broky: runs are forwarded unchanged, the server keeps no message, and unused topics use no memory."""

import asyncio
import os
import random
import signal
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from ropewalk.protocol.broky.frames import (
    Format,
    Gap,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Subscribed,
    Unsubscribe,
)
from ropewalk.protocol.broky.ksuid import new_ksuid
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyClient, answered_refs, client, new_key
from tests.cable import cable
from tests.metrics import metrics
from tests.process_tree import store
from tests.scenarios.shared_servers import EPHEMERAL, SMALL_OUTBOX, ServerWith
from tests.server import RunningServer, publish, running_server


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with(*EPHEMERAL, *worker_flags)


async def test_run_is_delivered_unchanged_and_answered_without_a_position(server: RunningServer) -> None:
    stream = new_key()
    pushed = build_run(
        stream,
        [b"\xff", b"", b"three"],
        ref=7,
        key_partition=b"part",
        uid=b"".join(new_ksuid(1.0) for _ in range(3)),
        ts_producer=(1, 2, 3),
    )
    async with client(server) as producer, client(server) as subscriber:
        subscribed = await subscriber.subscribe(stream)
        assert (subscribed.epoch, subscribed.offset) == (b"", 0)
        producer.send(replace(pushed, offset=99, ts_broker=99, epoch=b"forged"), replace(pushed, ref=8))
        answers: list[tuple[int, int]] = []
        while len(answers) < 2:
            answer = await producer.expect(Pushed)
            assert answer.epochs == bytes(len(answer.refs))
            answers += zip(answer.refs, answer.offsets, strict=True)
        assert answers == [(7, 0), (8, 0)]
        for run in await subscriber.some(Run, 2):
            assert run.ts_broker > 99
            assert run == replace(pushed, ref=0, ts_broker=run.ts_broker)


async def test_websocket_clients_get_the_messages_of_a_run_one_by_one(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as broky, cable(server) as browser:
        await browser.subscribe(stream.decode())
        await broky.subscribe(stream)
        broky.send(build_run(stream, [b"\x00\xff", b"x"]), build_run(stream, [b'{"a": 1.0e3}', b"null"], format=Format.JSON))
        shown = [await browser.expect("message") for _ in range(4)]
        assert [each["message"] for each in shown] == [
            {"$bytes": "AP8="},
            {"$bytes": "eA=="},
            {"a": 1000.0},
            {"$json": None},
        ]
        assert all("offset" not in each for each in shown)
        assert [split_payloads(run) for run in await broky.some(Run, 2)] == [[b"\x00\xff", b"x"], [b'{"a": 1.0e3}', b"null"]]
        receipt = await publish(server, stream.decode(), '{"from": "http"}', uid="u")
        assert receipt == {"stream": stream.decode()}
        assert await publish(server, stream.decode(), '{"from": "http"}', uid="u") == receipt
        delivered = await broky.messages(2)  # a uid is not stored for an ephemeral stream
        assert [(run.payload, run.offset, run.epoch) for run in delivered] == [(b'{"from": "http"}', 0, b"")] * 2
        assert "offset" not in await browser.expect("message")


async def test_no_message_is_kept_and_an_old_position_gets_a_gap(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as broky:
        broky.send(build_run(stream, [b"1"], ref=1))
        await broky.expect(Pushed)
        assert (await broky.subscribe(stream, history=True)).offset == 0
        broky.send(Unsubscribe(1, stream))
        assert (await broky.subscribe(stream, b"epoch", 3)).epoch == b""
        assert (await broky.expect(Gap)).reason is Reason.EPOCH_CHANGED
        broky.send(build_run(stream, [b"2"]))
        assert (await broky.expect(Run)).payload == b"2"
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{server.url}/api/streams/{stream.decode()}") as response:
            assert response.status == 404
        async with http.get(f"{server.url}/api/streams") as response:
            assert stream.decode() not in await response.text()


async def test_invalid_run_is_refused_with_its_index_and_not_delivered(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as broky:
        await broky.subscribe(stream)
        broky.send(
            build_run(stream, [b"1", b"{", b"3"], ref=1, format=Format.JSON),
            build_run(stream, [b"x"] * 1001, ref=2),
            build_run(b"", [b"x"], ref=3),
            build_run(stream * 100, [b"x"], ref=4),
            build_run(stream, [b"x", bytes(800_000)], ref=5),
            build_run(stream, [b"x"], ref=6, key_partition=stream * 100),
            build_run(stream, [b"good"], ref=7),
        )
        refused = [await broky.expect(Refused) for _ in range(1)]
        rest = [await broky.receive() for _ in range(7)]
        refused += [body for body in rest if isinstance(body, Refused)]
        assert [(each.ref, each.index) for each in refused] == [(1, 1), (2, 1000), (3, 0), (4, 0), (5, 1), (6, 0)]
        assert {each.reason for each in refused} == {Reason.MALFORMED}
        assert [run.payload for run in rest if isinstance(run, Run)] == [b"good"]


async def test_pushes_of_one_connection_are_handled_in_order_with_and_without_history(
    server_with: ServerWith, worker_flags: tuple[str, ...]
) -> None:
    server = server_with(*SMALL_OUTBOX, *worker_flags)
    kept, ephemeral = new_key(), b"ephemeral/" + new_key()
    async with client(server) as broky, client(server) as subscriber:
        await subscriber.subscribe(kept)
        await subscriber.subscribe(ephemeral)
        for round in range(20):
            broky.send(
                build_run(kept, [b"%d" % round], ref=4 * round + 1),
                build_run(ephemeral, [b"%d" % round], ref=4 * round + 2),
                build_run(ephemeral, [b"{}"], ref=4 * round + 3, format=Format.JSON),
                Ping(round),
            )
        refs: list[int] = []
        for round in range(20):
            answers, pong = await broky.until(Pong)
            refs += answered_refs(answers)
            assert pong.ref == round
            assert len(refs) >= 3 * (round + 1)
        assert refs == [4 * round + place for round in range(20) for place in (1, 2, 3)]
        got: dict[bytes, list[bytes]] = {kept: [], ephemeral: []}
        for run in await subscriber.messages(60):
            got[run.key].append(run.payload)
        assert got[kept] == [b"%d" % round for round in range(20)]
        assert got[ephemeral] == [payload for round in range(20) for payload in (b"%d" % round, b"{}")]


async def test_runs_with_a_partition_key_keep_their_order_across_keys(server: RunningServer) -> None:
    keys = [new_key() for _ in range(3)]
    async with client(server) as producer, client(server) as subscriber:
        for each in keys:
            await subscriber.subscribe(each)
        chance = random.Random(20261116)
        chosen = [chance.choice(keys) for _ in range(300)]
        for number, each in enumerate(chosen):
            producer.send(build_run(each, [b"%d" % number], key_partition=b"together"))
            if number % 50 == 0:
                await producer.writer.drain()
        runs = await subscriber.some(Run, 300)
        assert [(run.key, int(run.payload)) for run in runs] == [(each, number) for number, each in enumerate(chosen)]


async def test_malformed_run_ends_the_connection_after_the_runs_before_it_are_delivered(server: RunningServer) -> None:
    stream = new_key()
    async with client(server) as subscriber, client(server) as producer:
        await subscriber.subscribe(stream)
        good, bad = encode_run(build_run(stream, [b"1", b"2"])), bytearray(encode_run(build_run(stream, [b"3", b"4"])))
        bad[124 + 4] += 1  # sizes that are not the payload's
        producer.writer.write(good + bytes(bad) + good)
        assert (await producer.ended()).reason is Reason.MALFORMED
        assert split_payloads(await subscriber.expect(Run)) == [b"1", b"2"]
        await publish(server, stream.decode(), "5")
        assert (await subscriber.expect(Run)).payload == b"5"


async def test_frames_split_at_any_byte_are_reassembled(server: RunningServer) -> None:
    stream = new_key()
    data = b"".join(encode_run(build_run(stream, [b"%d" % number], ref=number + 1)) for number in range(50)) + encode(Ping(1))
    async with client(server) as producer, client(server) as subscriber:
        await subscriber.subscribe(stream)
        chance = random.Random(20261116)
        while data:
            size = chance.randrange(1, 700)
            producer.writer.write(data[:size])
            data = data[size:]
            await producer.writer.drain()
            await asyncio.sleep(0)
        answers, _ = await producer.until(Pong)
        assert answered_refs(answers) == list(range(1, 51))
        assert [run.payload for run in await subscriber.messages(50)] == [b"%d" % number for number in range(50)]


@pytest.mark.tier("all")
async def test_lost_store_process_is_reported_as_a_gap() -> None:
    stream = new_key()
    with running_server(*EPHEMERAL, "--workers", "2") as running:
        async with client(running) as subscriber, cable(running) as browser:
            await subscriber.subscribe(stream)
            await browser.subscribe(stream.decode())
            os.kill(store(running), signal.SIGKILL)
            gap = await subscriber.expect(Gap)
            assert (gap.key, gap.reason, gap.epoch, gap.last) == (stream, Reason.TRIMMED, b"", 0)
            assert (await browser.until("reject_history"))["reason"] == "trimmed"


@pytest.mark.tier("all")
async def test_push_is_answered_after_the_store_received_it() -> None:
    stream = new_key()
    with running_server(*EPHEMERAL, "--workers", "2") as running:
        async with client(running) as subscriber, client(running) as producer:
            await subscriber.subscribe(stream)
            kept = store(running)
            os.kill(kept, signal.SIGSTOP)
            try:
                producer.send(build_run(stream, [b"1"], ref=1), Ping(2))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await producer.receive()
            finally:
                os.kill(kept, signal.SIGCONT)
            assert (await producer.expect(Pushed)).refs == (1,)
            assert (await subscriber.expect(Run)).payload == b"1"


async def test_reload_switches_history_on_and_off(tmp_path: Path) -> None:
    config = tmp_path / "ropewalk.toml"
    config.write_text("[broker]\nhistory_limit = 0\n")
    with running_server("--public", "--config_path", str(config)) as server:
        async with client(server) as broky:
            assert await offset_of_a_push(broky) == 0
            config.write_text("[broker]\nhistory_limit = 5\n")
            server.process.send_signal(1)
            async with asyncio.timeout(60):
                while await offset_of_a_push(broky) == 0:
                    await asyncio.sleep(0.05)
            config.write_text("[broker]\nhistory_limit = 0\n")
            server.process.send_signal(1)
            async with asyncio.timeout(60):
                while await offset_of_a_push(broky):
                    await asyncio.sleep(0.05)


async def offset_of_a_push(broky: BrokyClient) -> int:
    broky.send(build_run(b"k", [b"x"], ref=1))
    (offset,) = (await broky.expect(Pushed)).offsets
    return offset


async def test_streams_of_a_server_with_a_journal_are_not_ephemeral(tmp_path: Path) -> None:
    with running_server(*EPHEMERAL, "--data_dir", str(tmp_path)) as journaled:
        async with client(journaled) as broky:
            assert [await offset_of_a_push(broky), await offset_of_a_push(broky)] == [1, 2]


# --- many topics ------------------------------------------------------------------------------------------

TOPICS = 1_000_000
PER_RUN, PER_WRITE = 1, 500
SUBSCRIBED_EACH = 10_000
MAX_GROWTH_BYTES = 8 << 20


def resident(server: RunningServer) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


@pytest.mark.tier("all")
async def test_million_ephemeral_topics_do_not_grow_the_memory() -> None:
    with running_server(*EPHEMERAL) as server:
        async with client(server) as producer, client(server) as subscriber:
            await push_topics(producer, subscriber, 0, TOPICS // 10)
            before = resident(server)
            await push_topics(producer, subscriber, TOPICS // 10, TOPICS + TOPICS // 10)
            assert resident(server) - before < MAX_GROWTH_BYTES
            found = await metrics(server)
            assert found["streams"] == 0
            assert found["streams_listened"] <= 1
            assert found["publications_total"] == TOPICS + TOPICS // 10
            delivered = (TOPICS + TOPICS // 10) // SUBSCRIBED_EACH
            assert found["publications_unheard_total"] == TOPICS + TOPICS // 10 - delivered


async def push_topics(producer: BrokyClient, subscriber: BrokyClient, first: int, last: int) -> None:
    """Each number is a topic. One in SUBSCRIBED_EACH has a subscriber."""
    template = encode_run(build_run(b"topic/%012d" % 0, [b"payload"]))
    before, after = template.split(b"topic/%012d" % 0)
    for number in range(first, last, PER_WRITE):
        if number % SUBSCRIBED_EACH == 0:
            topic = b"topic/%012d" % number
            assert isinstance(await subscriber.subscribe(topic), Subscribed)
        producer.writer.write(
            b"".join([b"%btopic/%012d%b" % (before, each, after) for each in range(number, number + PER_WRITE)])
        )
        await producer.writer.drain()
        if number % SUBSCRIBED_EACH == 0:
            assert (await subscriber.expect(Run)).key == topic
            subscriber.send(Unsubscribe(1, topic))
    producer.send(Ping(1))
    await producer.expect(Pong)
